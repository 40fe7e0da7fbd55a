"""Studies: questions about anchored diffusion, the runs that answer them, and reports with error bars.

study = find_study("anchoring", seeds=3)
outcomes = run_side_by_side(study, Path("runs/anchoring"))
write_study(study, Path("runs/anchoring"), outcomes, ["adlm", "experiment", "anchoring"])
"""

from adlm_studies import registration  # noqa: F401 # its classes can be stored
from adlm_studies.experiments.named import STUDIES, find_study
from adlm_studies.experiments.output import PlannedStep, plan_study, write_study
from adlm_studies.experiments.side_by_side import run_side_by_side
from adlm_studies.experiments.study import (
    StepContext,
    StepOutcome,
    Study,
    StudyStep,
    StudyWork,
    read_results,
    run_study,
    write_results,
)
from adlm_studies.experiments.training import TrainAndScore

__all__ = [
    "STUDIES",
    "PlannedStep",
    "StepContext",
    "StepOutcome",
    "Study",
    "StudyStep",
    "StudyWork",
    "TrainAndScore",
    "find_study",
    "plan_study",
    "read_results",
    "run_side_by_side",
    "run_study",
    "write_results",
    "write_study",
]
