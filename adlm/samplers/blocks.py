"""From left to right in blocks, each filled by another sampler: block diffusion, and semi-autoregressive writing."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.errors import ConfigError, OutOfRange
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.block_reader import BlockReader
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.network import Network
from adlm.samplers.sampler import Needs, Sampler, Unmasking
from adlm.samplers.state import SamplerState


class BlockLayout(NamedTuple):
    """Where the blocks of a row are: `size` tokens each, counted from the row's first position or its first blank."""

    size: int
    from_start: bool

    def first(self, first_blank: int) -> int:
        """The position from which blocks are counted."""
        return 0 if self.from_start else first_blank


def block_layout(sampler: Sampler, network: Network) -> BlockLayout | None:
    """The blocks that a sampler fills one after another with a network; None if it does not write in blocks."""
    sampler, network = sampler.suited(network)
    if not isinstance(sampler, Blocks):
        return None
    aligned = network.attention == "block"
    return BlockLayout(network.block_size if aligned else sampler.size, aligned)


@dataclass(frozen=True)
class Blocks(Unmasking):
    """Blanks to the right of a block stay blank until it is full. A row that has ended is not continued.

    Networks with block-causal attention compute the current block alone: what is before it is cached, exactly. Their
    blocks are those of training, counted from the start of the row; others count from the first blank of each row.

    Args:
        inner: fills each block. Its own filters and stale_anchors hold, with fresh anchors at the start of a block.
        size: tokens per block. For networks that can be read in several ways, 1 is left to right and 0 the whole row.
        window: the network sees this many tokens at once, which lets a canvas be longer than what it was trained on:
            all of it at first, then the part that ends with the block. None: always the whole canvas.
    """

    inner: Unmasking = field(default_factory=Ancestral)
    size: int = 32
    window: int | None = None

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filters or self.stale_anchors != 1:
            name = "filters" if self.filters else "stale_anchors"
            raise ConfigError(f"Blocks takes its {name} from its inner sampler", subject=f"Blocks.{name}")
        if isinstance(self.inner, Blocks):
            raise ConfigError("the inner sampler of Blocks cannot be Blocks", subject="Blocks.inner")
        if self.size < 0:
            raise OutOfRange("block_size", self.size, "at least 1, or 0 for whole rows")
        if self.window is not None and self.window < self.size:
            raise OutOfRange("window", self.window, f"at least the block size {self.size}")

    @property
    def remasks(self) -> bool:
        return self.inner.remasks

    def suited(self, network: Network) -> tuple[Sampler, Network]:
        if network.attention == "block" or (network.shifted and not network.causal):
            network = network.in_blocks(self.size)
        if network.causal and self.size == 1:
            return LeftToRight(self.inner.filters), network
        return (self if self.size else self.inner), network

    def setup(self, state: SamplerState) -> None:
        self.inner.setup(state)

    def fill(self, state: SamplerState) -> None:
        if state.network.attention == "block":
            self._fill_cached(state)
        else:
            self._fill_windows(state)

    def _fill_cached(self, state: SamplerState) -> None:
        walk = BlockWalk(state)
        while walk.begin_block():
            self.inner.fill(state)
            walk.end_block()
        walk.end()

    def _fill_windows(self, state: SamplerState) -> None:
        everywhere = state.open
        length = everywhere.shape[1]
        window = min(self.window or length, length)
        positions = torch.arange(length, device=everywhere.device)
        # Each row counts from its own first blank, so that its blocks do not depend on the rest of the batch.
        first_blank = state.blank.long().argmax(-1, keepdim=True)
        state.whole = False
        over = torch.zeros_like(everywhere[:, :1])  # rows that have ended
        for block in range(-(-length // self.size)):
            start = first_blank + block * self.size
            end = (start + self.size).clamp_max(length)
            state.open = inside = everywhere & (positions >= start) & (positions < end) & ~over
            left = (end - window).clamp_min(0)
            for seen in left[state.blank.any(-1)].unique().tolist():  # rows with the same window at a time
                state.open = inside & (left == seen)
                state.look(slice(seen, seen + window))
                self.inner.fill(state)
            state.open = inside
            over |= _ended(state)[:, None]
        state.open = everywhere
        _fill_ended(state)


class BlockWalk:
    """A canvas on its way through its blocks, for networks that cache finished ones.

    Rows stand at blocks of their own. Whoever walks fills the open blocks of all rows in each step.
    """

    def __init__(self, state: SamplerState) -> None:
        self.state, self._everywhere = state, state.open
        self._positions = torch.arange(state.open.shape[1], device=state.open.device)
        self._over = torch.zeros_like(state.open[:, 0])  # rows whose text has ended
        state.whole = False
        self.reader = state.reader = BlockReader(state.network, state.tokens, state.stale_anchors)

    def begin_block(self) -> bool:
        """Open the first block with a blank in every row that has not ended. False: there is none."""
        state, size = self.state, self.state.network.block_size
        blank = state.blank
        unfinished = blank.any(-1) & ~self._over
        if not bool(unfinished.any()):
            return False
        start = blank.long().argmax(-1) // size * size
        begin = start[:, None]
        self.reader.move(start)
        inside = (self._positions >= begin) & (self._positions < begin + size)
        state.open = self._everywhere & unfinished[:, None] & inside
        return True

    def end_block(self) -> None:
        """Close the blocks, which are full now."""
        self._over |= _ended(self.state)
        self.state.open = self._everywhere

    def end(self) -> None:
        """Leave what is behind the end of a text."""
        self.state.count(self.reader)
        _fill_ended(self.state)


def _ended(state: SamplerState) -> Tensor:
    """[B] bool: rows whose text ends in the open block."""
    if state.stop is None:
        return torch.zeros_like(state.open[:, 0])
    ended = ((state.tokens == state.stop) & state.open).any(-1)
    complete = state.complete(state.open.any(-1) & ~ended)
    return ended if complete is None else ended | complete


def _fill_ended(state: SamplerState) -> None:
    """Write the stop token at the blanks of rows that have ended."""
    if state.stop is not None:
        state.tokens[state.blank] = state.stop
