"""Anchor rules: which tokens are important."""

from adlm.anchors.corpus import RareInCorpus, TfIdf
from adlm.anchors.positions import AtPositions
from adlm.anchors.rules import AnchorRule, EveryToken, Given, NoToken, RandomFraction, RareInSequence, TypeRule
from adlm.anchors.words import ContentWords

__all__ = [
    "AnchorRule",
    "AtPositions",
    "ContentWords",
    "EveryToken",
    "Given",
    "NoToken",
    "RandomFraction",
    "RareInCorpus",
    "RareInSequence",
    "TfIdf",
    "TypeRule",
]
