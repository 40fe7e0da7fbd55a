"""What a network costs before it is built: parameters, and the work of its matrix products.

Work is counted in floating-point operations, two for each multiplication with its addition; a backward pass is
twice its forward pass. Elementwise work is not counted.
"""

from typing import NamedTuple

import torch

from adlm.models.language_model import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig


class Parameters(NamedTuple):
    """`vocabulary`: embeddings, heads, and maps as large as they; `stacks`: all the rest."""

    vocabulary: int
    stacks: int

    @property
    def total(self) -> int:
        return self.vocabulary + self.stacks


def count_parameters(network: NetworkConfig, vocabulary: Vocabulary) -> Parameters:
    """Counted on a network without storage, so that no formula can be out of date."""
    with torch.device("meta"):
        model = network.build(vocabulary)
    sizes = [(vocabulary.size in parameter.shape, parameter.numel()) for parameter in model.parameters()]
    return Parameters(sum(n for wide, n in sizes if wide), sum(n for wide, n in sizes if not wide))


class Work(NamedTuple):
    """Operations of one forward pass: `once` a call, for each token, for each position whose logits are made."""

    once: int
    token: int
    logits: int

    def forward(self, tokens: int, positions: int) -> int:
        return self.once + tokens * self.token + positions * self.logits


def forward_work(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> Work:
    """Of rows of `length` tokens."""
    size = vocabulary.size
    if isinstance(network, OneStageConfig):
        return Work(0, _stack_work(network.stack, network.stack.layers, length), 2 * size * network.stack.width)
    if isinstance(network, TwoStageConfig):
        layers = network.anchor.layers + network.denoiser_layers
        once, token = network.hand_over.work(size, network.anchor.width)
        return Work(once, _stack_work(network.anchor, layers, length) + token, 2 * size * network.anchor.width)
    raise TypeError(f"no count of work for {type(network).__name__}")


def training_work(
    network: NetworkConfig,
    vocabulary: Vocabulary,
    *,
    length: int,
    rows: int,
    scored: float = 0.5,
    anchors: float = 0.0,
) -> int:
    """Of one step, forward and backward.

    Args:
        scored: share of the tokens whose loss is taken: 1 for left-to-right models, one half of a masked one's.
        anchors: share of the tokens at which the anchor stage's loss is taken.
    """
    tokens = rows * length
    return 3 * forward_work(network, vocabulary, length).forward(tokens, round(tokens * (scored + anchors)))


def _stack_work(stack: StackConfig, layers: int, length: int) -> int:
    """For each token: maps of 4 + 2 ratio times D x D a layer, and a row of attention scores twice."""
    maps = (4 + 2 * stack.mlp_ratio) * stack.width**2
    return 2 * layers * (maps + 2 * length * stack.width)
