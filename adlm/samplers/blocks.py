"""From left to right in blocks, each filled by another sampler: semi-autoregressive writing."""

from dataclasses import dataclass, field

import torch

from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.canvas import Canvas
from adlm.samplers.sampler import Needs, Unmasking
from adlm.samplers.state import SamplerState, StepCallback


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
                "asked for Blocks with filters or stale anchors", "the inner sampler has its own", "give them to it"
            )
        if isinstance(self.inner, Blocks):
            raise ConfigError("asked for blocks of blocks", "one size decides", "give Blocks another inner sampler")
        if self.size < 1 or (self.window is not None and self.window < self.size):
            raise ConfigError(
                f"asked for blocks of {self.size} tokens seen through a window of {self.window}",
                "a block must have a token and fit into the window",
                "mend them",
            )

    def board(
        self,
        model: LanguageModel,
        canvas: Canvas,
        noise: Noise,
        watch: StepCallback | None = None,
        stop: int | None = None,
    ) -> SamplerState:
        return self.inner.board(model, canvas, noise, watch, stop)

    def fill(self, board: SamplerState) -> None:
        everywhere = board.open
        length = everywhere.shape[1]
        window = min(self.window or length, length)
        positions = torch.arange(length, device=everywhere.device)
        # Each row counts from its own first blank, so that its blocks do not depend on the rest of the batch.
        first_blank = board.blank.long().argmax(-1, keepdim=True)
        board.whole = False
        for block in range(-(-length // self.size)):
            start = first_blank + block * self.size
            end = (start + self.size).clamp_max(length)
            inside = everywhere & (positions >= start) & (positions < end)
            if board.stop is not None:
                ended = (board.tokens == board.stop) & everywhere & (positions < start)
                inside &= ~ended.any(-1, keepdim=True)
            board.open = inside
            left = (end - window).clamp_min(0)
            for seen in left[board.blank.any(-1)].unique().tolist():  # rows with the same window at a time
                board.open = inside & (left == seen)
                board.look(slice(seen, seen + window))
                self.inner.fill(board)
        board.open = everywhere
        if board.stop is not None:
            board.tokens[board.blank] = board.stop
