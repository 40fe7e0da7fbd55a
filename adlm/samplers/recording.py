"""A network that keeps what it predicted at every blank, in the passes that a sampler makes anyway."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.models.block_cache import FinishedBlocks
from adlm.models.cache import Cache
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import BlockFeatures
from adlm.samplers.canvas import Canvas
from adlm.samplers.network import Network, NetworkWrapper, anchor_predictions
from adlm.samplers.sampler import FillsTogether, Sampler
from adlm.samplers.state import SamplerState, slice_size
from adlm.types import Features


class BlankPredictions(NamedTuple):
    """Logits [n, V] at n blanks of a row: of the network, and of its anchor stage if it has one."""

    positions: list[int]
    logits: Tensor
    anchor: Tensor | None


class RecordingNetwork(NetworkWrapper):
    """Tells `record` what is predicted at all blanks of a canvas with one row, before any filter.

    Features are computed at all open blanks instead of those alone where the sampler writes. A pass over a window of
    the canvas is not recorded.
    """

    def __init__(self, network: Network, canvas: Canvas, record: Callable[[BlankPredictions], None]) -> None:
        super().__init__(network)
        self.open, self.record = ~canvas.frozen[:1], record
        self._narrow: Tensor | None = None  # the features given out last, and their logits
        self._logits: Tensor | None = None

    def fill(self, sampler: Sampler, state: SamplerState) -> bool:
        """Fill a state together with those of others, if the network does that."""
        return isinstance(self.network, FillsTogether) and self.network.fill(sampler, state, self.record)

    def features(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Features:
        if output_mask is None or tokens.shape != self.open.shape:
            return self.network.features(tokens, t, segments=segments, output_mask=output_mask)
        blanks = self._with_blanks(tokens, output_mask)
        found = self.network.features(tokens, t, segments=segments, output_mask=blanks)
        anchor = None if found.anchor is None else found.anchor[blanks]
        return found._replace(final=self._recorded(blanks, output_mask, found.final, anchor))

    def denoise(
        self,
        stage: AnchorState,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor:
        if output_mask is None or tokens.shape != self.open.shape:
            return self.network.denoise(stage, tokens, t, segments=segments, output_mask=output_mask)
        blanks = self._with_blanks(tokens, output_mask)
        final = self.network.denoise(stage, tokens, t, segments=segments, output_mask=blanks)
        return self._recorded(blanks, output_mask, final, stage.anchor[blanks])

    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
        found = self.network.extend(tokens, cache, every=every)
        if not every:
            anchor = None if found.anchor is None else found.anchor[:, -1]
            self._logits = self._tell([cache.length - 1], found.final, anchor)
            self._narrow = found.final
        return found

    def read_block(
        self,
        tokens: Tensor,
        start: list[int],
        cache: FinishedBlocks,
        *,
        rows: list[int] | None = None,
        output_mask: Tensor | None = None,
        stage: AnchorState | None = None,
        left_to_right: bool = False,
    ) -> BlockFeatures:
        if output_mask is None or left_to_right or tokens.shape != self.open.shape:
            return self.network.read_block(
                tokens, start, cache, rows=rows, output_mask=output_mask, stage=stage, left_to_right=left_to_right
            )
        inside = torch.zeros_like(output_mask)
        inside[:, start[0] : start[0] + self.block_size] = True
        blanks = self._with_blanks(tokens, output_mask) & inside
        found = self.network.read_block(tokens, start, cache, rows=rows, output_mask=blanks, stage=stage)
        anchor = None if found.stage is None else found.stage.anchor[0, blanks[0].nonzero()[:, 0] - start[0]]
        return found._replace(final=self._recorded(blanks, output_mask, found.final, anchor))

    def logits(self, final: Tensor) -> Tensor:
        if final is self._narrow and self._logits is not None:
            return self._logits
        return self.network.logits(final)

    def _with_blanks(self, tokens: Tensor, output_mask: Tensor) -> Tensor:
        return output_mask | ((tokens == self.vocabulary.mask_id) & self.open.to(tokens.device))

    def _recorded(self, where: Tensor, output_mask: Tensor, final: Tensor, anchor: Tensor | None) -> Tensor:
        """Records what features [N, D] at `where` predict; gives those at `output_mask`."""
        logits, kept = self._tell(where[0].nonzero()[:, 0].tolist(), final, anchor), output_mask[where]
        self._narrow, self._logits = final[kept], None if logits is None else logits[kept]
        return self._narrow

    def _tell(self, positions: list[int], final: Tensor, anchor: Tensor | None) -> Tensor | None:
        """Record a slice at a time. Gives the logits where they are one slice."""
        size, logits = slice_size(self.vocabulary.size), None
        for start in range(0, len(positions), size):
            part = slice(start, start + size)
            logits = self.network.logits(final if len(positions) <= size else final[part])
            stage = None if anchor is None else anchor_predictions(self.network, anchor[part])
            self.record(BlankPredictions(positions[part], logits, stage))
        return logits if len(positions) <= size else None
