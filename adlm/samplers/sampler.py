"""Samplers are values: each takes a network and a canvas and gives a filled canvas.

A new one is a frozen dataclass with one method, `fill(state)`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from adlm.errors import ConfigError, OutOfRange
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.filters import Filter
from adlm.samplers.network import Network
from adlm.samplers.state import DrawCallback, Sample, SamplerState, StepCallback
from adlm.samplers.stopping import StopRule

Needs = Literal["any", "causal", "masked", "two-stage", "shifted blocks"]


@runtime_checkable
class FillsTogether(Protocol):
    """A network that may fill the states of several callers together. `RecordingNetwork` hands `record` on."""

    def fill(self, sampler: "Sampler", state: SamplerState, record: Any = None) -> bool:
        """Fill a state as the sampler does. False: it has to be filled alone."""
        ...


@dataclass(frozen=True)
class Sampler(ABC):
    """A way to fill a canvas.

    Args:
        filters: applied to the logits in this order before a token is drawn.
    """

    filters: tuple[Filter, ...] = ()

    @property
    def needs(self) -> Needs:
        """The models that it can write with."""
        return "any"

    def sample(
        self,
        network: Network,
        canvas: Canvas,
        *,
        noise: Noise,
        on_step: StepCallback | None = None,
        on_draw: DrawCallback | None = None,
        stop: int | StopRule | None = None,
    ) -> Sample:
        """Fill the canvas. The network's weights must not change meanwhile.

        Args:
            on_step: called after every step.
            on_draw: called with every distribution that tokens are drawn from.
            stop: a token that ends a row, or a rule. Samplers that write from left to right leave the row there and
                repeat the token to its end, those that write in blocks after the block; others have written the rest
                by then.
        """
        with network.inference_weights():
            sampler, network = self.suited(network)
            state = sampler.start(network, canvas, noise, on_step=on_step, on_draw=on_draw, stop=stop)
            if not (isinstance(network, FillsTogether) and network.fill(sampler, state)):
                sampler.fill(state)
            return state.sample()

    def suited(self, network: Network) -> "tuple[Sampler, Network]":
        """This sampler as it writes with a network, and the network as it is read: in blocks, or left to right."""
        return self, network

    def start(
        self,
        network: Network,
        canvas: Canvas,
        noise: Noise,
        *,
        on_step: StepCallback | None = None,
        on_draw: DrawCallback | None = None,
        stop: int | StopRule | None = None,
    ) -> SamplerState:
        """A new state to fill."""
        state = SamplerState(network, canvas, noise, on_step=on_step, on_draw=on_draw, stop=stop)
        self.setup(state)
        return state

    def setup(self, state: SamplerState) -> None:
        """Set up a new state; a network that the sampler cannot use is refused."""
        state.filters = self.filters

    @property
    def remasks(self) -> bool:
        """Whether it may mask again what it has written."""
        return False

    @abstractmethod
    def fill(self, state: SamplerState) -> None:
        """Write a token at every blank of the state."""


@dataclass(frozen=True)
class Unmasking(Sampler, ABC):
    """A sampler for networks that see both sides of a blank.

    Args:
        stale_anchors: two-stage networks compute a row's anchor stage at every so many of its passes, and only the
            denoiser at the others. Networks that were not trained for it lose much.
    """

    stale_anchors: int = 1

    @property
    def needs(self) -> Needs:
        return "two-stage" if self.stale_anchors > 1 else "masked"

    def __post_init__(self) -> None:
        if self.stale_anchors < 1:
            raise OutOfRange("stale_anchors", self.stale_anchors, "at least 1")

    def suited(self, network: Network) -> tuple[Sampler, Network]:
        if network.attention != "block":
            return self, network
        from adlm.samplers.blocks import Blocks  # which is made of these

        return Blocks(inner=self, size=network.block_size), network

    def setup(self, state: SamplerState) -> None:
        if state.network.causal:
            raise ConfigError(
                f"{type(self).__name__} cannot sample from a left-to-right model, which sees only what is on the left",
                fix="use LeftToRight",
                subject=type(self).__name__,
            )
        super().setup(state)
        state.stale_anchors = self.stale_anchors
        if self.stale_anchors > 1:
            state.check_two_stages("stale_anchors")
