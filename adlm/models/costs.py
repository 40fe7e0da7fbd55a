"""What a network costs before it is built: parameters, the work of its matrix products, what a step keeps in memory.

Work is counted in floating-point operations, two for each multiplication with its addition; a backward pass is
twice its forward pass. Elementwise work is not counted.
"""

from functools import cache
from typing import NamedTuple

import torch

from adlm.errors import ConfigError
from adlm.models.language_model import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig


class Shape(NamedTuple):
    """The stack that a network begins with, and the layers of each of its stages."""

    stack: StackConfig
    layers: tuple[int, ...]


def shape_of(network: NetworkConfig) -> Shape:
    if isinstance(network, OneStageConfig):
        return Shape(network.stack, (network.stack.layers,))
    if isinstance(network, TwoStageConfig):
        return Shape(network.anchor, (network.anchor.layers, network.denoiser_layers))
    raise ConfigError(
        f"asked what {type(network).__name__} costs",
        "only networks of this package are counted",
        "train it without a plan",
    )


class Parameters(NamedTuple):
    """`vocabulary`: embeddings, heads, and maps as large as they; `stacks`: all the rest."""

    vocabulary: int
    stacks: int

    @property
    def total(self) -> int:
        return self.vocabulary + self.stacks


@cache
def count_parameters(network: NetworkConfig, vocabulary: Vocabulary) -> Parameters:
    """Counted on a network without storage, so that no formula can be out of date."""
    with torch.device("meta"):
        model = network.build(vocabulary)
    sizes = [(vocabulary.size in parameter.shape, parameter.numel()) for parameter in model.parameters()]
    return Parameters(sum(n for wide, n in sizes if wide), sum(n for wide, n in sizes if not wide))


class ForwardWork(NamedTuple):
    """Operations of one forward pass: `once` a call; for each token; for each wanted position, what the last block
    does after its attention; for each row of logits."""

    once: int
    token: int
    output_mask: int
    logits: int

    def forward(self, tokens: int, positions: int) -> int:
        """Of a pass over so many tokens that makes logits at so many positions."""
        return self.once + tokens * self.token + positions * (self.output_mask + self.logits)


def forward_work(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> ForwardWork:
    """Of rows of `length` tokens."""
    stack, layers = shape_of(network)
    work = _work(stack, sum(layers), length, vocabulary.size)
    if not isinstance(network, TwoStageConfig):
        return work
    once, token = network.hand_over.work(vocabulary.size, stack.width)
    return work._replace(once=once, token=work.token + token)


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
        scored: fraction of the tokens whose loss is taken: 1 for left-to-right models, one half of a masked one's.
        anchors: fraction of the tokens at which the anchor stage's loss is taken.
    """
    tokens = rows * length
    work = forward_work(network, vocabulary, length)
    return 3 * (work.forward(tokens, round(tokens * scored)) + round(tokens * anchors) * work.logits)


def activation_bytes(
    network: NetworkConfig,
    *,
    scored: float = 0.5,
    anchors: float = 0.0,
    short: int = 4,
    activation_checkpointing: bool = False,
) -> int:
    """What a training step keeps of each token for its backward pass.

    A block keeps, in widths: the residual stream before each half, in float32; and in the type of its matrix products
    its two normalised inputs, q, k, v, what the heads gather, and the MLP before and after its nonlinearity, 6 + 2
    ratio in all. Dropout adds 2, a convolution 1, normalised queries and keys 3, the time 2 of float32 and 2 more. The
    last block keeps what comes after attention at scored positions alone. Where losses are taken, the last norm's
    input and output and a gradient are kept too.

    Args:
        scored, anchors: as in `training_work`.
        short: bytes of a number in matrix products: 2 in bfloat16.
        recompute: blocks keep their input alone, and one at a time all the rest.
    """
    stack, layers = shape_of(network)
    before = 4 + short * (5 + bool(stack.convolution) + 3 * stack.query_key_norm) + 4 * stack.timed
    after = 4 + short * (1 + 2 * stack.mlp_ratio + 2 * bool(stack.dropout)) + (4 + 2 * short) * stack.timed
    widths = sum(layers) * (before + after) - (1 - scored) * after
    if activation_checkpointing:
        widths = sum(layers) * 4 + before + after
    widths += scored * (8 + short)
    if len(layers) == 2:
        widths += 8 + anchors * 2 * short
    return round(widths * stack.width)


def _work(stack: StackConfig, layers: int, length: int, size: int) -> ForwardWork:
    """Maps of 4 + 2 ratio times D x D a layer, 3 of them before attention; and a row of attention scores twice."""
    square = stack.width**2
    after = (1 + 2 * stack.mlp_ratio) * square
    token = layers * (3 * square + after + 2 * length * stack.width) - after
    return ForwardWork(0, 2 * token, 2 * after, 2 * size * stack.width)
