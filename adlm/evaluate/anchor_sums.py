"""The predictions of both stages of a two-stage model at masked tokens, summed by row, noise level and kind of token.

Rows are masked by count at a few noise levels, and both stages predict every masked token. The denoiser predicts again
from inputs that were changed at masked positions (`anchor_trials.py`). Padding that a model has to predict is masked as
in training, and not counted.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.anchors.rules import AnchorRule, counts_in_row
from adlm.anchors.words import is_content_word
from adlm.data.loader import read_rows
from adlm.data.table import Table
from adlm.data.tokenizer import Tokenizer
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError, DataError, ModelError, OutOfRange
from adlm.evaluate.anchor_trials import TRIALS, Trials
from adlm.models.embedding import Head
from adlm.models.language_model import LanguageModel
from adlm.models.layers import sigma_at
from adlm.models.two_stage import TwoStage, as_two_stage
from adlm.objectives.linear_cross_entropy import SLICE_LOGITS
from adlm.randomness import Noise
from adlm.types import Batch

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
STAGES = ("anchor stage", "denoiser")
MAIN = ("anchor tokens", "other tokens")
WORDS = ("content words", "function words", "digits", "punctuation", "special tokens")
IN_ROW = ("once in the row", "2 to 5 times in the row", "6 to 20 times in the row", "more often in the row")
IN_CORPUS = ("rarest quarter", "third quarter", "second quarter", "most frequent quarter")
# Every token is of exactly one kind in each of these.
DIVISIONS = (MAIN, WORDS, IN_ROW, IN_CORPUS)
KINDS = (*MAIN, *WORDS, *IN_ROW, *IN_CORPUS)
LEVELS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
BINS = 10

# Level, kind of token, stage or trial or nothing, and what is summed.
Column = tuple[float, str, str, str]
_PLAIN = (("", "count"), *((stage, what) for stage in STAGES for what in ("nats", "correct", "probability")))
_OF_BOTH = (("", "agree"), *((trial, "nats") for trial in TRIALS[1:]))
_OF_BIN = ("count", "confidence", "correct")


class _Prediction(NamedTuple):
    """At N positions: nats of the true token, the likeliest token and its probability."""

    nats: Tensor
    best: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class Types:
    """The kind of word and the frequency of each token type.

    Args:
        words: [V] indices into `WORDS`.
        log_fraction: [V] log of each type's fraction of all tokens, 1 added to its count; -inf for the mask.
        quarter: [V] indices into `IN_CORPUS`: types in the order of their counts, cut into four parts with equal
            numbers of tokens.
    """

    words: Tensor
    log_fraction: Tensor
    quarter: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, table: Table, most_rows: int = 4096) -> "Types":
        """Types counted in the first rows of a table."""
        roles = tokenizer.roles
        counts = np.zeros(roles.vocab_size, np.int64)
        for start in range(0, min(len(table), most_rows), 256):
            rows = np.arange(start, min(start + 256, len(table), most_rows))
            tokens, lengths = table.tokens(rows), table.lengths(rows)
            text = tokens[np.arange(tokens.shape[1]) < lengths[:, None]]
            if len(text) and text.max() >= roles.vocab_size:
                raise DataError(
                    f"token {text.max()} of {table.name} is not in the vocabulary of {roles.vocab_size}",
                    fix="prepare the data with the model's tokenizer",
                    subject=table.name,
                )
            counts += np.bincount(text, minlength=roles.vocab_size)
        special = {roles.mask_id, roles.eos_id, roles.bos_id, roles.pad_id}
        words = [4 if i in special else _word_kind(tokenizer.token(i)) for i in range(roles.vocab_size)]
        fractions = torch.from_numpy((counts + 1) / (counts + 1).sum()).float()
        fractions[roles.mask_id] = 0
        order = np.argsort(counts, kind="stable")
        behind = (counts[order].cumsum() - counts[order] / 2) / max(1, counts.sum())
        quarter = np.empty(roles.vocab_size, np.int64)
        quarter[order] = np.minimum(behind * 4, 3).astype(np.int64)
        return cls(torch.tensor(words), (fractions / fractions.sum()).log(), torch.from_numpy(quarter))


def _word_kind(text: str) -> int:
    if not any(c.isalnum() for c in text):
        return WORDS.index("punctuation")
    if all(c.isdigit() for c in text.strip()):
        return WORDS.index("digits")
    return WORDS.index("content words" if is_content_word(text) else "function words")


def check_anchored(model: LanguageModel) -> TwoStage:
    """The model, if it has two stages and masks."""
    anchored = as_two_stage(model, "what its anchors do")
    if model.causal:
        raise ConfigError(
            "the model writes left to right: nothing is ever masked",
            fix="name an anchored diffusion model",
            subject="model",
        )
    return anchored


class AnchorNumbers:
    """A function from row numbers [n] to the sums of each row [n, width]; `columns` says which sum is where."""

    def __init__(
        self,
        model: LanguageModel,
        table: Table,
        types: Types,
        rule: AnchorRule,
        *,
        levels: Sequence[float] = LEVELS,
        seed: int = 0,
    ) -> None:
        if not levels or not all(0 < level < 1 for level in levels) or len(set(levels)) < len(levels):
            raise OutOfRange("levels", list(levels), "different numbers between 0 and 1")
        if len(table) == 0:
            raise DataError(f"{table.name} has no rows", subject=table.name)
        self.model, self.table, self.rule = check_anchored(model).eval(), table, rule
        self.levels, self.noise = tuple(levels), Noise(seed).fork("anchors")
        self.device = next(model.parameters()).device
        self.types = Types(*(each.to(self.device) for each in (types.words, types.log_fraction, types.quarter)))
        self.columns = {name: i for i, name in enumerate(_columns(self.levels))}
        self.trials = Trials(self.model, self.types.log_fraction, self._sampled_stage)

    @property
    def width(self) -> int:
        return len(self.columns)

    @torch.no_grad()
    def __call__(self, numbers: Numbers) -> Array:
        batch, text = self._rows(numbers)
        kinds = self._kinds(batch)
        out = np.zeros((len(numbers), self.width))
        with self.model.inference_weights():
            for number, level in enumerate(self.levels):
                for name, sums in self._at(level, number, batch, text, kinds):
                    out[:, self.columns[name]] = sums.double().cpu().numpy()
        return out

    def _rows(self, numbers: Numbers) -> tuple[Batch, Tensor]:
        """A batch whose noise depends on the rows' own numbers, and which of its tokens are text to be predicted."""
        batch = read_rows(self.table, numbers)
        lengths = torch.from_numpy(self.table.lengths(numbers))
        text = (torch.arange(batch.tokens.shape[1]) < lengths[:, None]) & batch.scored
        batch = Batch(batch.tokens, batch.valid, batch.index, batch.index, batch.frozen, None, batch.documents)
        return batch.to(self.device), text.to(self.device)

    def _kinds(self, batch: Batch) -> list[Tensor]:
        """The kind of every token in each division, as indices [B, L]."""
        often = counts_in_row(batch)
        return [
            (~self.rule.mark(batch)).long(),
            self.types.words[batch.tokens],
            torch.bucketize(often, torch.tensor([1, 5, 20], device=often.device)),
            self.types.quarter[batch.tokens],
        ]

    def _noise(self, level: float) -> Noise:
        """The noise of a level, whatever other levels there are."""
        return self.noise.fork(f"{level:g}")

    def _corrupted(self, level: float, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        levels = torch.full((len(batch.tokens),), level, device=batch.tokens.device)
        mask_id = self.model.vocabulary.mask_id
        _, x_t, t, masked, *_ = CountMasking().at(levels, batch, mask_id, self._noise(level))
        return x_t, masked, t if self.model.time_conditioned else None

    def _sampled_stage(self, number: int) -> tuple[Tensor, Tensor]:
        """Residual and anchor features [N, D] of the first stage at masked tokens of the first rows, for their mean."""
        batch, text = self._rows(np.arange(min(len(self.table), 64)))
        x_t, masked, t = self._corrupted(self.levels[number], batch)
        stage = self.model.anchor_stage(x_t, t, segments=batch.segments)
        return stage.residual[masked & text], stage.anchor[masked & text]

    def _at(
        self, level: float, number: int, batch: Batch, text: Tensor, kinds: Sequence[Tensor]
    ) -> Iterator[tuple[Column, Tensor]]:
        model, segments = self.model, batch.segments
        x_t, masked, t = self._corrupted(level, batch)
        counted = masked & text
        row, token = counted.nonzero()[:, 0], batch.tokens[counted]

        def sums(kind: Tensor, count: int, *values: Tensor) -> Tensor:
            """[B, count, values] over the masked tokens of each row and kind."""
            out = torch.zeros(len(batch.tokens) * count, len(values), dtype=torch.float64, device=row.device)
            added = torch.stack([each.double() for each in values], -1)
            return out.index_add(0, row * count + kind, added).view(-1, count, len(values))

        stage = model.anchor_stage(x_t, t, segments=segments)
        order = self._noise(level).fork("order").uniform(batch.sample_id, x_t.shape[1])
        final = {
            trial: model.denoiser(handed, sigma_at(t), segments, counted)[1]
            for trial, handed in self.trials.hand_overs(number, stage, batch, masked, t, order)
        }
        told = {trial: _predicted(model.head, hidden, token) for trial, hidden in final.items()}
        predicted = (_predicted(model.anchor_head, stage.anchor[counted], token), told[TRIALS[0]])
        one, main = torch.ones_like(row), kinds[0][counted]
        plain = [value for each in predicted for value in (each.nats, each.best == token, (-each.nats).exp())]
        for names, kind in zip(DIVISIONS, kinds, strict=True):
            found = sums(kind[counted], len(names), one, *plain)
            for i, name in enumerate(names):
                yield from (((level, name, *what), found[:, i, j]) for j, what in enumerate(_PLAIN))
        agree = predicted[0].best == predicted[1].best
        found = sums(main, len(MAIN), agree, *(told[trial].nats for trial in TRIALS[1:]))
        for i, name in enumerate(MAIN):
            yield from (((level, name, *what), found[:, i, j]) for j, what in enumerate(_OF_BOTH))
        for stage_name, each in zip(STAGES, predicted, strict=True):
            position = (each.confidence * BINS).long().clamp_max(BINS - 1)
            found = sums(main * BINS + position, len(MAIN) * BINS, one, each.confidence, each.best == token)
            for i, (name, bin_) in enumerate(itertools.product(MAIN, range(BINS))):
                yield from (
                    ((level, name, stage_name, f"bin {bin_} {what}"), found[:, i, j]) for j, what in enumerate(_OF_BIN)
                )


def _predicted(head: Head, hidden: Tensor, tokens: Tensor) -> _Prediction:
    """Predictions from features [N, D]; logits are computed in slices, without the mask."""
    parts = []
    rows = max(1, SLICE_LOGITS // len(head.bias))
    for h, y in zip(hidden.split(rows), tokens.split(rows), strict=True):
        log_p = head(h).log_softmax(-1)
        top = log_p.max(-1)
        parts.append((-log_p.gather(-1, y[:, None])[:, 0], top.indices, top.values.exp()))
    nats, best, confidence = (torch.cat(each) for each in zip(*parts, strict=True))
    if not (nats.isfinite() & confidence.isfinite()).all():
        raise ModelError("the model's logits are not finite", fix="train it again", subject="logits")
    return _Prediction(nats, best, confidence)


def _columns(levels: Sequence[float]) -> Iterator[Column]:
    for level in levels:
        yield from ((level, kind, *what) for kind in KINDS for what in _PLAIN)
        yield from ((level, kind, *what) for kind in MAIN for what in _OF_BOTH)
        for kind, stage, i, what in itertools.product(MAIN, STAGES, range(BINS), _OF_BIN):
            yield level, kind, stage, f"bin {i} {what}"
