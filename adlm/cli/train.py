"""`adlm train`: train a recipe, or resume a run."""

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from adlm.cli.progress import Bar, TrainingBar, bar, console
from adlm.cli.recipes import plan_rows
from adlm.config import to_json, with_changes
from adlm.distributed import device_for
from adlm.errors import OutOfRange
from adlm.models.network import Vocabulary
from adlm.recipes.named import find_run
from adlm.text_model import TextModel
from adlm.train.callbacks import Callback
from adlm.train.curves import DrawCurves
from adlm.train.fit import fit
from adlm.train.plan import plan
from adlm.train.run import FitOptions, Run
from adlm.train.trackers import tracker
from adlm.train.trainer import Trainer, TrainResult


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
    """Train a model by a recipe, or resume a run that was interrupted.

    Processes started by torchrun train one model together. SIGTERM and Ctrl-C finish the step and save.

    Args:
        run: a recipe by name (`adlm recipes` lists them), the config.json of a run to train it again, or the folder of
            a run to resume it.
        out: where the model, its checkpoints and metrics go; runs/NAME by default.
        set: change a field of the run, as in --set train.steps=1000 --set checkpoint.every=100.
        dry_run: print the run, its cost and the time it may take, and stop.
        resume: auto resumes from the newest complete checkpoint in the folder; never starts again and replaces it.
        allow_change: resume even though settings have changed, if those may change.
        on_nonfinite: stop before a step whose loss or gradient is not finite, or skip it and count.
        shard: with several processes: a shard of the model on each (FSDP2), for models that do not fit on one.
        device: auto, cpu, cuda or mps.
        track: also log to tensorboard, wandb or trackio.
        samples: texts to generate after each validation.
        workers: processes that read data ahead, per training process.
        cache: folder for prepared data; $ADLM_CACHE or ~/.cache/adlm by default.
    """
    options = FitOptions(shard, resume, allow_change, on_nonfinite, cache, workers)
    callbacks = [*(tracker(name) for name in track), SampleTexts(samples), DrawCurves()]
    chosen = with_changes(find_run(run), set)
    # The folder of a run is where it is resumed.
    folder = out or (Path(run) if Path(run).is_dir() else Path("runs") / chosen.name)
    if dry_run:
        show_run(chosen, device=device, shard=shard, folder=folder)
        return
    _train(chosen, folder, device, options, callbacks)


class SampleTexts(Callback):
    """Generates texts after each validation."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise OutOfRange("samples", count, "at least 0")
        self.count = count

    def samples(self, trainer: Trainer) -> Sequence[str]:
        if not self.count:
            return ()
        model = TextModel(trainer.model, trainer.config, trainer.data.tokenizer)
        return model.generate(n=self.count, seed=trainer.progress.step)


def _train(run: Run, folder: Path, device: str, options: FitOptions, callbacks: Sequence[Callback]) -> None:
    """Train with a progress bar, on the first process."""
    first = int(os.environ.get("RANK", 0)) == 0
    with bar(run.name, run.train.steps) if first else nullcontext() as view:
        if view is not None:
            callbacks = [TrainingBar(view), *callbacks]
        result = fit(run, folder, device=device, options=options, callbacks=callbacks)
        if view is not None:
            _note(view, result)
    if first:
        console().print(f'The model is in {folder}/: adlm.load("{folder.as_posix()}")', highlight=False)


def _note(view: Bar, result: TrainResult) -> None:
    nats = result.nats
    bound = "" if nats is None else f", {nats.mean:.4f} ± {nats.error:.4f} nats per token"
    view.note = f"{result.steps:,} steps{bound}"


def show_run(
    run: Run, *, device: str, shard: bool, vocabulary: Vocabulary | None = None, folder: Path | None = None
) -> None:
    """Print a run, its cost and the time it may take.

    Args:
        vocabulary: if the data does not tell it before it is read.
        folder: that of the run, which continues as it began.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    table = Table("", "", title=run.name, show_header=False)
    expected = plan(
        run, world_size=world_size, device=device_for(device), vocabulary=vocabulary, shard=shard, folder=folder
    )
    for row in plan_rows(run, expected):
        table.add_row(*row)
    if os.environ.get("RANK", "0") == "0":
        console().print_json(json.dumps(to_json(run)))
        console().print(table)
