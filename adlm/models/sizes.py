"""Networks by name: kinds (AR, MDLM, ADLM, A2R) times sizes, in their published form.

`small` is the papers': 12 layers of width 768, and half as many in the second stage. `tiny` is the official
repository's; `medium` has GPT-2 medium's shape; `nano` and `micro` are for a CPU.
"""

from collections.abc import Callable
from dataclasses import replace

from adlm.errors import UnknownName
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig

SIZES = {
    "nano": StackConfig(width=128, heads=4, layers=4),
    "micro": StackConfig(width=256, heads=4, layers=6),
    "tiny": StackConfig(width=512, heads=8, layers=8),
    "small": StackConfig(width=768, heads=12, layers=12),
    "medium": StackConfig(width=1024, heads=16, layers=24),
}


def _one(stack: StackConfig) -> NetworkConfig:
    return OneStageConfig(stack)


def _two(stack: StackConfig) -> NetworkConfig:
    return TwoStageConfig(stack, stack.layers // 2)


def _causal(stack: StackConfig) -> StackConfig:
    """Left-to-right networks have plain norms: there is no time to tell them."""
    return replace(stack, attention="causal", condition=0)


KINDS: dict[str, Callable[[StackConfig], NetworkConfig]] = {
    "ar": lambda stack: _one(_causal(stack)),
    "mdlm": _one,
    "adlm": _two,
    "a2r": lambda stack: _two(_causal(stack)),
}


def published(kind: str, size: str, *, dropout: float = 0.1) -> NetworkConfig:
    """A network as published: untied, rotary positions; masked ones with norms adapted to a time that is always 0."""
    if kind not in KINDS:
        raise UnknownName("kind of network", kind, KINDS)
    if size not in SIZES:
        raise UnknownName("size", size, SIZES)
    return KINDS[kind](replace(SIZES[size], condition=128, dropout=dropout))
