"""Objectives: what is optimized, and separately what is reported."""

from adlm.objectives.d3pm import D3pm
from adlm.objectives.degraded import DegradedAnelbo
from adlm.objectives.linear_cross_entropy import Nats
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, LossContext, LossInputs, MaskedObjective, Objective
from adlm.objectives.score_entropy import ScoreEntropy

__all__ = [
    "AnchoredCrossEntropy",
    "Anelbo",
    "CrossEntropy",
    "D3pm",
    "DegradedAnelbo",
    "LossContext",
    "LossInputs",
    "MaskedObjective",
    "Nats",
    "Nelbo",
    "Objective",
    "ScoreEntropy",
]
