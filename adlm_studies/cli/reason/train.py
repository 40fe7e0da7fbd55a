"""`adlm reason train`: a task and a method into a model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from adlm.cli.progress import TrainingBar, bar, console
from adlm.config import to_json, with_changes
from adlm.train.callbacks import Callback
from adlm.train.init import RandomInit
from adlm.train.run_folder import BEST
from adlm_studies.reasoning.stages import (
    PUBLISHED,
    Curriculum,
    CurriculumStage,
    curriculum_stages,
    diffusion_stage,
    from_scratch,
    method_for,
    pretrained,
    starting_model,
    train_in_stages,
)
from adlm_studies.reasoning.tasks import make_task


def command(
    *,
    task: str,
    method: str = "anchored",
    base: str = "ar",
    size: str = "nano",
    out: Path | None = None,
    data: str | None = None,
    scale: float = 1.0,
    batch_size: int = 128,
    problems: int = 0,
    held_out: int = 512,
    longest: int = 0,
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    seed: int = 0,
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: str = "auto",
) -> None:
    """Train a model to answer the questions of a task, stage by stage, or resume an interrupted training.

    Args:
        task: gsm8k, gsm8k-equations, prosqa, prontoqa, or one that is generated: arithmetic, graph.
        method: none, chain, pause, implicit, coconut or anchored.
        base: ar or a2r, left to right; mdlm or adlm, by diffusion (methods anchored and chain); all with fresh weights.
            Or a model to begin with: its folder, or its name on the Hub.
        size: size of a model with fresh weights: nano, micro, tiny, small, medium.
        out: where the model goes; runs/reason/TASK-METHOD-BASE by default.
        data: the folder with the task's files, where it has any.
        scale: fraction of the published epochs: 0.1 trains a tenth as long.
        batch_size: problems per step.
        problems: train on this many problems, the first ones; 0: all.
        held_out: validate on this many problems, the first ones; 0: all.
        longest: leave out problems of more tokens than this; 0: none.
        best: continue with the best validated model of each stage instead of the last.
        set: change anything else, as in --set method.most=3 --set anchor_weight=0.5 --set train.optimizer=AdamW.
        seed: seed of weights and data order.
        dry_run: print the stages and stop.
        device: auto, cpu, cuda or mps.
    """
    chosen, begun = make_task(task, data), starting_model(base, size)
    curriculum = Curriculum(
        chosen,
        method_for(task, method),
        begun.network,
        PUBLISHED[task].epochs,
        begun.init,
        scale=scale,
        batch_size=batch_size,
        train=from_scratch(seed) if begun.init == RandomInit() else pretrained(seed),
        best=best,
        tokenizer=begun.tokenizer,
        problems=problems,
        held_out=held_out,
        longest=longest,
    )
    curriculum = with_changes(curriculum, set)
    folder = out or Path("runs") / "reason" / f"{task}-{method}-{Path(base).name}"
    if begun.objective is None:
        stages = curriculum_stages(curriculum, folder)
    else:
        stages = [diffusion_stage(curriculum, folder, begun.objective)]
    if dry_run:
        console().print_json(json.dumps(to_json(curriculum)))
        for stage in stages:
            console().print(f"{stage.run.name}: {stage.run.train.steps:,} steps in {stage.folder}", highlight=False)
        return
    table = stages[-1].run.data.prepare().train
    read = f"{len(table):,} problems of {table.name} ({chosen.origin('train')})"
    console().print(read, highlight=False, soft_wrap=True)
    result = train_in_stages(stages, device=device, callbacks=_stage_progress)
    result = result / BEST if best else result
    console().print(f"The model is in {result}/: adlm reason evaluate {result}", highlight=False, soft_wrap=True)


@contextmanager
def _stage_progress(stage: CurriculumStage, number: int, count: int) -> Iterator[Callback]:
    with bar(f"stage {number + 1}/{count}", stage.run.train.steps) as view:
        yield TrainingBar(view)
