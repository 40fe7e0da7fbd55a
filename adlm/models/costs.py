"""What a network costs before it is built: parameters, the work of its matrix products, the memory of a step.

Work is counted in floating-point operations, two for each multiplication with its addition; a backward pass is
twice its forward pass. Elementwise work is not counted.
"""

from functools import cache
from typing import NamedTuple

import torch

from adlm.errors import ConfigError
from adlm.models.hand_gradients import SHORT
from adlm.models.network import NetworkConfig, Vocabulary


class Parameters(NamedTuple):
    """`vocabulary`: embeddings, heads, and maps of their size; `stacks`: all the rest."""

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
    """Operations of one forward pass.

    Args:
        once: per call.
        token: per token.
        output: per position whose features are asked for: what the last block does after its attention.
        logits: per row of logits.
    """

    once: int
    token: int
    output: int
    logits: int

    def forward(self, tokens: int, positions: int) -> int:
        """Of a pass over so many tokens that makes logits at so many positions."""
        return self.once + tokens * self.token + positions * (self.output + self.logits)


def forward_work(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> ForwardWork:
    """Of rows of `length` tokens."""
    _check_counted(network)
    blocks = [(stack.layers, *stack.block_work(length)) for stack in network.stacks]
    after = blocks[-1][2]
    token = 2 * (sum(layers * (before + rest) for layers, before, rest in blocks) - after)
    once, handed_over = (0, 0) if network.hand_over is None else network.hand_over.work(vocabulary.size, network.width)
    return ForwardWork(once, token + handed_over, 2 * after, 2 * vocabulary.size * network.width)


def _check_counted(network: NetworkConfig) -> None:
    if not network.stacks:
        raise ConfigError(
            f"asked what {type(network).__name__} costs",
            "only networks of this package are counted",
            "train it without a plan",
            subject=type(network).__name__,
        )


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
        scored: fraction of the tokens whose loss is taken: 1 for left-to-right models, one half for masked ones.
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
    cpu_length: int = 0,
) -> int:
    """Bytes per token that a training step keeps for its backward pass.

    Every block keeps what `StackConfig.block_activations` says, the last one what comes after attention at scored
    positions only. Where losses are taken, the last norm's input and output and a gradient are kept too.

    Args:
        scored, anchors: as in `training_work`.
        short: bytes of a number in matrix products: 2 in bfloat16.
        activation_checkpointing: blocks keep their input only, and one at a time all the rest.
        cpu_length: length of rows on a CPU, which keeps the attention probabilities of short ones; 0 elsewhere.
    """
    _check_counted(network)
    blocks = [(stack.layers, *stack.block_activations(short)) for stack in network.stacks]
    if 0 < cpu_length <= SHORT:
        # In float32, and so are queries, keys and values. Normalised queries and keys are kept once.
        more = [
            4 * s.heads * cpu_length // s.width + 3 * (4 - short) - short * s.query_key_norm for s in network.stacks
        ]
        blocks = [(layers, before + extra, after) for (layers, before, after), extra in zip(blocks, more, strict=True)]
    before, after = blocks[-1][1:]
    if activation_checkpointing:
        widths: float = sum(network.layers) * 4 + before + after
    else:
        widths = sum(layers * sum(kept) for layers, *kept in blocks) - (1 - scored) * after
    widths += scored * (8 + short)
    if network.stages == 2:
        widths += 8 + anchors * 2 * short
    return round(widths * network.width)
