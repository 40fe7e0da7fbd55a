"""Training: a `Run` in, a folder with a model out. `adlm.fit` does it; `Trainer` is the machine behind it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.train.callbacks import Callback, PrintMessages
    from adlm.train.curves import DrawCurves, draw_curves
    from adlm.train.init import AnchorFrom, Finetune, Init, Pretrained, RandomInit, SplitFrom
    from adlm.train.lora import Lora
    from adlm.train.lr_schedules import Constant, CosineDecay, LRSchedule, StableDecay
    from adlm.train.metrics import StepMetrics, ValidationMetrics, read_metrics
    from adlm.train.optimizers import AdamW, Muon, OptimizerConfig
    from adlm.train.run import CheckpointConfig, FitOptions, Run, TrainConfig, ValidationConfig
    from adlm.train.run_folder import read_run
    from adlm.train.trackers import Tracker, tracker
    from adlm.train.trainer import Trainer, TrainResult

__all__ = [
    "AdamW",
    "AnchorFrom",
    "Callback",
    "CheckpointConfig",
    "Constant",
    "CosineDecay",
    "DrawCurves",
    "Finetune",
    "FitOptions",
    "Init",
    "LRSchedule",
    "Lora",
    "Muon",
    "OptimizerConfig",
    "Pretrained",
    "PrintMessages",
    "RandomInit",
    "Run",
    "SplitFrom",
    "StableDecay",
    "StepMetrics",
    "Tracker",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "ValidationConfig",
    "ValidationMetrics",
    "draw_curves",
    "read_metrics",
    "read_run",
    "tracker",
]

_HOMES = {
    "AdamW": "optimizers",
    "AnchorFrom": "init",
    "SplitFrom": "init",
    "Callback": "callbacks",
    "CheckpointConfig": "run",
    "Constant": "lr_schedules",
    "CosineDecay": "lr_schedules",
    "DrawCurves": "curves",
    "Finetune": "init",
    "FitOptions": "run",
    "Init": "init",
    "LRSchedule": "lr_schedules",
    "Lora": "lora",
    "Muon": "optimizers",
    "OptimizerConfig": "optimizers",
    "Pretrained": "init",
    "PrintMessages": "callbacks",
    "RandomInit": "init",
    "Run": "run",
    "StableDecay": "lr_schedules",
    "StepMetrics": "metrics",
    "Tracker": "trackers",
    "TrainConfig": "run",
    "TrainResult": "trainer",
    "Trainer": "trainer",
    "ValidationConfig": "run",
    "ValidationMetrics": "metrics",
    "draw_curves": "curves",
    "read_metrics": "metrics",
    "read_run": "run_folder",
    "tracker": "trackers",
}


def __getattr__(name: str) -> Any:
    # Fetched when first used: callbacks and the command line do not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'adlm.train' has no attribute {name!r}")
    return getattr(importlib.import_module(f"adlm.train.{_HOMES[name]}"), name)
