"""Training: a `Run` in, a folder with a model out. `adlm.fit` does it; `Trainer` is the machine behind it."""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

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

# Fetched when first used: callbacks and the command line do not wait for torch.
__getattr__ = lazy_names(
    __name__,
    {
        "callbacks": ("Callback", "PrintMessages"),
        "curves": ("DrawCurves", "draw_curves"),
        "init": ("AnchorFrom", "Finetune", "Init", "Pretrained", "RandomInit", "SplitFrom"),
        "lora": ("Lora",),
        "lr_schedules": ("Constant", "CosineDecay", "LRSchedule", "StableDecay"),
        "metrics": ("StepMetrics", "ValidationMetrics", "read_metrics"),
        "optimizers": ("AdamW", "Muon", "OptimizerConfig"),
        "run": ("CheckpointConfig", "FitOptions", "Run", "TrainConfig", "ValidationConfig"),
        "run_folder": ("read_run",),
        "trackers": ("Tracker", "tracker"),
        "trainer": ("Trainer", "TrainResult"),
    },
)
