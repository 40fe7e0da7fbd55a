"""A sampler that shows its board before it fills it, and what each draw was made from."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.ancestral import Remasking
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.sampler import Sampler, Unmasking
from adlm.samplers.state import SamplerState, StepCallback

Drawn = Callable[[Tensor, Tensor], None]  # features [N, D], and the positions [B, L] bool they belong to


def shown(sampler: Sampler, show: Callable[[SamplerState], None], drawn: Drawn | None = None) -> Sampler:
    """The same sampler, that calls `show` with each board it is about to fill, and `drawn` before each draw."""
    if isinstance(sampler, Blocks):
        return replace(sampler, inner=_Shown(inner=sampler.inner, show=show, drawn=drawn))
    return _Shown(inner=sampler, show=show, drawn=drawn)


def takes_back(sampler: Sampler) -> bool:
    """Whether it may mask again what it has written."""
    return isinstance(sampler.inner if isinstance(sampler, Blocks) else sampler, Remasking)


@dataclass(frozen=True)
class _Shown(Unmasking):
    inner: Sampler = field(kw_only=True)
    show: Callable[[SamplerState], None] = field(kw_only=True)
    drawn: Drawn | None = field(kw_only=True, default=None)

    def board(
        self,
        model: LanguageModel,
        canvas: Canvas,
        noise: Noise,
        watch: StepCallback | None = None,
        stop: int | None = None,
    ) -> SamplerState:
        board = self.inner.board(model, canvas, noise, watch, stop)
        if self.drawn is not None:
            _tell_draws(board, self.drawn)
        self.show(board)
        return board

    def fill(self, board: SamplerState) -> None:
        self.inner.fill(board)


def _tell_draws(board: SamplerState, drawn: Drawn) -> None:
    draw = board.draw

    def told(final: Tensor, where: Tensor, *name: str | int, **options: Any) -> tuple[Tensor, Tensor]:
        drawn(final, where)
        return draw(final, where, *name, **options)

    vars(board)["draw"] = told
