"""From a left-to-right model to a diffusion model: `adapt`, and the values that it takes and returns."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.adapt.adaptation import adapt, planned_run
    from adlm.adapt.preparation import AdaptOptions
    from adlm.adapt.report import AdaptReport
    from adlm.adapt.source import open_left_to_right
    from adlm.adapt.target import Target

__all__ = ["AdaptOptions", "AdaptReport", "Target", "adapt", "open_left_to_right", "planned_run"]

_HOMES = {
    "AdaptOptions": "preparation",
    "AdaptReport": "report",
    "Target": "target",
    "adapt": "adaptation",
    "open_left_to_right": "source",
    "planned_run": "adaptation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
