"""`adlm train`: a recipe into a model."""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from adlm.cli.progress import TrainingBar, bar, console
from adlm.cli.recipes import plan_rows
from adlm.config import to_json, with_changes
from adlm.data.tokenizer import Tokenizer
from adlm.distributed import device_for
from adlm.errors import ConfigError
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.recipes.named import recipe
from adlm.text_model import TextModel
from adlm.train.fit import fit
from adlm.train.folder import read_run
from adlm.train.plan import plan
from adlm.train.run import Run
from adlm.train.trackers import tracker


def command(
    run: Annotated[str, tyro.conf.Positional],
    /,
    *,
    out: Path | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    resume: Literal["auto", "never"] = "auto",
    allow_change: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    on_nonfinite: Literal["stop", "skip"] = "stop",
    shard: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: str = "auto",
    track: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    samples: int = 0,
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Train a model by a recipe, or go on where it was stopped.

    Processes started by torchrun train one model together. SIGTERM and Ctrl-C finish the step and save.

    Args:
        run: a recipe by name (`adlm recipes` lists them), the config.json of a run, to train it again, or the folder of
            one, to go on in it.
        out: where the model, its checkpoints and metrics go; runs/NAME by default.
        set: change a field of the run, as in --set train.steps=1000 --set checkpoint.every=100.
        dry_run: print the run, what it takes and how long it may last, and stop.
        resume: auto goes on from the newest whole checkpoint in the folder; never starts again and replaces it.
        allow_change: go on although the run has changed, if only in what may change.
        on_nonfinite: stop before a step whose loss or gradient is not finite, or skip it and count.
        shard: with several processes: a part of the model on each (FSDP2), for models that do not fit on one.
        device: auto, cpu, cuda or mps.
        track: also tell tensorboard, wandb or trackio.
        samples: texts to write after each validation.
        workers: processes that read ahead, for each that trains.
        cache: where prepared data is kept; $ADLM_CACHE or ~/.cache/adlm by default.
    """
    if samples < 0 or workers < 0:
        raise ConfigError(f"asked for --samples {samples} --workers {workers}", "fewer than 0", "give 0 or more")
    chosen = with_changes(_named(run), set)
    if dry_run:
        _show(chosen, device=device, shard=shard)
        return
    # The folder of a run is where that run goes on.
    folder = out or (Path(run) if Path(run).is_dir() else Path("runs") / chosen.name)
    trackers = [tracker(name) for name in track]
    first = int(os.environ.get("RANK", 0)) == 0
    with bar(chosen.name, chosen.train.steps) if first else nullcontext() as view:
        fitted = fit(
            chosen,
            folder,
            device=device,
            shard=shard,
            resume=resume,
            allow_change=allow_change,
            on_nonfinite=on_nonfinite,
            cache=cache,
            workers=workers,
            watch=TrainingBar(view, chosen.train.steps) if view is not None else None,
            trackers=trackers,
            sample=_writer(samples) if samples else None,
            say=view.print if view is not None else print,
        )
        if view is not None:
            bound = "" if fitted.nats is None else f", {fitted.nats.mean:.4f} ± {fitted.nats.error:.4f} nats per token"
            view.note = f"{fitted.steps:,} steps{bound}"
    if first:
        console().print(f'The model is in {folder}/: adlm.load("{folder.as_posix()}")', highlight=False)


def _show(run: Run, *, device: str, shard: bool) -> None:
    """What a run is, what it takes, how long it may last."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    table = Table("", "", title=run.name, show_header=False)
    for row in plan_rows(run, plan(run, world=world, device=device_for(device), shard=shard)):
        table.add_row(*row)
    if os.environ.get("RANK", "0") == "0":
        console().print_json(json.dumps(to_json(run)))
        console().print(table)


def _named(name: str) -> Run:
    """A recipe, or the run of a config.json or a run's folder."""
    path = Path(name)
    return read_run(path) if path.suffix == ".json" or path.is_dir() else recipe(name)


def _writer(count: int) -> Callable[[LanguageModel, ModelConfig, Tokenizer, int], list[str]]:
    def write(model: LanguageModel, config: ModelConfig, tokenizer: Tokenizer, step: int) -> list[str]:
        return TextModel(model, config, tokenizer).generate(n=count, seed=step)

    return write
