"""Callbacks of a training run: progress bars, trackers, pictures and samples are classes of this shape.

This file does not import torch, so that command-line tools can define callbacks before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adlm.train.metrics import StepMetrics, ValidationMetrics
    from adlm.train.trainer import Trainer


class Callback:
    """Follows a training run. Override the methods you need.

    All methods are called on the first process only, except `samples`, which is called on every process.
    """

    def open(self, trainer: Trainer) -> None:
        """Called once before the first step; `trainer.progress.step` steps are done already if the run is resumed."""

    def on_step(self, metrics: StepMetrics) -> None:
        """Called after every training step."""

    def samples(self, trainer: Trainer) -> Sequence[str]:
        """Texts to keep with a validation, from `trainer.model` as it was validated. Gradients are off."""
        return ()

    def on_validation(self, metrics: ValidationMetrics) -> None:
        """Called after every validation."""

    def on_checkpoint(self, step: int) -> None:
        """Called before the checkpoint of a step is written: what was recorded so far must be on disk."""

    def on_end(self, trainer: Trainer) -> None:
        """Called when the run is finished and its model is saved."""

    def log(self, message: str) -> None:
        """Called with messages for the user."""

    def close(self) -> None:
        """Called last if `open` was called, also after an error."""


class PrintMessages(Callback):
    """Prints the messages of a run."""

    def log(self, message: str) -> None:
        print(message)
