"""`adlm evaluate code`: HumanEval and MBPP."""

import json
import math
import sys
from collections import ChainMap
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.table import Table

from adlm.cli.progress import bar, console
from adlm.cli.sample import options_of
from adlm.config import to_json
from adlm.distributed import DistributedContext, joined
from adlm.errors import ConfigError
from adlm.evaluate.measurement import check_counts, partial_file, result_path
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.statistics import ratio
from adlm.objectives.bound import mean_of
from adlm.resumable import checksum, each_of, weights_checksum
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel, load
from adlm_studies.code import sandbox
from adlm_studies.code.benchmarks import (
    SETS,
    STATUSES,
    CodeProblem,
    completions,
    judged,
    pass_at,
    read_problems,
    read_solutions,
    solution_nats,
    spelled,
    unreadable,
)
from adlm_studies.code.sandbox import ProgramLimits


class BenchmarkPart(NamedTuple):
    """Figures, numbers of each problem, and what decides them."""

    figures: dict[str, Figure]
    items: dict[str, list[float]]
    about: dict[str, Any]


def command(
    model: Annotated[str, tyro.conf.Positional] = "",
    /,
    *,
    data: Path,
    set: str = "humaneval",
    problems: int | None = None,
    run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    solutions: Path | None = None,
    n: int = 1,
    k: str = "1,10,100",
    draws: int = 16,
    lossy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    sampler: str | None = None,
    max_new_tokens: int | None = None,
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    limits: ProgramLimits = ProgramLimits(),  # noqa: B008 # a frozen value
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    revision: str | None = None,
) -> None:
    """What reference solutions cost a model given their prompts; with --run, pass@k of solutions it writes.

    --run executes programs that nobody has read, in a process with little time, memory and rights. Use it on a machine
    that you could lose.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub; none is needed with --solutions.
        data: the folder with HumanEval.jsonl or mbpp.jsonl, plain or .gz, or the file.
        set: humaneval, mbpp (its test split, tasks 11 to 510) or mbpp-all.
        problems: take the first so many alone.
        run: execute solutions and count those that pass.
        solutions: with --run: measure these instead of writing some: .jsonl with a task_id and a completion on each
            line, the completion as it follows the prompt.
        n: solutions to write for each problem.
        k: of pass@k, with commas between them; those beyond n are left out.
        draws: noise levels a solution, for bounds.
        lossy: go on although the tokenizer does not give solutions back as they were; the bound is then one of the
            text as the tokenizer reads it.
        sampler: by name, as in `adlm sample`.
        max_new_tokens: of a solution.
        option: any option of the sampler, as in --option steps=64 --option temperature=0.2.
        limits: of each program.
        seed: of masks and solutions.
        out: the result, as JSON; by default in runs/evaluate. Solutions go beside it, as .solutions.jsonl.
        device: auto, cpu, cuda or mps.
        revision: of a model on the Hub.
    """
    check_counts(problems=problems, n=n, draws=draws)
    _check(model, run, solutions)
    asked = read_problems(set, data)[:problems]
    named: dict[str, Any] = {"name": solutions.name if solutions else ""}
    parts = [BenchmarkPart({}, {}, {"set": set, "problems": len(asked), "errors": "over problems"})]
    out = out or result_path("code", set, model or named["name"])
    facts = {"name": set, "key": checksum([asdict(problem) for problem in asked])}
    with joined(device) as world:
        answers: list[list[str]] | None = None
        if model:
            writer = load(model, revision=revision)
            writer.network.to(world.device)
            named = {"name": model, "weights": weights_checksum(writer.network)}
            made_of = {"model": named, "data": facts, "draws": draws, "seed": seed}
            parts.append(_bound(writer, asked, draws, lossy, seed, world, out, made_of))
        if solutions is not None:
            answers = read_solutions(solutions, asked)
            parts.append(BenchmarkPart({}, {}, {"solutions": f"from {solutions.name}, as they are"}))
        elif run:
            chosen = writer.sampler(sampler, **options_of(option, {}))
            how = {"solutions": f"{n} a problem, cut before {SETS[set].stops}", "sampler": to_json(chosen)}
            parts.append(BenchmarkPart({}, {}, how))
            answers = world.on_first(lambda: _written(writer, asked, set, chosen, n, max_new_tokens, seed))
        if answers is not None:
            parts.append(_passed(asked, answers, k, limits, world, out, facts))
        if not world.first:
            return
        figures, items, about = (dict(ChainMap(*each)) for each in zip(*reversed(parts), strict=True))
        Result("code", named, facts, about, seed, figures, items).save(out)
        for part in ("bound", "run"):
            partial_file(out, part).unlink(missing_ok=True)
        if run and solutions is None and answers is not None:
            pairs = [(problem.name, text) for problem, each in zip(asked, answers, strict=True) for text in each]
            lines = [json.dumps({"task_id": name, "completion": text}) for name, text in pairs]
            out.with_suffix(".solutions.jsonl").write_text("\n".join(lines) + "\n")
        _show(named["name"], set, figures, about, out)


def _check(model: str, run: bool, solutions: Path | None) -> None:
    if solutions is not None and not run:
        raise ConfigError("asked to measure --solutions", "they have to be executed", "add --run, if you trust them")
    if not model and solutions is None:
        raise ConfigError("asked to measure code", "neither a model nor --solutions", "name one of them")


def _bound(
    writer: TextModel,
    problems: Sequence[CodeProblem],
    draws: int,
    lossy: bool,
    seed: int,
    world: DistributedContext,
    out: Path,
    made_of: dict[str, Any],
) -> BenchmarkPart:
    """What reference solutions cost."""
    changed = unreadable(problems, writer.tokenizer)
    if changed and not lossy:
        raise ConfigError(
            f"asked what {len(problems)} solutions cost",
            f"the tokenizer does not give {changed} of them back as they were: what it cannot spell costs nothing",
            "use a model with a byte-level tokenizer, or --lossy to score the text as this one reads it",
        )
    packing, network = writer.config.packing, writer.network
    texts = [spelled(problem, writer.tokenizer, packing) for problem in problems]
    compute = solution_nats(network, texts, packing, pad_id=writer.tokenizer.roles.pad_id, draws=draws, seed=seed)
    with bar("bound", len(texts)) if world.first else nullcontext() as view:
        nats = each_of(
            len(texts),
            compute,
            width=1,
            batch=8,
            context=world,
            partial=partial_file(out, "bound"),
            made_of=made_of,
            progress=None
            if view is None
            else lambda done, count: view.update(done, f"{done:,} of {count:,} solutions"),
        )[:, 0]
    kind, counted = ("exact", 0) if network.causal else ("bound", draws)
    tokens, size = (np.array(each, np.float64) for each in zip(*((t.tokens, t.bytes) for t in texts), strict=True))
    a_byte, a_token = ratio(nats / math.log(2), size), ratio(nats, tokens)
    a_problem = mean_of(torch.from_numpy(nats), counted)
    figures = {
        "bits_a_byte": Figure(*a_byte, kind=kind, unit="bits per byte", draws=counted),
        "nats_per_token": Figure(*a_token, kind=kind, unit="nats per token", draws=counted),
        "nats_a_solution": Figure(a_problem.mean, a_problem.error, kind, "nats a solution", counted),
    }
    about = {
        "likelihood": "exact" if network.causal else f"a bound, from {draws} stratified mask counts per row",
        "scored": "the reference solution and the end token, given the prompt; line ends as \\n",
        "in windows": sum(text.windows for text in texts),
        "prompts cut at their beginning": sum(text.prompt_cut for text in texts),
        "changed by the tokenizer": changed,
    }
    return BenchmarkPart(figures, {"nats": nats.tolist(), "tokens": tokens.tolist()}, about)


def _written(
    writer: TextModel,
    problems: Sequence[CodeProblem],
    name: str,
    sampler: Sampler,
    n: int,
    limit: int | None,
    seed: int,
) -> list[list[str]]:
    """Solutions that the model writes. A text that does not begin with its prompt is cut where as many tokens end."""
    rows, encode, decode = writer.config.packing, writer.tokenizer.encode, writer.tokenizer.decode
    begin, _ = rows.frame(writer.tokenizer.roles)

    def write(prompt: str) -> list[str]:
        texts = writer.generate(prompt, n=n, seed=seed, sampler=sampler, max_new_tokens=limit)
        read = decode(encode(prompt))  # what a tokenizer cannot spell comes back otherwise
        return [prompt + text.removeprefix(read) for text in texts]

    def room(prompt: str) -> bool:
        return len(begin) + len(encode(prompt)) + (limit or 1) <= rows.length

    answers = []
    with bar("writing", len(problems)) as view:
        for each in completions(problems, write, room, SETS[name].stops):
            answers.append(each)
            view.update(len(answers), f"solutions of {len(answers):,} of {len(problems):,} problems")
    return answers


def _passed(
    problems: Sequence[CodeProblem],
    answers: Sequence[Sequence[str]],
    ks: str,
    limits: ProgramLimits,
    world: DistributedContext,
    out: Path,
    facts: dict[str, Any],
) -> BenchmarkPart:
    """How many pass, after a warning. Problems without an answer, their prompts being too long, fail."""
    if world.first:
        print("adlm: running programs that a model wrote, confined but unread", file=sys.stderr)
    held = sandbox.run("", limits=limits).held
    with bar("running", len(problems)) if world.first else nullcontext() as view:
        counts = each_of(
            len(problems),
            judged(problems, answers, limits),
            width=len(STATUSES),
            batch=8,
            context=world,
            partial=partial_file(out, "run"),
            made_of={"data": facts, "answers": checksum([list(each) for each in answers]), "limits": asdict(limits)},
            progress=None if view is None else lambda done, count: view.update(done, f"{done:,} of {count:,} problems"),
        )
    fewest = min((len(each) for each in answers if each), default=0)
    figures = {f"pass@{k}": _pass_figure(counts, k) for k in _ks(ks) if k <= fewest}
    if not figures:
        raise ConfigError(
            f"asked for pass@k with k of {ks}", f"{fewest} answers to some problem", "write more with --n, or lower --k"
        )
    about = {
        "limits": asdict(limits),
        "confined by": list(held),
        "outcomes": dict(zip(STATUSES, counts.sum(0).astype(int).tolist(), strict=True)),
        "prompts that leave no room": sum(not each for each in answers),
        "pass@k": "unbiased estimate of Chen et al. 2021, mean over problems",
    }
    return BenchmarkPart(figures, {"passed": counts[:, 0].tolist(), "solutions": counts.sum(1).tolist()}, about)


def _ks(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(f"asked for pass@k with k of {text!r}", "not numbers of 1 or more", "write as in --k 1,10")
    return found


def _pass_figure(counts: NDArray[np.float64], k: int) -> Figure:
    each = [pass_at(int(row.sum()), int(row[0]), k) if row.sum() else 0.0 for row in counts]
    found = mean_of(torch.tensor(each, dtype=torch.float64), 0)
    return Figure(found.mean, found.error)


def _show(model: str, name: str, figures: dict[str, Figure], about: dict[str, Any], out: Path) -> None:
    table = Table("", "", title=f"{model} on {name}, {about['problems']} problems", show_header=False)
    for label, figure in figures.items():
        table.add_row(label.replace("_", " "), f"{figure} {figure.unit}".strip())
    console().print(table)
    hidden = ("set", "problems", "sampler", "limits")
    lines = [f"{label}: {value}" for label, value in about.items() if label not in hidden]
    for line in [*lines, "≤ marks a bound; ± one standard error", f"written to {out}"]:
        console().print(line, highlight=False, markup=False, soft_wrap=True)
