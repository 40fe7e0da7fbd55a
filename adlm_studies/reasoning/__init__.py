"""Models that answer questions in steps: tasks, methods (ACoT, Coconut and others), training in stages, evaluation."""

from adlm_studies import registration  # noqa: F401 # its classes can be stored
from adlm_studies.reasoning.answers import Accuracy, accuracy
from adlm_studies.reasoning.data import ReasoningData
from adlm_studies.reasoning.diffusion import AnchorsFirst, DiffusionReasoningData
from adlm_studies.reasoning.evaluate import Reasoner, evaluate_reasoning, load_reasoner
from adlm_studies.reasoning.methods import METHODS, ReasoningMethod
from adlm_studies.reasoning.objective import ThoughtCrossEntropy
from adlm_studies.reasoning.problem import GeneratedTask, Problem, Task
from adlm_studies.reasoning.stages import Curriculum, curriculum_stages, starting_model, train_in_stages
from adlm_studies.reasoning.tasks import TASKS, make_task

__all__ = [
    "METHODS",
    "TASKS",
    "Accuracy",
    "AnchorsFirst",
    "Curriculum",
    "DiffusionReasoningData",
    "GeneratedTask",
    "Problem",
    "Reasoner",
    "ReasoningData",
    "ReasoningMethod",
    "Task",
    "ThoughtCrossEntropy",
    "accuracy",
    "curriculum_stages",
    "evaluate_reasoning",
    "load_reasoner",
    "make_task",
    "starting_model",
    "train_in_stages",
]
