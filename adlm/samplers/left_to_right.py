"""One token after another, for autoregressive models."""

from dataclasses import dataclass

import torch

from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.board import Board, Watch
from adlm.samplers.canvas import Canvas
from adlm.samplers.sampler import Sampler


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """Whatever stands on the canvas is kept, but what stands to the right of a blank is not seen when it is filled."""

    def board(
        self, model: LanguageModel, canvas: Canvas, *, noise: Noise, watch: Watch | None = None, stop: int | None = None
    ) -> Board:
        if not model.causal:
            raise ConfigError(
                "asked to write left to right", "the model sees both sides and was not trained for it", "use Ancestral"
            )
        return super().board(model, canvas, noise=noise, watch=watch, stop=stop)

    def fill(self, board: Board) -> None:
        length = board.tokens.shape[1]
        for place in range(length):
            fresh = board.blank & (torch.arange(length, device=board.tokens.device) == place)
            board.look(slice(0, place + 1))
            board.reveal(fresh, 0.0)
            board.show(fresh, steps=length)
