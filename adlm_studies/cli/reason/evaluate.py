"""`adlm reason evaluate`: how many problems a model solves."""

import json
from pathlib import Path
from typing import Annotated

import tyro

from adlm.cli.progress import bar, console
from adlm.errors import ConfigError
from adlm.evaluate.measurement import check_counts, result_path
from adlm.evaluate.result import Result
from adlm_studies.reasoning.evaluate import evaluate_reasoning, load_reasoner, solved_record


def command(
    run: Annotated[str, tyro.conf.Positional],
    /,
    *,
    split: str = "test",
    data: str | None = None,
    problems: int | None = None,
    limit: int | None = None,
    plain: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    batch: int = 64,
    seed: int = 0,
    out: Path | None = None,
    texts: Path | None = None,
    device: str = "auto",
) -> None:
    """Measure accuracy on held-out problems, with its 95 % interval and the number of tokens written.

    Args:
        run: the folder of a model that `adlm reason train` trained.
        split: test, valid or train.
        data: the folder with the task's files, if not where they were in training.
        problems: take only this many problems, the first ones.
        limit: tokens to write at most; by default a few more than the longest solution has.
        plain: a diffusion model unmasks anchors and the rest in one order, instead of anchors first.
        batch: problems at a time.
        seed: seed of a diffusion model's sampler.
        out: the result, as JSON, with one figure per problem; by default in runs/evaluate.
        texts: also write the answers to this file, one JSON object per line.
        device: auto, cpu, cuda or mps.
    """
    check_counts(problems=problems, limit=limit, batch=batch)
    out = out or result_path("reason", split, run)
    for file in filter(None, (out, texts)):
        if file.is_dir():
            raise ConfigError(f"{file} is a folder: name a file", subject=str(file))
    reasoner = load_reasoner(run, files=data, device=device)
    with bar("answers", None) as view:
        result, solved = evaluate_reasoning(
            reasoner,
            split,
            problems=problems,
            limit=limit,
            plain=plain,
            batch=batch,
            seed=seed,
            on_progress=lambda done, count: view.update(done, f"{done:,} of {count:,}"),
        )
    result.save(out)
    if texts is not None:
        texts.parent.mkdir(parents=True, exist_ok=True)
        texts.write_text("".join(json.dumps(solved_record(each)) + "\n" for each in solved), encoding="utf-8")
    _print(result, out)


def _print(result: Result, out: Path) -> None:
    figures, protocol = result.figures, result.protocol
    accuracy, low, high, answered = (
        figures[name].value for name in ("accuracy", "accuracy_low", "accuracy_high", "answered")
    )
    unknown, repeated = protocol["fraction of unknown tokens"], protocol["repeated questions left out"]
    lines = [
        *([f"{unknown:.1%} of the tokens are words that the tokenizer does not know"] if unknown else []),
        f"{result.data['name']} ({result.data['origin']}):",
        f"{accuracy:.1%} right of {len(result.items['right']):,} (95 % interval {low:.1%} to {high:.1%})",
        *([f"{repeated:,} repeated questions are left out: each counts once"] if repeated else []),
        f"{figures['tokens']} tokens written per problem; {answered:.1%} have an answer",
        f"written to {out}",
    ]
    for line in lines:
        console().print(line, highlight=False, markup=False, soft_wrap=True)
