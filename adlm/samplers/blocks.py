"""From left to right in blocks, each filled by another sampler: semi-autoregressive writing."""

from dataclasses import dataclass, field

import torch

from adlm.errors import ConfigError, OutOfRange
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.sampler import Needs, Unmasking
from adlm.samplers.state import SamplerState


@dataclass(frozen=True)
class Blocks(Unmasking):
    """Blanks to the right of a block stay blank until it is full. A row that has ended is not continued.

    Args:
        inner: fills each block. Its own filters and stale_anchors hold, with fresh anchors at the start of a block.
        size: tokens per block, counted from the first blank of each row.
        window: the network sees so many tokens at once, which lets a canvas be longer than what it was trained on:
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
            raise ConfigError(
                "Blocks takes its filters and stale_anchors from its inner sampler", subject="Blocks.filters"
            )
        if isinstance(self.inner, Blocks):
            raise ConfigError("the inner sampler of Blocks cannot be Blocks", subject="Blocks.inner")
        if self.size < 1:
            raise OutOfRange("block_size", self.size, "at least 1")
        if self.window is not None and self.window < self.size:
            raise OutOfRange("window", self.window, f"at least the block size {self.size}")

    @property
    def remasks(self) -> bool:
        return self.inner.remasks

    def setup(self, state: SamplerState) -> None:
        self.inner.setup(state)

    def fill(self, state: SamplerState) -> None:
        everywhere = state.open
        length = everywhere.shape[1]
        window = min(self.window or length, length)
        positions = torch.arange(length, device=everywhere.device)
        # Each row counts from its own first blank, so that its blocks do not depend on the rest of the batch.
        first_blank = state.blank.long().argmax(-1, keepdim=True)
        state.whole = False
        for block in range(-(-length // self.size)):
            start = first_blank + block * self.size
            end = (start + self.size).clamp_max(length)
            inside = everywhere & (positions >= start) & (positions < end)
            if state.stop is not None:
                ended = (state.tokens == state.stop) & everywhere & (positions < start)
                inside &= ~ended.any(-1, keepdim=True)
            state.open = inside
            left = (end - window).clamp_min(0)
            for seen in left[state.blank.any(-1)].unique().tolist():  # rows with the same window at a time
                state.open = inside & (left == seen)
                state.look(slice(seen, seen + window))
                self.inner.fill(state)
        state.open = everywhere
        if state.stop is not None:
            state.tokens[state.blank] = state.stop
