"""From a left-to-right model to a diffusion model: `adapt`, and the values that it takes and returns."""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

if TYPE_CHECKING:
    from adlm.adapt.adaptation import adapt, planned_run
    from adlm.adapt.preparation import AdaptOptions
    from adlm.adapt.report import AdaptReport
    from adlm.adapt.source import open_left_to_right
    from adlm.adapt.target import Target

__all__ = ["AdaptOptions", "AdaptReport", "Target", "adapt", "open_left_to_right", "planned_run"]

__getattr__ = lazy_names(
    __name__,
    {
        "adaptation": ("adapt", "planned_run"),
        "preparation": ("AdaptOptions",),
        "report": ("AdaptReport",),
        "source": ("open_left_to_right",),
        "target": ("Target",),
    },
)
