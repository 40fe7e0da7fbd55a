"""Samplers are values: each takes a model and a canvas and gives a filled canvas."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.filters import Filter
from adlm.samplers.state import Sample, SamplerState, StepCallback

Needs = Literal["any", "causal", "masked", "two-stage"]


@dataclass(frozen=True)
class Sampler(ABC):
    """Args:
    filters: applied to the logits in this order before a token is drawn.
    """

    filters: tuple[Filter, ...] = ()

    @property
    def needs(self) -> Needs:
        """The models that it can write with."""
        return "any"

    def sample(
        self,
        model: LanguageModel,
        canvas: Canvas,
        *,
        noise: Noise,
        watch: StepCallback | None = None,
        stop: int | None = None,
    ) -> Sample:
        """Fill the canvas. The model's weights are not to change meanwhile.

        Args:
            watch: called after every step.
            stop: a token after which nothing of a row is wanted. Samplers that write from left to right leave a row
                there and repeat the token to its end; others have written the rest by then.
        """
        with model.inference_weights():
            board = self.board(model, canvas, noise, watch, stop)
            self.fill(board)
            return board.sample()

    def board(
        self,
        model: LanguageModel,
        canvas: Canvas,
        noise: Noise,
        watch: StepCallback | None = None,
        stop: int | None = None,
    ) -> SamplerState:
        """The board to fill; a model that the sampler cannot write with is refused."""
        return SamplerState(model, canvas, noise, watch, stop=stop, filters=self.filters)

    @abstractmethod
    def fill(self, board: SamplerState) -> None:
        """Write a token at every blank of the board."""


@dataclass(frozen=True)
class Unmasking(Sampler, ABC):
    """Args:
    stale_anchors: two-stage models compute a row's anchor stage at every so many of its passes, and only the
        denoiser at the others. Models that were not trained for it lose much.
    """

    stale_anchors: int = 1

    @property
    def needs(self) -> Needs:
        return "two-stage" if self.stale_anchors > 1 else "masked"

    def __post_init__(self) -> None:
        if self.stale_anchors < 1:
            raise ConfigError(
                f"asked for stale_anchors={self.stale_anchors}",
                "fewer than 1",
                "give 1, which is always fresh, or more",
            )

    def board(
        self,
        model: LanguageModel,
        canvas: Canvas,
        noise: Noise,
        watch: StepCallback | None = None,
        stop: int | None = None,
    ) -> SamplerState:
        if model.causal:
            raise ConfigError(
                f"asked {type(self).__name__} to unmask with a left-to-right model",
                "it only sees what is on the left",
                "use LeftToRight",
            )
        board = SamplerState(
            model, canvas, noise, watch, stop=stop, filters=self.filters, stale_anchors=self.stale_anchors
        )
        if self.stale_anchors > 1:
            board.two_stages("stale anchors")
        return board
