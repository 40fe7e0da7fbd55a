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
    """Numbers of parameters: `vocabulary` (embeddings, heads, maps of their size) and `stacks` (all others)."""

    vocabulary: int
    stacks: int

    @property
    def total(self) -> int:
        return self.vocabulary + self.stacks


@cache
def count_parameters(network: NetworkConfig, vocabulary: Vocabulary) -> Parameters:
    """Count the parameters of a network, on a network without storage, so that no formula can be out of date."""
    with torch.device("meta"):
        model = network.build(vocabulary)
    sizes = [(vocabulary.size in parameter.shape, parameter.numel()) for parameter in model.parameters()]
    return Parameters(sum(n for wide, n in sizes if wide), sum(n for wide, n in sizes if not wide))


class SiteCounts(NamedTuple):
    """The number of sites at which a row of `length` tokens is read: in block diffusion those of two copies.

    See `adlm.models.two_copies`. Others have only noisy sites, one for each token.
    """

    length: int
    noisy: int
    clean: int

    @property
    def all(self) -> int:
        return self.noisy + self.clean

    @property
    def pairs(self) -> int:
        """The number of pairs of sites whose attention score is computed, including hidden pairs."""
        return self.noisy * self.all + self.clean**2


def sites_of(network: NetworkConfig, length: int, block_size: int | None = None) -> SiteCounts:
    """The sites of a pass over rows of `length`, in blocks of the network's size, another one, or whole rows (0).

    A shifted network reads the last token of a block, if it is visible, at a site of its own. In training that is so
    in a block with probability (b - 1) / 2b.
    """
    size = network.block_size if block_size is None else block_size or length
    if network.attention != "block" or (size == 1 and network.shifted):  # blocks of one token are left to right
        return SiteCounts(length, length, 0)
    blocks = -(-length // size)
    length = blocks * size
    last = round(blocks * (size - 1) / (2 * size)) if network.shifted else 0
    return SiteCounts(length, length + last, length - size)


class ForwardWork(NamedTuple):
    """The floating-point operations of one forward pass.

    Args:
        once: per call.
        token: per token.
        output: per position whose features are needed: what the last block does after its attention.
        logits: per row of logits.
    """

    once: int
    token: int
    output: int
    logits: int

    def forward(self, tokens: int, positions: int) -> int:
        """The operations of a pass over `tokens` tokens that makes logits at some positions."""
        return self.once + tokens * self.token + positions * (self.output + self.logits)


def forward_work(
    network: NetworkConfig, vocabulary: Vocabulary, length: int, block_size: int | None = None
) -> ForwardWork:
    """The operations of a forward pass over rows of `length` tokens.

    Args:
        block_size: for block diffusion, as in `sites_of`.
    """
    _check_counted(network)
    sites = sites_of(network, length, block_size)
    row = sum(stack.layers * sum(stack.block_work(sites.all, sites.pairs)) for stack in network.stacks)
    # In the last block the row's positions alone have queries, and outputs alone what comes after attention.
    last = network.stacks[-1]
    row -= sum(last.block_work(sites.all, sites.pairs))
    row += last.block_work(sites.all, sites.length * sites.all, asking=sites.length)[0]
    after = last.block_work(1, 0)[1]
    once, handed_over = (0, 0) if network.hand_over is None else network.hand_over.work(vocabulary.size, network.width)
    token = round((2 * row + handed_over * sites.all) / length)
    return ForwardWork(once, token, 2 * after, 2 * vocabulary.size * network.width)


def _check_counted(network: NetworkConfig) -> None:
    if not network.stacks:
        raise ConfigError(
            f"the cost of {type(network).__name__} is not known: only networks of this package are counted",
            fix="train it without a plan",
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
    block_sizes: tuple[int, ...] = (),
) -> int:
    """The operations of one training step, forward and backward.

    Args:
        scored: fraction of the tokens whose loss is taken: 1 for left-to-right models, one half for masked ones.
        anchors: fraction of the tokens at which the anchor stage's loss is taken.
        block_sizes: for block diffusion, those of equal parts of a run, over which the work is averaged (0: whole
            rows); by default the network's.
    """
    tokens = rows * length
    works = [forward_work(network, vocabulary, length, size) for size in block_sizes or (None,)]
    passes = sum(work.forward(tokens, round(tokens * scored)) for work in works) / len(works)
    return round(3 * (passes + round(tokens * anchors) * works[0].logits))


def activation_bytes(
    network: NetworkConfig,
    *,
    length: int = 0,
    scored: float = 0.5,
    anchors: float = 0.0,
    short: int = 4,
    activation_checkpointing: bool = False,
    cpu: bool = False,
) -> int:
    """Bytes per token that a training step keeps for its backward pass.

    Every block keeps what `StackConfig.block_activations` says, the last one what comes after attention at scored
    positions only. Where losses are taken, the last norm's input and output and a gradient are kept too. In block
    diffusion blocks do so at all sites, and shifted networks keep a mask of what each row sees, in each stage.

    Args:
        length: of rows; needed for block diffusion, and on a CPU.
        scored, anchors: as in `training_work`.
        short: bytes of a number in matrix products: 2 in bfloat16.
        activation_checkpointing: blocks keep their input only, and one at a time all the rest.
        cpu: a CPU keeps the attention probabilities of short rows.
    """
    _check_counted(network)
    sites = sites_of(network, length or 1)
    each = sites.all / (length or 1)  # sites per token
    blocks = [(stack.layers, *stack.block_activations(short)) for stack in network.stacks]
    if kept := _kept_pairs(sites) if cpu else 0:
        # In float32, and so are queries, keys and values. Normalized queries and keys are kept once.
        more = [4 * s.heads * kept // s.width + 3 * (4 - short) - short * s.query_key_norm for s in network.stacks]
        blocks = [(layers, before + extra, after) for (layers, before, after), extra in zip(blocks, more, strict=True)]
    before, after = blocks[-1][1:]
    if activation_checkpointing:
        widths: float = each * (sum(network.layers) * 4 + before + after)
    else:
        widths = each * sum(layers * sum(kept) for layers, *kept in blocks) - (each - scored) * after
    widths += scored * (8 + short)
    if network.stages == 2:
        widths += each * 8 + anchors * 2 * short
    mask = network.stages * each * sites.noisy if sites.noisy > sites.length else 0
    return round(widths * network.width + 4 * mask)


def _kept_pairs(sites: SiteCounts) -> int:
    """Attention probabilities per site and head that a CPU keeps: those over few keys."""
    if not sites.clean:
        return sites.all if sites.all <= SHORT else 0
    noisy, clean = sites.noisy * sites.all, sites.clean**2
    return ((noisy if sites.all <= SHORT else 0) + (clean if sites.clean <= SHORT else 0)) // sites.all
