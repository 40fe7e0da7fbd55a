"""What a network looks like before it is built, and what callers may ask about it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from adlm.errors import ConfigError, OutOfRange
from adlm.models.stack import Attention, StackConfig

if TYPE_CHECKING:
    from adlm.models.hand_over import HandOver
    from adlm.models.language_model import LanguageModel

# What can be kept of the positions that were read, so that later ones need not read them again.
CacheKind = Literal["tokens", "blocks"]


@dataclass(frozen=True)
class Vocabulary:
    """The number of token ids, mask included, and the id of the mask."""

    size: int
    mask_id: int

    def __post_init__(self) -> None:
        if not 0 <= self.mask_id < self.size:
            raise OutOfRange("mask_id", self.mask_id, f"from 0 to {self.size - 1}, a token of the vocabulary")


def cache_kind_of(attention: Attention) -> CacheKind | None:
    """The kind of cache that a network with this attention can have: what no later position will change."""
    kinds: dict[Attention, CacheKind | None] = {"causal": "tokens", "block": "blocks", "full": None}
    return kinds[attention]


@dataclass(frozen=True)
class NetworkConfig(ABC):
    """The shape of a network, independent of its vocabulary.

    Its properties are the capabilities that callers may rely on. Those that concern a built network are attributes of
    `LanguageModel` under the same names.
    """

    # Not fields: networks with two stages have a field of the first name, those made of stacks the others.
    hand_over = cast("HandOver | None", None)
    block_size = 0
    shift = False
    start = cast("int | None", None)

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> "LanguageModel":
        """The network with random weights."""

    @property
    @abstractmethod
    def stacks(self) -> tuple[StackConfig, ...]:
        """The stack of each stage; empty if the network is not made of stacks of this package."""

    @property
    def stages(self) -> int:
        """The number of stages: 1, or 2 if an anchor stage comes before the denoiser."""
        return max(1, len(self.stacks))

    @property
    def layers(self) -> tuple[int, ...]:
        """The depth of each stack."""
        return tuple(stack.layers for stack in self.stacks)

    @property
    def width(self) -> int:
        """The size D of the features."""
        return self.stacks[0].width

    @property
    def attention(self) -> Attention:
        """Which positions a position sees, in the last stage."""
        return self.stacks[-1].attention

    @property
    def causal(self) -> bool:
        """Whether positions see only what is to their left."""
        return self.attention == "causal"

    @property
    def cache_kind(self) -> CacheKind | None:
        """The kind of cache the network can have; None means none."""
        return cache_kind_of(self.attention)

    @property
    def shifted(self) -> bool:
        """Whether position l reads token l - 1, so that it may predict token l without seeing it."""
        return self.shift or self.causal or any(stack.causal for stack in self.stacks)

    @property
    def blind_anchor(self) -> bool:
        """Whether the anchor stage sees finished blocks only, so that it need be computed once per block."""
        return self.stages == 2 and self.stacks[0].causal and not self.causal

    @property
    def time_conditioned(self) -> bool:
        """Whether the network is conditioned on the time of each row."""
        return any(stack.timed for stack in self.stacks)

    @property
    def learned_positions(self) -> int:
        """The number of positions with a learned vector, beyond which rows cannot be read; 0 means no limit."""
        return 0

    def variant(self, *, layers: tuple[int, ...] | None = None, **changes: Any) -> "NetworkConfig":
        """The same network with other settings.

        Args:
            layers: depth of each stage.
            changes: fields of the network (`positions=0`, `hand_over=Logits()`) or of all its stacks
                (`attention="causal"`).
        """
        if not self.stacks:
            raise ConfigError(f"{type(self).__name__} has no stacks that could be changed", subject=type(self).__name__)
        own = {field.name for field in fields(self)}
        of_stacks = {name: value for name, value in changes.items() if name not in own}
        depths = self.layers if layers is None else layers
        stacks = [replace(stack, layers=n, **of_stacks) for stack, n in zip(self.stacks, depths, strict=True)]
        return self._with_stacks(*stacks, **{name: changes[name] for name in changes.keys() & own})

    def check_blocks(self) -> None:
        """Refuse a size without blocks, blocks without a size, a start that nothing reads, and a shifted masked network
        that is conditioned on time."""
        if (self.block_size > 0) != (self.attention == "block"):
            raise ConfigError(
                f"attention='block' needs block_size of at least 1, and other attention block_size=0; got "
                f"attention={self.attention!r}, block_size={self.block_size}",
                subject="block_size",
            )
        if self.start is not None and not self.shifted:
            raise ConfigError("only shifted networks have a start: set shift=True", subject="start")
        if self.shift and self.time_conditioned and not self.causal:
            raise ConfigError(
                "a shifted masked network cannot be conditioned on time: set timed=False", subject="shift"
            )

    def one_stage(self) -> "NetworkConfig":
        """The network without a second stage, of the depth of the first; itself if it has one stage."""
        return self

    def _with_stacks(self, *stacks: StackConfig, **changes: Any) -> "NetworkConfig":
        raise NotImplementedError  # of networks that have any
