"""`adlm reason evaluate`: how many problems per model solves."""

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from adlm.cli.progress import bar, console
from adlm.config import from_json, to_json
from adlm.data.table import DataConfig
from adlm.distributed import device_for
from adlm.errors import ConfigError
from adlm.evaluate.measurement import check_counts, result_path
from adlm.evaluate.result import Figure, Result
from adlm.resumable import weights_checksum
from adlm.text_model import TextModel, load
from adlm_studies.reasoning.answers import Accuracy, accuracy
from adlm_studies.reasoning.decode import Solved
from adlm_studies.reasoning.diffusion import Diffused
from adlm_studies.reasoning.rows import Reasoned, problems_of, unknown_fraction
from adlm_studies.reasoning.solve import limit_for, solve
from adlm_studies.reasoning.tasks import task_of


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
    """Accuracy on problems per model was not trained on, with its 95 % interval, and the tokens it wrote.

    Args:
        run: the folder of a model that `adlm reason train` trained.
        split: test, valid or train.
        data: the folder with the task's files, if not where they were in training.
        problems: take the first so many alone.
        limit: tokens that are written at most; by default a few more than the longest solution has.
        plain: a diffusion model unmasks anchors and the rest in one order of its own, instead of anchors first.
        batch: problems at a time.
        seed: of the sampler of a diffusion model.
        out: the result, as JSON, with one figure a problem; by default in runs/evaluate.
        texts: also write what was written to this file, a JSON object a problem.
        device: auto, cpu, cuda or mps.
    """
    check_counts(problems=problems, limit=limit, batch=batch)
    out = out or result_path("reason", split, run)
    for file in filter(None, (out, texts)):
        if file.is_dir():
            raise ConfigError(f"asked to write to {file}", "it is a folder", "name a file")
    model, config = opened(run, data, device)
    chosen = problems_of(config.task, split, problems or 0)
    with bar("answers", len(chosen)) as view:

        def watch(done: int, count: int) -> None:
            view.update(done, f"{done:,} of {count:,}")

        table, solved = solve(
            model.network,
            model.tokenizer,
            config,
            chosen,
            split,
            limit=limit or limit_for(config, model.tokenizer, split),
            plain=plain,
            batch=batch,
            seed=seed,
            watch=watch,
        )
    protocol: dict[str, Any] = {"run": to_json(config), "split": split, "limit": limit, "problems": problems}
    protocol["decoding"] = "greedy" if isinstance(config, Reasoned) else "plain" if plain else "anchors first"
    right = accuracy([each.right for each in solved])
    low, high = right.interval
    result = Result(
        "reasoning",
        {"name": run, "weights": weights_checksum(model.network)},
        {"name": table.name, "key": table.key, "origin": config.task.origin(split)},
        protocol,
        seed,
        _figures(right, solved),
        {"right": [float(each.right) for each in solved], "tokens": [float(each.written.tokens) for each in solved]},
    )
    result.save(out)
    if texts is not None:
        texts.parent.mkdir(parents=True, exist_ok=True)
        texts.write_text("".join(json.dumps(_record(each)) + "\n" for each in solved), encoding="utf-8")
    tokens = result.figures["tokens"]
    unknown = unknown_fraction(table, model.tokenizer)
    lines = [
        *([f"{unknown:.1%} of the tokens are words that the tokenizer has not"] if unknown else []),
        f"{table.name} ({config.task.origin(split)}):",
        f"{right.fraction:.1%} right of {len(solved):,} (95 % interval {low:.1%} to {high:.1%})",
        f"{tokens} tokens written a problem; {result.figures['answered'].value:.1%} have an answer",
        f"written to {out}",
    ]
    for line in lines:
        console().print(line, highlight=False, markup=False, soft_wrap=True)


def opened(run: str, data: str | None, device: str) -> tuple[TextModel, Reasoned | Diffused]:
    """A model that reasons, on its device, and what it was trained on."""
    model = load(run)
    config = trained_on(run, model)
    if data is not None:
        given = {
            field.name: getattr(config.task, field.name) for field in fields(config.task) if field.name != "folder"
        }
        config = replace(config, task=task_of(config.task.name, data, **given))
    model.network.eval().to(device_for(device))
    return model, config


def trained_on(run: str, model: TextModel) -> Reasoned | Diffused:
    stored = (model.config.run or {}).get("data", {})
    if stored.get("kind") not in (Reasoned.__name__, Diffused.__name__):
        found = f"it was trained on {stored.get('kind') or 'nothing that is known'}"
        raise ConfigError(f"asked {run} to reason", found, "name a folder that `adlm reason train` wrote")
    config = from_json(DataConfig, stored, where="run.data")  # type: ignore[type-abstract]
    assert isinstance(config, Reasoned | Diffused)
    return config


def _figures(right: Accuracy, solved: Sequence[Solved]) -> dict[str, Figure]:
    tokens = np.array([each.written.tokens for each in solved], float)
    error = float(tokens.std(ddof=1) / math.sqrt(len(tokens))) if len(tokens) > 1 else None
    answered = sum(each.found is not None for each in solved) / len(solved)
    spread = math.sqrt(right.fraction * (1 - right.fraction) / len(solved))
    return {
        "accuracy": Figure(right.fraction, spread, unit="share"),
        "accuracy_low": Figure(right.interval[0], unit="share, lower end of the 95 % interval (Wilson)"),
        "accuracy_high": Figure(right.interval[1], unit="share, upper end of the 95 % interval (Wilson)"),
        "tokens": Figure(float(tokens.mean()), error, unit="tokens written a problem"),
        "answered": Figure(answered, unit="share"),
    }


def _record(solved: Solved) -> dict[str, Any]:
    return {
        "number": solved.number,
        "question": solved.problem.question,
        "answer": solved.problem.answer,
        "text": solved.written.text,
        "found": solved.found,
        "right": solved.right,
        "tokens": solved.written.tokens,
        "thoughts": [[guess._asdict() for guess in each] for each in solved.written.thoughts],
        "placed": list(solved.written.placed),
    }
