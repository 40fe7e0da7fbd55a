"""Anchor rules. All are imported here, so that a stored configuration finds its rule whichever module is used."""

from adlm.anchors.corpus import RareInCorpus, TfIdf
from adlm.anchors.rules import AnchorRule, EveryToken, Given, NoToken, RandomShare, RareInSequence, TypeRule
from adlm.anchors.words import ContentWords

__all__ = [
    "AnchorRule",
    "ContentWords",
    "EveryToken",
    "Given",
    "NoToken",
    "RandomShare",
    "RareInCorpus",
    "RareInSequence",
    "TfIdf",
    "TypeRule",
]
