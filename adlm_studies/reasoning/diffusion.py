"""Anchored reasoning with a diffusion model: important tokens in positions of their own, written before the rest.

    row      padding  question <boa>  a_1 a_2 ...  <eoa>  trace answer end end ...
    fixed             ---------------               ---

Padding after the end is predicted, so that a canvas of one size holds any trace. A problem with fewer important tokens
than positions has <ant> in those left. Steps stay, whatever the method leaves out left to right. In use the positions
are filled first, with all that follows masked, and then the rest is denoised around them (`AnchorsFirst`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.data.packing import Ids
from adlm.data.table import PreparationCallback
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.filters import Temperature
from adlm.samplers.ordered import Ordered
from adlm.samplers.paces import PerStep
from adlm.samplers.sampler import Sampler, Unmasking
from adlm.samplers.state import SamplerState
from adlm_studies.reasoning.data import WORDS, ReasoningTable, Row, TaskData, encode_layouts
from adlm_studies.reasoning.decode import SolveProgress, ThoughtPrediction, WrittenAnswer, top_predictions
from adlm_studies.reasoning.methods import Anchored, Chain, ReasoningMethod
from adlm_studies.reasoning.problem import Problem, Task
from adlm_studies.reasoning.vocabulary import special_token_id

BEGIN, PLACE, END = Anchored.special_tokens


@dataclass(frozen=True)
class DiffusionReasoningData(TaskData):
    """The problems of a task for a diffusion model.

    Args:
        most: positions for important tokens; 0: none, as the plain chain of thought.
        room: tokens for trace, answer and end. Longer problems are left out of training, and the name says how many.
        tokenizer, problems, held_out: as in `adlm_studies.reasoning.data.ReasoningData`.
    """

    task: Task
    most: int = 6
    room: int = 64
    tokenizer: str = WORDS
    problems: int = 0
    held_out: int = 0
    predict_padding = True

    def __post_init__(self) -> None:
        if self.most < 0 or self.room < 4:
            raise ConfigError(
                f"{self.most} positions for anchors and {self.room} tokens after them are too few for an answer",
                fix="give 0 or more positions and room for the longest trace",
                subject="most" if self.most < 0 else "room",
            )

    def rows_of(
        self,
        problems: Sequence[Problem],
        name: str,
        tokenizer: Tokenizer,
        watch: PreparationCallback | None = None,
        *,
        cut: bool = False,
    ) -> "DiffusionReasoningTable":
        """These problems as rows.

        Args:
            cut: keep problems that are too long, cut: of those that a model is to answer, the question is enough.
        """
        method: ReasoningMethod = Anchored(self.most) if self.most else Chain()
        layouts = [method.layout(problem, method.stages - 1) for problem in problems]
        plain = encode_layouts(layouts, tokenizer, Chain.special_tokens, watch)
        rows = [_anchored(row, tokenizer) for row in plain]
        most = self.most + 1 + self.room
        kept = [i for i, row in enumerate(rows) if cut or len(row.rest) <= most]
        if not kept:
            raise DataError(
                f"no problem of {name} fits {self.room} tokens after the anchors; the shortest of {len(rows):,} needs "
                f"{min(len(row.rest) for row in plain)}",
                subject="room",
            )
        if len(kept) < len(rows):
            name += f" without {len(rows) - len(kept):,} that are too long"
        return DiffusionReasoningTable(
            name, [rows[i] for i in kept], tokenizer, numbers=kept, anchors=self.most, rest=most
        )


def _anchored(row: Row, tokenizer: Tokenizer) -> Row:
    """The question with <boa> as given; anchors, <eoa> and what follows as the rest."""
    begin, place, end = (np.array([special_token_id(tokenizer, mark)]) for mark in (BEGIN, PLACE, END))
    anchors = np.where(row.targets < 0, place, row.targets)
    important = np.concatenate([row.targets >= 0, [False], row.important])
    rest = np.concatenate([anchors, end, row.rest])
    return Row(np.concatenate([row.given, begin]), rest, np.zeros(0, np.int64), important)


class DiffusionReasoningTable(ReasoningTable):
    """As `ReasoningTable`, with <eoa> given too and padding predicted up to `rest` tokens after <boa>."""

    def __init__(
        self, name: str, rows: Sequence[Row], tokenizer: Tokenizer, *, numbers: Sequence[int], anchors: int, rest: int
    ) -> None:
        super().__init__(name, rows, tokenizer, numbers=numbers, padding=True, rest=rest)
        self.anchor_positions = anchors

    def frozen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        fixed = super().frozen(rows)
        assert fixed is not None
        fixed[:, self.given + self.anchor_positions] = True
        return fixed

    def thought_targets(self, row: int) -> list[int]:
        found: list[int] = self.tokens(np.array([row]))[0, self.given : self.given + self.anchor_positions].tolist()
        return found

    def question(self, row: int) -> Ids:
        """The given tokens before the positions for anchors, without padding."""
        numbers = np.array([row])
        before = slice(0, self.given)
        return self.tokens(numbers)[0, before][self.valid(numbers)[0, before]]


@dataclass(frozen=True)
class AnchorsFirst(Unmasking):
    """Fills the blanks between <boa> and <eoa> with all that follows masked, and then the rest.

    Args:
        begin_id, end_id: of <boa> and <eoa>.
        inner: fills each of the two parts. Its own filters and stale_anchors hold.
    """

    begin_id: int = 0
    end_id: int = 0
    inner: Unmasking = field(default_factory=lambda: most_confident_first())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filters or self.stale_anchors != 1:
            raise ConfigError(
                "AnchorsFirst takes filters and stale anchors from its inner sampler",
                subject="filters" if self.filters else "stale_anchors",
            )

    def setup(self, state: SamplerState) -> None:
        self.inner.setup(state)

    def fill(self, state: SamplerState) -> None:
        everywhere = state.open
        state.whole = False
        state.open = everywhere & between(state.tokens, self.begin_id, self.end_id)
        self.inner.fill(state)
        state.open = everywhere
        self.inner.fill(state)


def between(tokens: Tensor, begin: int, end: int) -> Tensor:
    """The positions [B, L] after the last `begin` that is before the last `end`."""
    begun = (tokens == begin).flip(-1).cumsum(-1).flip(-1) == 0
    unfinished = (tokens == end).flip(-1).cumsum(-1).flip(-1) > 0
    return begun & unfinished & (tokens != end)


def most_confident_first() -> Ordered:
    """A sampler that writes one token at a time, the most confident first and always the most likely."""
    return Ordered(filters=(Temperature(0.0),), pace=PerStep(1))


@torch.no_grad()
def answer_by_denoising(
    model: LanguageModel,
    table: DiffusionReasoningTable,
    tokenizer: Tokenizer,
    *,
    sampler: Sampler | None = None,
    seed: int = 0,
    batch: int = 64,
    top: int = 3,
    watch: SolveProgress | None = None,
) -> list[WrittenAnswer]:
    """The text that a diffusion model writes for each row of a table, from the question alone.

    Rows are taken together where their questions have one length, since all that a row has is seen.

    Args:
        sampler: `AnchorsFirst` by default; any other unmasks anchors and the rest in its own order.
        top: so many tokens for each place for an anchor, as they look before anything is written.
    """
    for name, value in (("batch", batch), ("top", top)):
        if value < 1:
            raise OutOfRange(name, value, "at least 1")
    chosen = sampler or AnchorsFirst(
        begin_id=special_token_id(tokenizer, BEGIN), end_id=special_token_id(tokenizer, END)
    )
    device = next(model.parameters()).device
    mask, after = tokenizer.mask_id, table.length - table.given - table.anchor_positions - 1
    tail = [*[mask] * table.anchor_positions, special_token_id(tokenizer, END), *[mask] * after]
    groups: dict[int, list[int]] = {}
    questions = [table.question(row).tolist() for row in range(len(table))]
    for row, question in enumerate(questions):
        groups.setdefault(len(question), []).append(row)
    done: dict[int, WrittenAnswer] = {}
    for length, group in groups.items():
        for start in range(0, len(group), batch):
            rows = group[start : start + batch]
            blank = torch.tensor([questions[row] + tail for row in rows])
            canvas = Canvas(blank, blank != mask, torch.tensor(rows)).to(device)
            positions = slice(length, length + table.anchor_positions)
            first = model.features(canvas.tokens, torch.ones(len(rows), device=device)).final[:, positions]
            filled = chosen.sample(model, canvas, noise=Noise(seed).fork("reasoning")).tokens
            for row, tokens, states in zip(rows, filled.tolist(), first, strict=True):
                thoughts = top_predictions(model.logits(states), tokenizer, top) if table.anchor_positions else ()
                placed = tuple(tokenizer.token(token) for token in tokens[positions])
                done[row] = _read(tokens[positions.stop + 1 :], tokenizer, thoughts, placed)
            if watch is not None:
                watch(len(done), len(table))
    return [done[row] for row in range(len(table))]


def _read(
    tokens: list[int],
    tokenizer: Tokenizer,
    thoughts: tuple[tuple[ThoughtPrediction, ...], ...],
    placed: tuple[str, ...],
) -> WrittenAnswer:
    end = tokenizer.roles.eos_id
    ended = end in tokens
    kept = tokens[: tokens.index(end) + 1] if ended else tokens
    return WrittenAnswer(tokenizer.decode(kept), len(kept), ended, thoughts, placed)
