"""`adlm evaluate code`: HumanEval and MBPP."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm.cli.progress import bar, console
from adlm.cli.sample import options_of
from adlm.distributed import joined
from adlm.errors import ConfigError
from adlm.evaluate.measurement import check_counts, result_path
from adlm.evaluate.result import Result
from adlm.resumable import weights_checksum
from adlm.text_model import load
from adlm_studies.code.benchmarks import CodeProblem, read_problems, read_solutions
from adlm_studies.code.evaluate import BenchmarkPart, CodeEvaluation
from adlm_studies.code.sandbox import ProgramLimits


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
    """Measure the cost of reference solutions given their prompts, or with --run pass@k of the model's solutions.

    With --run, unreviewed programs are executed, in a process with limited time, memory and rights. Use it on a machine
    that you can afford to lose.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub; not needed with --solutions.
        data: the folder with HumanEval.jsonl or mbpp.jsonl, plain or .gz, or the file.
        set: humaneval, mbpp (its test split, tasks 11 to 510) or mbpp-all.
        problems: take only this many problems, the first ones.
        run: execute solutions and count those that pass.
        solutions: with --run: measure these solutions instead of writing some: .jsonl with a task_id and a completion
            on each line; the completion is what follows the prompt.
        n: solutions to write per problem.
        k: values of k for pass@k, separated by commas; those above n are left out.
        draws: noise levels per solution, for bounds.
        lossy: continue although the tokenizer does not reproduce the solutions; the bound is then that of the text as
            the tokenizer reads it.
        sampler: by name, as in `adlm sample`.
        max_new_tokens: maximum number of tokens per solution.
        option: any option of the sampler, as in --option steps=64 --option temperature=0.2.
        limits: limits of each program.
        seed: seed of masks and solutions.
        out: the result, as JSON; by default in runs/evaluate. Solutions are written next to it, as .solutions.jsonl.
        device: auto, cpu, cuda or mps.
        revision: a branch, tag or commit of a model on the Hub.
    """
    check_counts(problems=problems, n=n, draws=draws)
    _check(model, run, solutions)
    ks, asked = _numbers(k), read_problems(set, data)[:problems]
    named: dict[str, Any] = {"name": model or (solutions.name if solutions else "")}
    out = out or result_path("code", set, named["name"])
    answers: list[list[str]] | None = None
    with joined(device) as context, bar("code", len(asked)) as view:
        measure = CodeEvaluation(
            set, asked, out, context, seed, lambda label, done, count: view.update(done, f"{label}: {done} of {count}")
        )
        parts = []
        if model:
            writer = load(model, revision=revision)
            writer.network.to(context.device)
            named["weights"] = weights_checksum(writer.network)
            parts.append(measure.bound(writer, draws=draws, lossy=lossy))
        if solutions is not None:
            answers = read_solutions(solutions, asked)
            parts.append(BenchmarkPart({}, {}, {"solutions": f"from {solutions.name}"}))
        elif run:
            chosen = writer.sampler(sampler, **options_of(option, {}))
            answers, part = measure.write_solutions(writer, chosen, n=n, max_new_tokens=max_new_tokens)
            parts.append(part)
        if answers is not None:
            if context.first:
                print("adlm: running programs that a model wrote, confined but unreviewed", file=sys.stderr)
            parts.append(measure.run_solutions(answers, ks, limits))
        result = measure.result(named, parts)
    if context.first:
        if solutions is None and answers is not None:
            _write_solutions(out.with_suffix(".solutions.jsonl"), asked, answers)
        _print(result, out)


def _check(model: str, run: bool, solutions: Path | None) -> None:
    if solutions is not None and not run:
        raise ConfigError(
            "--solutions can only be measured by running them: add --run, if you trust them", subject="run"
        )
    if not model and solutions is None:
        raise ConfigError("name a model or give --solutions", subject="model")


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--k takes numbers of 1 or more, as in --k 1,10, got {text!r}", subject="k")
    return [int(part) for part in parts]


def _write_solutions(path: Path, problems: Sequence[CodeProblem], answers: Sequence[Sequence[str]]) -> None:
    pairs = [(problem.name, text) for problem, each in zip(problems, answers, strict=True) for text in each]
    lines = [json.dumps({"task_id": name, "completion": text}) for name, text in pairs]
    path.write_text("\n".join(lines) + "\n")


def _print(result: Result, out: Path) -> None:
    about = result.protocol
    title = f"{result.model['name']} on {about['set']}, {about['problems']} problems"
    table = Table("", "", title=title, show_header=False)
    for label, figure in result.figures.items():
        table.add_row(label.replace("_", " "), f"{figure} {figure.unit}".strip())
    console().print(table)
    hidden = ("set", "problems", "sampler", "limits")
    lines = [f"{label}: {value}" for label, value in about.items() if label not in hidden]
    for line in [*lines, "≤ marks a bound; ± one standard error", f"written to {out}"]:
        console().print(line, highlight=False, markup=False, soft_wrap=True)
