"""What a left-to-right model becomes, as a value: its network, its objective and where its weights come from.

The shift is kept in all of them: position l reads token l - 1, as the weights have learned to.
"""

from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from adlm.anchors.rules import RareInSequence
from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import Corruption, CountMasking
from adlm.errors import ConfigError, OutOfRange, UnknownName
from adlm.models.hand_over import Continued, Hidden
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import Attention
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import Objective
from adlm.train.init import AnchorFrom, Finetune, Init, SplitFrom

Kind = Literal["block", "masked", "anchored", "anchored-block", "towers"]
_IN_BLOCKS = ("block", "anchored-block", "towers")
_GAMMA, _RARE = 0.05, RareInSequence(2)


@dataclass(frozen=True)
class Target:
    """A kind of diffusion model.

    Args:
        kind: block: block diffusion; masked: whole rows at once; anchored and anchored-block: the same in two stages
            made of the lower and the upper layers; towers: the whole model as a causal anchor stage before a fresh
            denoiser that reads blocks.
        sizes: tokens per block that it learns to read, drawn per row; 1 is left to right, 0 the whole row.
        progressive: take the sizes one after another instead.
    """

    kind: Kind
    sizes: tuple[int, ...] = (0,)
    progressive: bool = False

    @classmethod
    def parse(cls, text: str, sizes: tuple[int, ...] | None = None, *, progressive: bool = False) -> "Target":
        """A target as users write it: masked, anchored, block:16, anchored-block:16 or towers:16.

        Args:
            sizes: instead of 1, 2, 4, ... up to the given one, from which one network serves as a left-to-right model
                and as a block model of each size; with 0 among them it also fills holes.
        """
        kind, colon, number = text.partition(":")
        if kind not in get_args(Kind):
            raise UnknownName("target", text, [f"{each}:16" if each in _IN_BLOCKS else each for each in get_args(Kind)])
        if kind not in _IN_BLOCKS:
            if colon or sizes or progressive:
                subject = "to" if colon else "sizes" if sizes else "progressive"
                raise ConfigError(
                    f"{text} cannot be in blocks, because it reads whole rows", fix="use block:16 or anchored-block:16",
                    subject=subject,
                )  # fmt: skip
            return cls(kind)  # type: ignore[arg-type]
        if not number.isdecimal():
            raise ConfigError(f"the target {text!r} needs a block size", fix=f"write {kind}:16", subject="to")
        size = int(number)
        if size < 2:
            raise OutOfRange("to", text, "a block size of at least 2")
        chosen = sizes or (*(1 << i for i in range(size.bit_length()) if 1 << i < size), size)
        if max(chosen) > size or min(chosen) < 0 or size not in chosen:
            raise OutOfRange("sizes", chosen, f"0 to {size}, and {size} among them")
        if kind == "towers" and 0 in chosen:
            raise ConfigError("two towers read blocks only: leave 0 out of sizes", subject="sizes")
        return cls(kind, chosen, progressive)  # type: ignore[arg-type]

    @property
    def block_size(self) -> int:
        """The largest block size; 0 if only whole rows are read."""
        return max(self.sizes)

    @property
    def readings(self) -> tuple[int, ...]:
        """The distinct block sizes in increasing order, whole rows last."""
        return tuple(sorted(set(self.sizes), key=lambda size: (size == 0, size)))

    def __str__(self) -> str:
        return f"{self.kind}:{self.block_size}" if self.kind in _IN_BLOCKS else self.kind

    def network(self, source: NetworkConfig) -> NetworkConfig:
        """The network that a source of this network becomes."""
        anchored = self.kind in ("anchored", "anchored-block")
        if source.stages == 2 and not anchored:
            fix = f"use {'anchored' if self.kind == 'masked' else f'anchored-block:{self.block_size}'}"
            raise ConfigError(f"cannot adapt a model to {self}: it has two stages already; {fix}", subject="to")
        size = self.block_size
        attention: Attention = "block" if size else "full"
        if source.stages == 2 or self.kind in ("block", "masked"):
            return source.variant(attention=attention, block_size=size, shift=True)
        source = cast("OneStageConfig", source)  # a causal network of one stage, of this package
        layers, tied, positions = source.stack.layers, source.tied, source.positions
        if self.kind == "towers":
            half = max(1, layers // 2)
            return TwoStageConfig(source.stack, half, Hidden(), tied, positions, size, True, "block", source.start)
        if layers < 2:
            raise ConfigError("one layer cannot be split into two stages", fix="use block or masked", subject="to")
        upper = max(1, round(layers / 3))
        lower = replace(source.stack, layers=layers - upper, attention=attention)
        return TwoStageConfig(lower, upper, Continued(), tied, positions, size, True, start=source.start)

    def objective(self, together: int = 1, *, left_to_right: bool = True, holes: float = 0.0) -> Objective:
        """The training objective: the bound, with the anchor term if the source is split into two stages.

        Args:
            together: rows that draw one block size, see `BlockMasking`.
            left_to_right: train blocks of one token too, if they are among the sizes.
            holes: fraction of whole rows that are masked in holes only, see `BlockMasking`.
        """
        masking: Corruption = CountMasking()
        if holes and 0 not in self.sizes:
            raise ConfigError("holes are cut into whole rows: put 0 among --sizes", subject="holes")
        if self.block_size:
            sizes = tuple(size for size in self.sizes if size != 1 or left_to_right)
            masking = BlockMasking(sizes, self.progressive, together, holes)
        if self.kind in ("anchored", "anchored-block"):
            return Anelbo(masking, _RARE, gamma=_GAMMA, masked_only=True)
        return Nelbo(masking)

    def init(self, folder: str, source: NetworkConfig) -> Init:
        """The source in `folder` as the initial weights."""
        if self.kind == "towers":
            return AnchorFrom(folder)
        return SplitFrom(folder) if self.network(source).stages > source.stages else Finetune(folder)
