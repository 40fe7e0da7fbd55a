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
    """Operations of one forward pass: `once` a call; for each token; for each wanted position, what the last block
    does after its attention; for each row of logits."""

    once: int
    token: int
    wanted: int
    logits: int

    def forward(self, tokens: int, positions: int) -> int:
        """Of a pass over so many tokens that makes logits at so many positions."""
        return self.once + tokens * self.token + positions * (self.wanted + self.logits)


def forward_work(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> Work:
    """Of rows of `length` tokens."""
    size = vocabulary.size
    if isinstance(network, OneStageConfig):
        return _work(network.stack, network.stack.layers, length, size)
    if isinstance(network, TwoStageConfig):
        layers = network.anchor.layers + network.denoiser_layers
        once, token = network.hand_over.work(size, network.anchor.width)
        work = _work(network.anchor, layers, length, size)
        return work._replace(once=once, token=work.token + token)
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
    work = forward_work(network, vocabulary, length)
    return 3 * (work.forward(tokens, round(tokens * scored)) + round(tokens * anchors) * work.logits)


def _work(stack: StackConfig, layers: int, length: int, size: int) -> Work:
    """Maps of 4 + 2 ratio times D x D a layer, 3 of them before attention; and a row of attention scores twice."""
    square = stack.width**2
    after = (1 + 2 * stack.mlp_ratio) * square
    token = layers * (3 * square + after + 2 * length * stack.width) - after
    return Work(0, 2 * token, 2 * after, 2 * size * stack.width)
