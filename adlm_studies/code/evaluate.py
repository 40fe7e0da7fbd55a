"""HumanEval and MBPP as a `Result`: the bound of reference solutions, and pass@k of solutions that a model writes."""

import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.config import to_json
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError
from adlm.evaluate.measurement import partial_file
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.statistics import ratio
from adlm.objectives.bound import mean_of
from adlm.resumable import checksum, each_of, weights_checksum
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel
from adlm_studies.code import sandbox
from adlm_studies.code.benchmarks import (
    BENCHMARKS,
    STATUSES,
    CodeProblem,
    completions,
    count_lossy,
    encode_problem,
    pass_at,
    run_tests,
    solution_nats,
)
from adlm_studies.code.sandbox import ProgramLimits

CodeProgress = Callable[[str, int, int], None]  # (what is done, problems done, number of problems)


class BenchmarkPart(NamedTuple):
    """Figures, numbers of each problem, and the settings that decide them."""

    figures: dict[str, Figure]
    items: dict[str, list[float]]
    about: dict[str, Any]


@dataclass(frozen=True)
class CodeEvaluation:
    """The measurements on one benchmark, each a part of the result.

    Args:
        benchmark: its name in `BENCHMARKS`.
        out: the file of the result; partial results are kept beside it, so that an interrupted evaluation resumes.
    """

    benchmark: str
    problems: Sequence[CodeProblem]
    out: Path
    context: DistributedContext
    seed: int = 0
    on_progress: CodeProgress | None = None

    @property
    def data(self) -> dict[str, Any]:
        """Which problems are measured."""
        return {"name": self.benchmark, "key": checksum([asdict(problem) for problem in self.problems])}

    def bound(self, model: TextModel, *, draws: int = 16, lossy: bool = False) -> BenchmarkPart:
        """The cost of the reference solutions given their prompts.

        Args:
            draws: noise levels per solution, for bounds.
            lossy: accept a tokenizer that does not reproduce the solutions.
        """
        changed = count_lossy(self.problems, model.tokenizer)
        if changed and not lossy:
            raise ConfigError(
                f"cannot measure the bound of {len(self.problems)} solutions",
                f"the tokenizer does not reproduce {changed} of them: what it cannot encode costs nothing",
                "use a model with a byte-level tokenizer, or --lossy to score the text as this one reads it",
                subject="lossy",
            )
        packing, network, pad_id = model.config.packing, model.network, model.tokenizer.roles.pad_id
        texts = [encode_problem(problem, model.tokenizer, packing) for problem in self.problems]
        compute = solution_nats(network, texts, packing, pad_id=pad_id, draws=draws, seed=self.seed)
        made_of = {"model": weights_checksum(network), "data": self.data, "draws": draws, "seed": self.seed}
        nats = self._each("bound", compute, 1, made_of)[:, 0]
        kind, counted = ("exact", 0) if network.causal else ("bound", draws)
        tokens, size = (np.array(each, np.float64) for each in zip(*((t.tokens, t.bytes) for t in texts), strict=True))
        solution = mean_of(torch.from_numpy(nats), counted)
        figures = {
            "bits_per_byte": Figure(*ratio(nats / math.log(2), size), kind, "bits per byte", counted),
            "nats_per_token": Figure(*ratio(nats, tokens), kind, "nats per token", counted),
            "nats_per_solution": Figure(solution.mean, solution.error, kind, "nats per solution", counted),
        }
        about = {
            "likelihood": "exact" if network.causal else f"a bound, from {draws} stratified mask counts per row",
            "scored": "the reference solution and the end token, given the prompt; line ends as \\n",
            "in windows": sum(text.windows for text in texts),
            "prompts cut at their beginning": sum(text.prompt_cut for text in texts),
            "changed by the tokenizer": changed,
        }
        return BenchmarkPart(figures, {"nats": nats.tolist(), "tokens": tokens.tolist()}, about)

    def write_solutions(
        self, model: TextModel, sampler: Sampler, *, n: int = 1, max_new_tokens: int | None = None
    ) -> tuple[list[list[str]], BenchmarkPart]:
        """`n` solutions of the model per problem, on the first process; none if the prompt leaves no room."""
        stops = BENCHMARKS[self.benchmark].stops
        part = BenchmarkPart({}, {}, {"solutions": f"{n} per problem, cut before {stops}", "sampler": to_json(sampler)})
        return self.context.on_first(lambda: self._written(model, sampler, n, max_new_tokens, stops)), part

    def _written(
        self, model: TextModel, sampler: Sampler, n: int, limit: int | None, stops: Sequence[str]
    ) -> list[list[str]]:
        packing, encode, decode = model.config.packing, model.tokenizer.encode, model.tokenizer.decode
        begin, _ = packing.frame(model.tokenizer.roles)

        def write(prompt: str) -> list[str]:
            texts = model.generate(prompt, n=n, seed=self.seed, sampler=sampler, max_new_tokens=limit)
            read = decode(encode(prompt))  # the prompt as a lossy tokenizer gives it back
            return [prompt + text.removeprefix(read) for text in texts]

        def has_room(prompt: str) -> bool:
            return len(begin) + len(encode(prompt)) + (limit or 1) <= packing.length

        answers: list[list[str]] = []
        for each in completions(self.problems, write, has_room, stops):
            answers.append(each)
            self._report("writing", len(answers), len(self.problems))
        return answers

    def run_solutions(
        self, answers: Sequence[Sequence[str]], ks: Sequence[int], limits: ProgramLimits
    ) -> BenchmarkPart:
        """pass@k of solutions, which are executed. Problems without an answer fail."""
        fewest = min((len(each) for each in answers if each), default=0)
        if not any(k <= fewest for k in ks):
            raise ConfigError(
                f"pass@k with k of {', '.join(map(str, ks))} needs as many answers, and some problem has {fewest}",
                fix="write more with --n, or lower --k",
                subject="k",
            )
        held = sandbox.run("", limits=limits).held
        made_of = {"data": self.data, "answers": checksum([list(each) for each in answers]), "limits": asdict(limits)}
        counts = self._each("run", run_tests(self.problems, answers, limits), len(STATUSES), made_of)
        about = {
            "limits": asdict(limits),
            "confined by": list(held),
            "outcomes": dict(zip(STATUSES, counts.sum(0).astype(int).tolist(), strict=True)),
            "prompts that leave no room": sum(not each for each in answers),
            "pass@k": "unbiased estimate of Chen et al. 2021, mean over problems",
        }
        figures = {f"pass@{k}": _pass_figure(counts, k) for k in ks if k <= fewest}
        return BenchmarkPart(figures, {"passed": counts[:, 0].tolist(), "solutions": counts.sum(1).tolist()}, about)

    def result(self, model: dict[str, Any], parts: Sequence[BenchmarkPart]) -> Result:
        """The result of all parts. The first process saves it and removes the partial results."""
        first = {"set": self.benchmark, "problems": len(self.problems), "errors": "over problems"}
        columns = zip(BenchmarkPart({}, {}, first), *parts, strict=True)
        figures, items, about = (dict(ChainMap(*reversed(each))) for each in columns)
        result = Result("code", model, self.data, about, self.seed, figures, items)
        if self.context.first:
            result.save(self.out)
            for part in ("bound", "run"):
                partial_file(self.out, part).unlink(missing_ok=True)
        return result

    def _each(
        self,
        label: str,
        compute: Callable[[NDArray[np.int64]], NDArray[np.float64]],
        width: int,
        made_of: dict[str, Any],
    ) -> NDArray[np.float64]:
        return each_of(
            len(self.problems),
            compute,
            width=width,
            batch=8,
            context=self.context,
            partial=partial_file(self.out, label),
            made_of=made_of,
            progress=lambda done, count: self._report(label, done, count),
        )

    def _report(self, label: str, done: int, count: int) -> None:
        if self.on_progress is not None and self.context.first:
            self.on_progress(label, done, count)


def _pass_figure(counts: NDArray[np.float64], k: int) -> Figure:
    each = [pass_at(int(row.sum()), int(row[0]), k) if row.sum() else 0.0 for row in counts]
    found = mean_of(torch.tensor(each, dtype=torch.float64), 0)
    return Figure(found.mean, found.error)
