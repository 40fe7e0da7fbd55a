"""Anchor rules. All are imported here, so that a stored configuration finds its rule whichever module is used."""

from adlm.anchors.corpus import RareInCorpus, TfIdf
from adlm.anchors.places import AtPlaces
from adlm.anchors.rules import AnchorRule, EveryToken, Given, NoToken, RandomShare, RareInSequence, TypeRule
from adlm.anchors.words import ContentWords

__all__ = [
    "AnchorRule",
    "AtPlaces",
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
