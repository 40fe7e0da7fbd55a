"""The forward process: noise schedules, times, corruptions."""

from adlm.diffusion.corruption import AnchoredMasking, Corruption, CountMasking, UniformMasking
from adlm.diffusion.masks_in_training import ConfidenceMasking, LeftToRightMasking, MirrorMasking
from adlm.diffusion.schedule import Clipped, Cosine, Geometric, Linear, LogLinear, Polynomial, Schedule
from adlm.diffusion.times import Antithetic, Independent, LowDiscrepancyTimes, Times
from adlm.diffusion.times_in_training import Bell, Window

__all__ = [
    "AnchoredMasking",
    "Antithetic",
    "Bell",
    "Clipped",
    "ConfidenceMasking",
    "Corruption",
    "Cosine",
    "CountMasking",
    "Geometric",
    "Independent",
    "LeftToRightMasking",
    "Linear",
    "LogLinear",
    "LowDiscrepancyTimes",
    "MirrorMasking",
    "Polynomial",
    "Schedule",
    "Times",
    "UniformMasking",
    "Window",
]
