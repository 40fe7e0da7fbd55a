"""The cost of a continuation after a context, and whether greedy decoding gives it, as benchmarks ask.

For left-to-right models it is exact. For masked models it is the bound of the continuation given the context, which is
never masked: from all ways to mask the continuation if they are at most `draws`, else from stratified mask counts. For
block diffusion it is the bound block by block; where a text ends within a block, the rest of the block is blank, as it
is while a text is written, and never scored.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.data.packing import Packing
from adlm.data.tokenizer import Roles, Tokenizer
from adlm.diffusion.schedule import LogLinear
from adlm.errors import DataError, ModelError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.models.two_copies import block_numbers
from adlm.objectives.bound import enumerated_nats, position_nats
from adlm.randomness import Noise
from adlm.types import Batch

_SLICE = 1 << 22  # logits at a time
_TIE = 1e-5  # log-probabilities that differ by less are equal but for rounding, which must not decide


class Continuation(NamedTuple):
    """Tokens, the first `given` of which are the context."""

    tokens: tuple[int, ...]
    given: int

    def cut_to(self, room: int) -> "Continuation":
        """The last `room` tokens, at the cost of the context alone."""
        over = len(self.tokens) - room
        if over <= 0:
            return self
        if over > self.given:
            raise DataError(
                f"a continuation of {len(self.tokens) - self.given} tokens does not fit the {room} of a row",
                fix="shorten it, or score it as a whole text, in windows",
                subject="continuation",
            )
        return Continuation(self.tokens[over:], self.given - over)


class ScoredContinuations(NamedTuple):
    """-log p(continuation | context) in nats, or its bound; and whether greedy writing gives the continuation."""

    nats: float
    greedy: bool


def joined_tokens(context: str, continuation: str, tokenizer: Tokenizer) -> Continuation:
    """The tokens of context and continuation, encoded together. White space between them belongs to the latter.

    Given are the tokens with which the context alone would begin too: one that reaches over the border is scored.
    """
    kept = context.rstrip()
    alone, whole = (ids.tolist() for ids in tokenizer.encode_batch([kept, context + continuation]))
    given = 0
    for a, b in zip(alone, whole, strict=False):
        if a != b:
            break
        given += 1
    return Continuation(tuple(whole), given)


def windows(tokens: Sequence[int], room: int, *, causal: bool) -> list[Continuation]:
    """A text of any length in pieces that fit, each token scored once.

    Left to right, every window but the first has a token of context or more, and the last is full. Masked models
    score windows that share nothing.
    """
    if room < 2:
        raise OutOfRange("max_length", room, "at least 2")
    pieces, done = [], 0
    while done < len(tokens):
        end = min(len(tokens), done + room - bool(causal and done))
        start = max(0, end - room) if causal else done
        pieces.append(Continuation(tuple(tokens[start:end]), done - start))
        done = end
    return pieces


@dataclass(frozen=True)
class Scorer:
    """Scores continuations in rows as the model knows them. A result depends on seed and text, not on its batch.

    Continuations of one context are scored under the same noise, so less of it is in their differences.

    Args:
        packing: the model's. Its begin token goes before every context; no end token follows.
        draws: mask counts for each, for masked models.
        batch: rows at a time.
        length: tokens per row, at most.
        full_rows: where a masked model's rows were always full, show it the rest of the row, blank. Otherwise rows
            end with the continuation, as others score them: less work, but rows that it never saw.
    """

    model: LanguageModel
    packing: Packing
    roles: Roles
    length: int
    draws: int = 32
    seed: int = 0
    batch: int = 16
    full_rows: bool = True

    def __post_init__(self) -> None:
        if not 4 <= self.length <= self.packing.length:
            raise OutOfRange("max_length", self.length, f"4 to {self.packing.length}, the length of the model's rows")
        for name, value in (("draws", self.draws), ("batch_size", self.batch)):
            if value < 1:
                raise OutOfRange(name, value, "at least 1")

    @property
    def room(self) -> int:
        """The number of tokens that fit a row, for a context and its continuation."""
        return self.length - len(self.packing.frame(self.roles)[0])

    def exact(self, item: Continuation) -> bool:
        """Whether all ways to mask the continuation are enumerated."""
        return not self.model.time_conditioned and 2 ** (len(item.tokens) - item.given) - 1 <= self.draws

    @torch.no_grad()
    def __call__(
        self, items: Sequence[Continuation], *, greedy: bool = True, progress: Callable[[int], None] | None = None
    ) -> list[ScoredContinuations]:
        """The score of each item, in order.

        Args:
            greedy: whether to decide it; otherwise all are False.
            progress: called with the number of items that were done.
        """
        found: dict[int, ScoredContinuations] = {}
        with self.model.inference_weights():
            for chosen in self._batches(items):
                batch = self._batch([items[i] for i in chosen])
                nats, right = self._scored(batch, self.exact(items[chosen[0]]), greedy)
                if bool(nats.isnan().any()):
                    raise ModelError("the model gives a continuation NaN", fix="check its weights", subject="nats")
                for i, cost, same in zip(chosen, nats.tolist(), right.tolist(), strict=True):
                    found[i] = ScoredContinuations(cost, same)
                if progress is not None:
                    progress(len(chosen))
        return [found[i] for i in range(len(items))]

    def _batches(self, items: Sequence[Continuation]) -> Iterator[list[int]]:
        """Items of about one length, scored in one way; the longest first, which shows at once whether memory holds."""
        order = sorted(range(len(items)), key=lambda i: -len(items[i].tokens))
        for exact in (False, True):
            alike = [i for i in order if self.exact(items[i]) == exact]
            for start in range(0, len(alike), self.batch):
                yield alike[start : start + self.batch]

    def _batch(self, items: Sequence[Continuation]) -> Batch:
        begin, _ = self.packing.frame(self.roles)
        lengths = torch.tensor([len(begin) + len(item.tokens) for item in items])
        given = torch.tensor([len(begin) + item.given for item in items])
        size = self.model.block_size or 1
        ends = -(-lengths // size) * size  # whole blocks; later ones would not be seen
        full = self.full_rows and self.model.attention == "full"
        full &= self.packing.padding_counts or not self.packing.pads
        width = self.length if full else int(ends.max())
        tokens = torch.full((len(items), width), self.roles.mask_id)
        for row, item in zip(tokens, items, strict=True):
            row[: len(begin) + len(item.tokens)] = torch.tensor([*begin, *item.tokens], dtype=torch.long)
        position = torch.arange(width)
        text = position < lengths[:, None]
        numbers = torch.tensor([_number(item) for item in items])
        valid = torch.ones_like(text) if full else position < ends[:, None]
        device = next((weight.device for weight in self.model.parameters()), torch.device("cpu"))
        return Batch(tokens, valid, numbers, numbers, frozen=(position < given[:, None]) | ~text).to(device)

    def _scored(self, batch: Batch, exact: bool, greedy: bool) -> tuple[Tensor, Tensor]:
        """Nats and greedy [B]."""
        if self.model.causal:
            return _left_to_right(self.model, batch)
        if exact:
            nats = enumerated_nats(self.model, batch)
        else:
            nats = position_nats(self.model, batch, draws=self.draws, noise=Noise(self.seed).fork("continuation"))
        right = torch.zeros(len(batch.tokens), dtype=torch.bool, device=batch.tokens.device)
        return nats.double().sum(-1), _surest_first(self.model, batch) if greedy else right


def _left_to_right(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Nats [B], and whether each token of the continuation is the likeliest after those before it [B]."""
    scored = batch.scored
    nats, wrong = torch.zeros(scored.shape, dtype=torch.float64), torch.zeros(scored.shape, dtype=torch.bool)
    if bool(scored.any()):
        hidden = model.features(batch.tokens, segments=batch.segments, output_mask=scored).final
        best, log_p, _ = _predictions(model, hidden, batch.tokens[scored])
        nats[scored.cpu()], wrong[scored.cpu()] = -log_p.cpu().double(), (best != batch.tokens[scored]).cpu()
    return nats.sum(-1), ~wrong.any(-1)


def _surest_first(model: LanguageModel, batch: Batch) -> Tensor:
    """[B] bool: whether writing the likeliest token where the model is surest, one at a time, gives the continuation.

    A row is left as soon as a token is another; until then what was written is what the continuation has there. Block
    diffusion writes one block after another.
    """
    blank, segments = batch.scored.clone(), batch.segments
    length = blank.shape[1]
    blocks = block_numbers(length, model.block_size or length, segments, blank.device).expand_as(blank)
    tokens = batch.tokens.masked_fill(blank, model.vocabulary.mask_id)
    right = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    while bool((open_ := right & blank.any(-1)).any()):
        rows = open_.nonzero()[:, 0]
        masked = (tokens[rows] == model.vocabulary.mask_id) & batch.valid[rows]
        t = LogLinear().inverse(1 - masked.sum(-1) / batch.valid[rows].sum(-1)).clamp(0, 1)
        here = None if segments is None else segments[rows]
        number = blocks[rows]
        current = blank[rows] & (number == number.masked_fill(~blank[rows], length).amin(-1, keepdim=True))
        hidden = model.features(tokens[rows], t, segments=here, output_mask=current).final
        best, _, surest = _predictions(model, hidden, batch.tokens[rows][current])
        score = torch.full(masked.shape, -math.inf, device=tokens.device).masked_scatter(current, surest.float())
        position = (score >= score.amax(-1, keepdim=True) - _TIE).long().argmax(-1)
        written = torch.zeros_like(tokens[rows]).masked_scatter(current, best).gather(-1, position[:, None])[:, 0]
        right[rows] = written == batch.tokens[rows, position]
        tokens[rows, position], blank[rows, position] = written, False
    return right


def _predictions(model: LanguageModel, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From [N, D]: the likeliest token [N], log p of the tokens [N], log p of the likeliest [N]."""
    size = max(1, _SLICE // model.vocabulary.size)
    parts = []
    for h, y in zip(hidden.split(size), tokens.split(size), strict=True):
        log_p = model.logits(h).float().log_softmax(-1)
        surest, best = log_p.max(-1)
        parts.append((best, log_p.gather(-1, y[:, None])[:, 0], surest))
    best, chosen, surest = (torch.cat(column) for column in zip(*parts, strict=True))
    return best, chosen, surest


def _number(item: Continuation) -> int:
    """62 bits of the context; of the text where there is none."""
    text = repr(item.tokens[: item.given] or item.tokens).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2
