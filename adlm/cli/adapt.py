"""`adlm adapt`: a left-to-right model becomes a diffusion model."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from adlm.adapt import AdaptOptions, AdaptReport, Target, adapt, planned_run
from adlm.cli.progress import TrainingBar, bar, console
from adlm.cli.train import SampleTexts, show_run
from adlm.train.callbacks import Callback
from adlm.train.curves import DrawCurves
from adlm.train.run import FitOptions
from adlm.train.trackers import tracker


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    to: str,
    data: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    out: Path | None = None,
    sizes: tuple[int, ...] = (),
    progressive: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    steps: int | None = None,
    lr: float | None = None,
    prune_vocabulary: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    freeze: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    lora_rank: int = 0,
    adapter_rank: int = 0,
    length: int | None = None,
    rows: int = 16,
    holes: float = 0.0,
    seed: int = 0,
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    resume: Literal["auto", "never"] = "auto",
    allow_change: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    shard: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: str = "auto",
    track: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    samples: int = 0,
    cache: Path | None = None,
) -> None:
    """Turn a left-to-right model into a diffusion model, and report likelihood and speed before and after.

    Run an interrupted command again to resume it. Processes started by torchrun train together.

    Args:
        model: a left-to-right model: a folder or Hub name of this package; a folder or Hub name of GPT-2, Llama, Qwen2,
            Qwen3 or GPT-NeoX (transformers); or a file or folder of llama2.c.
        to: block:16, masked, anchored, anchored-block:16 or towers:16, with any block size.
        data: a corpus as in `adlm prepare`, or self:N: N texts that the model samples itself. Can be repeated.
        out: where the model, its source, sampled texts and the report go; runs/MODEL-TO by default.
        sizes: block sizes to train, drawn per row, each as often as it is listed; 0 is the whole row. By default 1, 2,
            4 and so on up to that of --to.
        progressive: train the sizes one after another instead.
        steps: by default two passes over the data, at least 300.
        lr: peak learning rate; by default 1e-4 (AdamW) from 5 million parameters on, that of Muon below;
            1e-3 for --adapter-rank.
        prune_vocabulary: keep only the tokens that occur in the data.
        freeze: a part that is not trained: anchor, denoiser, or a prefix of parameter names.
        lora_rank: train low-rank adapters of this rank only, and merge them into the weights.
        adapter_rank: train low-rank adapters of this rank that act where masked text is read: left to right, the model
            stays exactly the source.
        length: tokens per row; by default those of the model.
        rows: rows per step.
        holes: fraction of the whole rows (0 among --sizes) in which only holes are masked: for models that fill holes.
        dry_run: print the run, its cost and the time it may take, and stop.
        resume: auto resumes from the newest complete checkpoint in the folder; never starts the training again.
        allow_change: resume even though settings have changed, if those may change.
        shard: with several processes: a shard of the model on each (FSDP2).
        device: auto, cpu, cuda or mps.
        track: also log to tensorboard, wandb or trackio.
        samples: texts to generate after each validation.
        cache: folder for prepared data; $ADLM_CACHE or ~/.cache/adlm by default.
    """
    target = Target.parse(to, sizes or None, progressive=progressive)
    options = AdaptOptions(steps, lr, prune_vocabulary, lora_rank, adapter_rank, freeze, length, rows, seed, holes)
    if dry_run:
        run, vocabulary = planned_run(model, target, data, options)
        show_run(run, device=device, shard=shard, vocabulary=vocabulary)
        return
    folder = out or Path("runs") / f"{Path(model).name}-{str(target).replace(':', '-')}"
    callbacks: list[Callback] = [*(tracker(name) for name in track), SampleTexts(samples), DrawCurves()]
    first = int(os.environ.get("RANK", 0)) == 0
    with bar(str(target), steps) if first else nullcontext() as view:
        if view is not None:
            callbacks = [TrainingBar(view), *callbacks]
        report = adapt(
            model,
            target,
            data,
            folder,
            options=options,
            device=device,
            fit_options=FitOptions(shard, resume, allow_change, cache=cache),
            callbacks=callbacks,
        )
        if view is not None:
            view.note = f"{report.steps:,} steps, {report.tokens:,} tokens"
    if first:
        _print(report, folder)


def _print(report: AdaptReport, folder: Path) -> None:
    table = Table("held out", "read", "before", "after", "above the source", title="nats per token")
    for row in report.rows():
        table.add_row(*row)
    console().print(table)
    table = Table("decoding", "tokens per second", "nats per token under the source")
    for each in report.decodings:
        table.add_row(each.name, f"{each.tokens_per_second:,.0f}", f"{each.judged_nats:.2f}")
    console().print(table)
    for each in report.decodings:
        console().print(f"{each.name}: {' '.join(each.sample.split())[:300]}", highlight=False, markup=False)
    default = report.default_decoding
    writes = f" By default it writes {default.name}, the faster exact way." if default is not None else ""
    console().print(f'The model is in {folder}/: adlm.load("{folder.as_posix()}").{writes}', highlight=False)
