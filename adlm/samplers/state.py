"""A canvas while it is being filled: the one place where samplers meet a network.

Which positions change is decided first; features are computed only for rows in which something does; the vocabulary
is computed only at those positions, a slice at a time; and tokens are drawn there, each from a random number that
belongs to its row, place and step alone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.models.hand_over import AnchorState
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.constraints import bound_sites, hold
from adlm.samplers.draw import draw
from adlm.samplers.filters import Filter, Sites, check_drawable, check_finite

SLICE = 1 << 22  # logits at a time: what bounds the memory of a sampler, whatever L and V are


class Sample(NamedTuple):
    """Tokens [B, L], and how many rows went through the network and through its anchor stage, all calls together."""

    tokens: Tensor
    row_calls: int
    anchor_row_calls: int = 0


class StepEvent(NamedTuple):
    """What a watcher sees after a step.

    step: its number, from 0.
    steps: in all, where that is known.
    tokens: [B, L], to be read and not to be kept: it goes on changing.
    fresh, remasked: [B, L] bool, what this step revealed and took back.
    """

    step: int
    steps: int | None
    tokens: Tensor
    fresh: Tensor
    remasked: Tensor


StepCallback = Callable[[StepEvent], None]


class Prediction(NamedTuple):
    """Logits [n, V] as the network gave them and as the filters left them, and the tokens [n] drawn from the latter."""

    raw: Tensor
    logits: Tensor
    drawn: Tensor

    @property
    def p(self) -> Tensor:
        """What was drawn from, [n, V]."""
        return self.logits.softmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of what was drawn, [n]."""
        return (self.logits.gather(-1, self.drawn[:, None])[:, 0] - self.logits.logsumexp(-1)).exp()


Measure = Callable[[Prediction], Tensor]  # a number for each, or several [n, ...]


def confidence(guess: Prediction) -> Tensor:
    return guess.confidence


class SamplerState:
    """tokens [B, L]; open [B, L] bool, where a sampler may write; confidence [B, L], see `RemaskRule`.

    Args:
        stop: a token after which nothing of a row is wanted, for samplers that write from left to right.
        filters: applied in this order to whatever is drawn.
        stale_anchors: a row's anchor features serve so many of its passes before they are computed anew.
    """

    def __init__(
        self,
        model: LanguageModel,
        canvas: Canvas,
        noise: Noise,
        watch: StepCallback | None = None,
        *,
        stop: int | None = None,
        filters: Sequence[Filter] = (),
        stale_anchors: int = 1,
    ) -> None:
        self.model, self.canvas, self.noise, self.watch, self.stop = model, canvas, noise, watch, stop
        self.filters, self.stale_anchors = filters, stale_anchors
        self.tokens = canvas.tokens.clone()
        self.open = ~canvas.frozen
        self.confidence = torch.full(self.tokens.shape, torch.inf, device=self.tokens.device)
        self.window = slice(0, self.tokens.shape[1])
        self.whole = True  # filled in one go, and not a block after another
        self.row_calls = self.anchor_row_calls = self.shown = 0
        self._stage: AnchorState | None = None
        self._age = torch.zeros_like(canvas.sample_ids)

    @property
    def blank(self) -> Tensor:
        """[B, L] bool: still to be filled."""
        return self.open & (self.tokens == self.model.vocabulary.mask_id)

    @property
    def masked_fraction(self) -> Tensor:
        """[B]: how much of what the network sees is masked."""
        return (self.tokens[:, self.window] == self.model.vocabulary.mask_id).float().mean(-1)

    def uniform(self, *name: str | int) -> Tensor:
        """[B, L] in (0, 1): a function of the seed, the name, the sample's number and the place."""
        return self.noise.fork(*name).uniform(self.canvas.sample_ids, self.tokens.shape[1])

    def predict(
        self, where: Tensor, t: float | Tensor, *name: str | int, measure: Measure = confidence
    ) -> tuple[Tensor, Tensor]:
        """Draw a token [N] at each of the positions `where` [B, L], without writing it; and measure each [N].

        Args:
            t: the time, of all rows or of each [B], for models that are told it.
            name: of the random numbers.
            measure: what else is wanted of each distribution; the probability of the drawn token by default.
        """
        return self.draw(self._features(where, t), where, *name, measure=measure)

    def draw(
        self, final: Tensor, where: Tensor, *name: str | int, measure: Measure = confidence
    ) -> tuple[Tensor, Tensor]:
        """As `predict`, from features [N, D]."""
        row, position = where.nonzero(as_tuple=True)
        bits = self.noise.fork("token", *name).bits(self.canvas.sample_ids, self.tokens.shape[1])[where]
        tokens, measured = torch.empty_like(row), []
        parts = self._parts(row, position)
        ahead = self.tokens.clone() if self.canvas.constraints else self.tokens
        for part in parts:
            sites = Sites(ahead, row[part], position[part])
            raw = logits = self.model.logits(final[part])
            check_finite(raw, sites)
            if self.canvas.constraints:
                logits = hold(logits, sites, self.canvas.constraints)
            for each in self.filters:
                logits = each(logits, sites)
            check_drawable(logits, sites, self.filters, self.model.vocabulary.mask_id)
            tokens[part] = drawn = draw(logits, bits[part])
            if self.canvas.constraints:
                ahead[row[part], position[part]] = drawn
            measured.append(measure(Prediction(raw, logits, drawn)))
        return tokens, measured[0] if len(parts) == 1 else torch.cat(measured)[torch.cat(parts).argsort()]

    def anchor_measure(self, where: Tensor, t: float | Tensor, measure: Measure) -> Tensor:
        """Measure the anchor stage's own prediction [N] at `where`, with its likeliest token as the one drawn."""
        head = self.two_stages("anchor confidence").anchor_head
        assert head is not None
        rows = where.any(-1)
        anchor = self._stages(rows, t).anchor[where[rows][:, self.window]]
        logits = (head(part) for part in anchor.split(self._slice))  # the mask left out
        return torch.cat([measure(Prediction(part, part, part.argmax(-1))) for part in logits])

    def reveal(self, where: Tensor, t: float | Tensor, *name: str | int) -> None:
        """Draw and write at `where`."""
        if bool(where.any()):
            self.write(where, *self.predict(where, t, *name))

    def write(self, where: Tensor, tokens: Tensor, confidence: Tensor) -> None:
        self.tokens[where], self.confidence[where] = tokens, confidence.to(self.confidence.dtype)

    def remask(self, where: Tensor) -> None:
        self.tokens[where], self.confidence[where] = self.model.vocabulary.mask_id, torch.inf

    def show(self, fresh: Tensor, remasked: Tensor | None = None, steps: int | None = None) -> None:
        """Tell the watcher of a step that is done."""
        if self.watch is not None:
            nothing = torch.zeros_like(fresh) if remasked is None else remasked
            self.watch(StepEvent(self.shown, steps if self.whole else None, self.tokens, fresh, nothing))
        self.shown += 1

    def sample(self) -> Sample:
        return Sample(self.tokens, self.row_calls, self.anchor_row_calls)

    def look(self, window: slice) -> None:
        """Show the network this part of the canvas alone. What was kept of the anchor stage is dropped."""
        self.window, self._stage = window, None

    def _features(self, where: Tensor, t: float | Tensor) -> Tensor:
        """[N, D] at `where`, from the rows in which it has anything."""
        rows = where.any(-1)
        tokens, output_mask = self.tokens[rows][:, self.window], where[rows][:, self.window]
        self.row_calls += len(tokens)
        if self.model.stages == 2 and (self.stale_anchors > 1 or self._stage is not None):
            stage = self._stages(rows, t)
            self._age[rows] += 1
            return self.model.denoise(stage, tokens, self._times(rows, t), output_mask=output_mask)
        self.anchor_row_calls += len(tokens) if self.model.stages == 2 else 0
        return self.model.features(tokens, self._times(rows, t), output_mask=output_mask).final

    def _stages(self, rows: Tensor, t: float | Tensor) -> AnchorState:
        """The anchor stage's state of these rows [B] bool, computed where there is none or it has served its time."""
        model = self.two_stages("stale anchors")
        old = torch.ones_like(rows) if self._stage is None else self._age >= self.stale_anchors
        old &= rows
        if bool(old.any()):
            fresh = model.anchor_stage(self.tokens[old][:, self.window], self._times(old, t))
            self.anchor_row_calls += int(old.sum())
            if self._stage is None:
                empty = [part.new_zeros(len(rows), *part.shape[1:]) for part in fresh]
                self._stage, self._age = AnchorState(*empty), torch.full_like(self._age, self.stale_anchors)
            for kept, part in zip(self._stage, fresh, strict=True):
                kept[old] = part
            self._age[old] = 0
        assert self._stage is not None
        return AnchorState(*(part[rows] for part in self._stage))

    def _times(self, rows: Tensor, t: float | Tensor) -> Tensor:
        if isinstance(t, Tensor):
            return t[rows].float()
        return torch.full((int(rows.sum()),), t, device=rows.device)

    def two_stages(self, purpose: str) -> LanguageModel:
        """The model; refuses one that has no anchor stage."""
        self.model.check_two_stages(purpose)
        return self.model

    def _parts(self, row: Tensor, position: Tensor) -> list[Tensor]:
        """The positions in slices; those under a constraint one after another in each row, as each binds the next."""
        if not self.canvas.constraints:
            return list(torch.arange(len(row), device=row.device).split(self._slice))
        bound = bound_sites(row, position, self.canvas.constraints)
        free = (~bound).nonzero()[:, 0]
        held = bound.nonzero()[:, 0]
        same = row[held][:, None] == row[held][None]
        rank = same.tril(-1).sum(-1)
        turns = [held[rank == k] for k in range(int(rank.max()) + 1 if len(held) else 0)]
        return [part for group in (free, *turns) for part in group.split(self._slice) if len(part)]

    @property
    def _slice(self) -> int:
        return max(1, SLICE // self.model.vocabulary.size)
