"""The forward process: noise schedules, times, corruptions."""

from adlm.diffusion.corruption import AnchoredMasking, Corruption, CountMasking, UniformMasking
from adlm.diffusion.schedule import Clipped, Cosine, Geometric, Linear, LogLinear, Polynomial, Schedule
from adlm.diffusion.times import Antithetic, Independent, LowDiscrepancyTimes, Times

__all__ = [
    "AnchoredMasking",
    "Antithetic",
    "Clipped",
    "Corruption",
    "Cosine",
    "CountMasking",
    "Geometric",
    "Independent",
    "Linear",
    "LogLinear",
    "LowDiscrepancyTimes",
    "Polynomial",
    "Schedule",
    "Times",
    "UniformMasking",
]
