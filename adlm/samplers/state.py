"""A canvas while it is being filled: the one place where samplers meet a network.

Which positions change is decided first; features are computed only for rows in which something does; the vocabulary
is computed only at those positions, a slice at a time; and tokens are drawn there, each from a random number that
belongs to its row, position and step alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.errors import ConfigError
from adlm.models.hand_over import AnchorState
from adlm.randomness import Noise
from adlm.samplers.block_reader import BlockReader
from adlm.samplers.canvas import Canvas
from adlm.samplers.constraints import Constraint, bound_sites, hold
from adlm.samplers.draw import draw_measured
from adlm.samplers.filters import Filter, Sites, check_drawable, check_finite
from adlm.samplers.network import Network, anchor_predictions
from adlm.samplers.row_noise import Name, RowNoise
from adlm.samplers.stopping import StopRule

SLICE = 1 << 22  # logits at a time: what bounds the memory of a sampler, whatever L and V are


def slice_size(vocabulary_size: int) -> int:
    """The number of positions whose logits exist at a time."""
    return max(1, SLICE // vocabulary_size)


class Sample(NamedTuple):
    """A filled canvas, and what it cost.

    tokens: [B, L].
    network_calls: passes through the network, counted per row: a pass with k rows counts k.
    anchor_calls: the same for the anchor stage; 0 if there is none.
    """

    tokens: Tensor
    network_calls: int
    anchor_calls: int = 0


class StepEvent(NamedTuple):
    """The argument of a step callback.

    step: its number, from 0.
    steps: how many there are in all, if that is known.
    tokens: [B, L]; it keeps changing, so copy what you keep.
    fresh, remasked: [B, L] bool, what this step revealed and masked again.
    passes: of each row in which something was revealed, through the network.
    """

    step: int
    steps: int | None
    tokens: Tensor
    fresh: Tensor
    remasked: Tensor
    passes: int = 1


@dataclass(frozen=True, eq=False)
class Prediction:
    """Logits [n, V] of the network and after the filters, and the tokens [n] drawn from the latter.

    confidence: [n], the probability with which each was drawn.
    """

    raw: Tensor
    logits: Tensor
    drawn: Tensor
    confidence: Tensor

    @property
    def p(self) -> Tensor:
        """The network's own probabilities, before the filters, [n, V]."""
        return self.raw.softmax(-1)

    @cached_property
    def own_confidence(self) -> Tensor:
        """The probability that the network itself gave the drawn tokens, [n]."""
        if self.logits is self.raw:
            return self.confidence
        return (self.raw.gather(-1, self.drawn[:, None])[:, 0] - self.raw.logsumexp(-1)).exp()

    def part(self, some: slice) -> "Prediction":
        """Some of them; what was computed for all is not computed again."""
        raw = self.raw[some]
        logits = raw if self.logits is self.raw else self.logits[some]
        found = Prediction(raw, logits, self.drawn[some], self.confidence[some])
        found.__dict__["own_confidence"] = self.own_confidence[some]
        return found


StepCallback = Callable[[StepEvent], None]
DrawCallback = Callable[[Sites, Prediction], None]  # where tokens were drawn, and from what; not all are written
Measure = Callable[[Prediction], Tensor]  # a number per prediction [n], or several [n, ...]


def confidence(prediction: Prediction) -> Tensor:
    """The probability of the drawn token, [n]."""
    return prediction.confidence


def filtered(
    raw: Tensor,
    sites: Sites,
    filters: tuple[Filter, ...],
    constraints: tuple[Constraint, ...] = (),
    *,
    mask_id: int,
) -> Tensor:
    """Logits [N, V] after constraints and filters; `raw` itself if nothing changes them."""
    check_finite(raw, sites)
    logits = hold(raw, sites, constraints) if constraints else raw
    for each in filters:
        logits = each(logits, sites)
    check_drawable(logits, sites, filters, mask_id, changed=logits is not raw)
    return logits


def predicted(
    raw: Tensor,
    sites: Sites,
    bits: Tensor,
    filters: tuple[Filter, ...],
    constraints: tuple[Constraint, ...] = (),
    *,
    mask_id: int,
) -> Prediction:
    """Draw tokens [N] from a network's logits [N, V] by random bits [N]."""
    logits = filtered(raw, sites, filters, constraints, mask_id=mask_id)
    return Prediction(raw, logits, *draw_measured(logits, bits))


class SamplerState:
    """The state of a sampler: the tokens so far, and the network to ask for more.

    tokens: [B, L].
    open: [B, L] bool, where a sampler may write.
    confidence: [B, L], see `RemaskRule`.
    filters: applied in this order to whatever is drawn.
    stale_anchors: a row's anchor features serve so many of its passes before they are computed again.
    whole: False for samplers that fill the canvas part by part; then the number of steps is not known.
    reader: what reads the canvas, of networks with block-causal attention.

    Args:
        stop: what ends a row, for samplers that write from left to right: a token, or a rule.
    """

    def __init__(
        self,
        network: Network,
        canvas: Canvas,
        noise: Noise,
        *,
        on_step: StepCallback | None = None,
        on_draw: DrawCallback | None = None,
        stop: int | StopRule | None = None,
    ) -> None:
        self.network, self.canvas = network, canvas
        self.stop_rule = StopRule(stop) if isinstance(stop, int) else stop
        self.stop = None if self.stop_rule is None else self.stop_rule.token
        self.on_step, self.on_draw = on_step, on_draw
        self.filters: tuple[Filter, ...] = ()
        self.stale_anchors, self.whole = 1, True
        self.tokens = canvas.tokens.clone()
        self.open = ~canvas.frozen
        self.confidence = torch.full(self.tokens.shape, torch.inf, device=self.tokens.device)
        self.window = slice(0, self.tokens.shape[1])
        self.network_calls = self.anchor_calls = self.shown = 0
        self.reader: BlockReader | None = None
        self._stage: AnchorState | None = None
        self._age = torch.zeros_like(canvas.sample_ids)
        self.row_noise = RowNoise.of(noise, canvas.sample_ids, self.tokens.shape[1])

    @property
    def blank(self) -> Tensor:
        """The positions [B, L] still to be filled."""
        return self.open & (self.tokens == self.network.vocabulary.mask_id)

    @property
    def masked_fraction(self) -> Tensor:
        """The fraction [B] of what the network sees that is masked."""
        return (self.tokens[:, self.window] == self.network.vocabulary.mask_id).float().mean(-1)

    def uniform(self, *name: Name) -> Tensor:
        """Uniform numbers [B, L] in (0, 1): a function of the seed, the name, the sample's number and the position."""
        return self.to_device(self.row_noise.uniform(*name))

    def to_device(self, values: NDArray[Any]) -> Tensor:
        """A tensor from the host, moved to the device of the tokens."""
        found, device = torch.from_numpy(values), self.tokens.device
        if device.type == "cpu":
            return found
        return (found.float() if device.type == "mps" and found.is_floating_point() else found).to(device)

    def predict(
        self, where: Tensor, t: float | Tensor, *name: Name, measure: Measure = confidence
    ) -> tuple[Tensor, Tensor]:
        """Draw a token [N] at each of the positions `where` [B, L] without writing it, and measure each [N].

        Args:
            t: the time, of all rows or of each [B], for time-conditioned networks.
            name: of the random numbers.
            measure: what else to take from each distribution; by default the probability of the drawn token.
        """
        return self._draw(self._features(where, t), where.nonzero(as_tuple=True), name, measure)

    def draw(self, final: Tensor, where: Tensor, *name: Name) -> tuple[Tensor, Tensor]:
        """As `predict`, from features [N, D]."""
        return self._draw(final, where.nonzero(as_tuple=True), name)

    def _draw(
        self, final: Tensor, at: tuple[Tensor, ...], name: Sequence[Name], measure: Measure = confidence
    ) -> tuple[Tensor, Tensor]:
        row, position = at
        bits = self.to_device(self.row_noise.bits(("token", *name), row, position))
        if not self.canvas.constraints and row.shape[0] <= self._slice:
            # The features themselves: a network may have their logits already.
            prediction = self._predicted(final, Sites(self.tokens, row, position), bits)
            return prediction.drawn, measure(prediction)
        tokens, measured, parts = torch.empty_like(row), [], self._parts(row, position)
        ahead = self.tokens.clone() if self.canvas.constraints else self.tokens
        for part in parts:
            sites = Sites(ahead, row[part], position[part])
            prediction = self._predicted(final if len(parts) == 1 else final[part], sites, bits[part])
            tokens[part] = prediction.drawn
            if self.canvas.constraints:
                ahead[sites.row, sites.position] = prediction.drawn
            measured.append(measure(prediction))
        return tokens, measured[0] if len(parts) == 1 else torch.cat(measured)[torch.cat(parts).argsort()]

    def anchor_measure(self, where: Tensor, t: float | Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
        """Measure the anchor stage's own logits [n, V] at the N positions `where`: a number of each, or several."""
        self.check_two_stages("anchor confidence")
        if self.reader is not None:
            anchor = self.reader.anchor(where)
        else:
            rows = where.any(-1)
            anchor = self._stages(rows, t).anchor[where[rows][:, self.window]]
        return torch.cat([measure(anchor_predictions(self.network, part)) for part in anchor.split(self._slice)])

    def reveal(self, where: Tensor, t: float | Tensor, *name: Name) -> None:
        """Draw and write at `where`."""
        at = where.nonzero(as_tuple=True)
        if at[0].shape[0]:
            self._write(at, *self._draw(self._features(where, t), at, name))

    def write(self, where: Tensor, tokens: Tensor, confidence: Tensor) -> None:
        """Write tokens [N] at `where`, drawn with these probabilities [N]."""
        self._write(where.nonzero(as_tuple=True), tokens, confidence)

    def _write(self, at: tuple[Tensor, ...], tokens: Tensor, confidence: Tensor) -> None:
        self.tokens[at], self.confidence[at] = tokens, confidence.to(self.confidence.dtype)

    def end_rows(self, fresh: Tensor) -> Tensor:
        """Leave the rows that end with what was just written, `fresh` [B, L] bool: the stop token fills them.

        Returns `fresh` and what was filled.
        """
        if self.stop is None:
            return fresh
        stops = fresh & (self.tokens == self.stop)
        rest = torch.zeros_like(fresh)
        if bool(stops.any()):
            rest |= self.open & (stops.long().cumsum(-1) > 0) & ~stops
        if (complete := self.complete(fresh.any(-1))) is not None:
            rest |= self.blank & complete[:, None]
        self.tokens[rest] = self.stop
        return fresh | rest

    def complete(self, rows: Tensor) -> Tensor | None:
        """Which of these rows [B] bool have a stop string in what is written up to their first blank; None if there
        are no stop strings."""
        rule = self.stop_rule
        if rule is None or not rule.strings:
            return None
        found, mask_id = torch.zeros_like(rows), self.network.vocabulary.mask_id
        for row in rows.nonzero()[:, 0].tolist():
            tokens, frozen = self.tokens[row].tolist(), self.canvas.frozen[row].tolist()
            first = frozen.index(False) if False in frozen else len(tokens)
            end = next((i for i in range(first, len(tokens)) if tokens[i] == mask_id), len(tokens))
            found[row] = rule.complete(tokens[:first], tokens[first:end])
        return found

    def remask(self, where: Tensor) -> None:
        """Make `where` blank again."""
        self.tokens[where], self.confidence[where] = self.network.vocabulary.mask_id, torch.inf

    def show(self, fresh: Tensor, remasked: Tensor | None = None, *, steps: int | None = None, passes: int = 1) -> None:
        """Call the step callback: a step is done, of so many in all, in so many passes of each of its rows.

        Where the number of steps is not known, those that change nothing are not counted.
        """
        if self.on_step is not None:
            remasked = torch.zeros_like(fresh) if remasked is None else remasked
            if not self.whole and not bool((fresh | remasked).any()):
                return
            self.on_step(StepEvent(self.shown, steps if self.whole else None, self.tokens, fresh, remasked, passes))
        self.shown += 1

    def sample(self) -> Sample:
        """The filled canvas, and what it cost."""
        return Sample(self.tokens, self.network_calls, self.anchor_calls)

    def count(self, reader: BlockReader) -> None:
        """Add the passes of a reader, which has done its work."""
        self.network_calls += sum(reader.calls)
        self.anchor_calls += sum(reader.anchor_calls)
        self.reader = None

    def look(self, window: slice) -> None:
        """Show the network this part of the canvas alone. Kept anchor features are dropped."""
        self.window, self._stage = window, None

    def check_two_stages(self, purpose: str) -> None:
        """Refuse a network without an anchor stage."""
        if self.network.stages < 2:
            raise ConfigError(f"{purpose} needs a model with an anchor stage", subject=purpose)

    def _predicted(self, final: Tensor, sites: Sites, bits: Tensor) -> Prediction:
        prediction = predicted(
            self.network.logits(final),
            sites,
            bits,
            self.filters,
            self.canvas.constraints,
            mask_id=self.network.vocabulary.mask_id,
        )
        if self.on_draw is not None:
            self.on_draw(sites, prediction)
        return prediction

    def _features(self, where: Tensor, t: float | Tensor) -> Tensor:
        """[N, D] at `where`, from the rows in which it has anything."""
        if self.reader is not None:
            return self.reader.features(where)
        rows = where.any(-1)
        tokens, output_mask = self.tokens[:, self.window], where[:, self.window]
        if tokens.shape[0] > 1 and not bool(rows.all()):
            tokens, output_mask = tokens[rows], output_mask[rows]
        count = tokens.shape[0]
        self.network_calls += count
        if self.network.stages > 1 and (self.stale_anchors > 1 or self._stage is not None):
            stage = self._stages(rows, t)
            self._age[rows] += 1
            return self.network.denoise(stage, tokens, self._times(rows, t), output_mask=output_mask)
        self.anchor_calls += count if self.network.stages > 1 else 0
        return self.network.features(tokens, self._times(rows, t), output_mask=output_mask).final

    def _stages(self, rows: Tensor, t: float | Tensor) -> AnchorState:
        """The anchor stage's state of these rows [B] bool, computed where there is none or it is too old."""
        old = torch.ones_like(rows) if self._stage is None else self._age >= self.stale_anchors
        old &= rows
        if bool(old.any()):
            fresh = self.network.anchor_stage(self.tokens[old][:, self.window], self._times(old, t))
            self.anchor_calls += int(old.sum())
            if self._stage is None:
                empty = [part.new_zeros(len(rows), *part.shape[1:]) for part in fresh]
                self._stage, self._age = AnchorState(*empty), torch.full_like(self._age, self.stale_anchors)
            for kept, part in zip(self._stage, fresh, strict=True):
                kept[old] = part
            self._age[old] = 0
        assert self._stage is not None
        return AnchorState(*(part[rows] for part in self._stage))

    def _times(self, rows: Tensor, t: float | Tensor) -> Tensor | None:
        if not self.network.time_conditioned:
            return None
        if isinstance(t, Tensor):
            return t[rows].float()
        return torch.full((int(rows.sum()),), t, device=rows.device)

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
        return slice_size(self.network.vocabulary.size)
