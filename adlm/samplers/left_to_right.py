"""One token after another, for autoregressive models."""

from dataclasses import dataclass

import torch

from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.sampler import Needs, Sampler
from adlm.samplers.state import SamplerState, StepCallback


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """Writes one token after another, as autoregressive models do.

    Whatever stands on the canvas is kept, but what stands to the right of a blank is not seen when it is filled.

    Each position goes through the network once: its keys and values are kept. What all rows have in front of their
    next blank is read in one call. A row that has no more blanks leaves the batch, as does one that has ended.
    """

    @property
    def needs(self) -> Needs:
        return "causal"

    def board(
        self,
        model: LanguageModel,
        canvas: Canvas,
        noise: Noise,
        watch: StepCallback | None = None,
        stop: int | None = None,
    ) -> SamplerState:
        if not model.causal:
            raise ConfigError(
                "asked to write left to right", "the model sees both sides and was not trained for it", "use Ancestral"
            )
        return super().board(model, canvas, noise, watch, stop)

    def fill(self, board: SamplerState) -> None:
        length = board.tokens.shape[1]
        positions = torch.arange(length, device=board.tokens.device)
        reading = board.blank.any(-1)  # [B] bool: rows in the cache
        rows = int(reading.sum())
        cache = board.model.cache(rows, length, t=torch.zeros(rows, device=reading.device))
        read = 0
        for position in range(length):
            blank = board.blank
            fresh = blank & (positions == position)
            if bool(fresh.any()):
                unfinished = blank.any(-1)
                if bool((reading & ~unfinished).any()):
                    cache.keep(unfinished[reading])
                    reading = unfinished
                features = board.model.extend(board.tokens[reading, read:position], cache)
                read = position
                board.row_calls += cache.rows
                board.anchor_row_calls += cache.rows if features.anchor is not None else 0
                board.write(fresh, *board.draw(features.final[fresh[reading, position]], fresh))
                if board.stop is not None:
                    ended = (fresh & (board.tokens == board.stop)).any(-1, keepdim=True)
                    rest = board.blank & ended
                    board.tokens[rest] = board.stop
                    fresh = fresh | rest
            board.show(fresh, steps=length)
