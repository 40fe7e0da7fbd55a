"""What the anchors of a two-stage model do: how well each stage predicts, of which tokens, and what is handed over.

Rows are masked by count at a few noise levels. At every masked token both stages predict; the sums of each row are
kept apart by level and by the kind of token, and figures and their errors come from these. The denoiser predicts again
from hand-overs that were tampered with at masked positions (`hand_over_trials.py`): if nothing changes when they tell
no more than how frequent tokens are, the anchors carry nothing.

Padding that a model has to predict is masked as in training, and counts nowhere here.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
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
from adlm.errors import ConfigError, DataError, ModelError
from adlm.evaluate.hand_over_trials import TRIALS, Trials
from adlm.evaluate.jackknife import jackknife, ratio
from adlm.evaluate.result import Figure
from adlm.models.embedding import Head
from adlm.models.language_model import LanguageModel, sigma_at
from adlm.models.two_stage import TwoStage, as_two_stage
from adlm.objectives.linear_cross_entropy import SLICE_LOGITS
from adlm.randomness import Noise
from adlm.types import Batch

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
STAGES = ("anchor stage", "denoiser")
MAIN = ("anchor tokens", "other tokens")
WORDS = ("content words", "function words", "digits", "punctuation", "special tokens")
IN_ROW = ("once in the row", "2 to 5 times in the row", "6 to 20 times in the row", "oftener in the row")
IN_CORPUS = ("rarest quarter", "third quarter", "second quarter", "most frequent quarter")
# Every token is of one kind in each of these.
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
    """What is known of each token type: its words, and how frequent it is in the data.

    Args:
        words: [V] numbers into `WORDS`.
        log_share: [V] log of each type's fraction of all tokens, 1 added to its count; -inf for the mask.
        quarter: [V] numbers into `IN_CORPUS`: types in the order of their counts, cut into four of equal numbers of
            tokens.
    """

    words: Tensor
    log_fraction: Tensor
    quarter: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, table: Table, most_rows: int = 4096) -> "Types":
        """Counted in the rows that are there, or the first of them."""
        roles = tokenizer.roles
        counts = np.zeros(roles.vocab_size, np.int64)
        for start in range(0, min(len(table), most_rows), 256):
            rows = np.arange(start, min(start + 256, len(table), most_rows))
            tokens, lengths = table.tokens(rows), table.lengths(rows)
            text = tokens[np.arange(tokens.shape[1]) < lengths[:, None]]
            if len(text) and text.max() >= roles.vocab_size:
                raise DataError(
                    f"asked for the tokens of {table.name}",
                    f"token {text.max()} in a vocabulary of {roles.vocab_size}",
                    "prepare the data with the model's tokenizer",
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
            "asked what the anchors of a model do",
            "it writes left to right, and nothing is ever masked",
            "name a model with bidirectional stacks",
            subject="attention",
        )
    return anchored


class AnchorNumbers:
    """For `each_of`: the sums of each row, [n, width], and what is in which column."""

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
            raise ConfigError(f"asked for the noise levels {levels}", "not all different and in (0, 1)", "as 0.1,0.5")
        if len(table) == 0:
            raise DataError(f"asked what anchors do in {table.name}", "not one row", "name a set with text in it")
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
        """A batch whose noise goes by the rows' own numbers, and which of its tokens are text and to be predicted."""
        batch = read_rows(self.table, numbers)
        lengths = torch.from_numpy(self.table.lengths(numbers))
        text = (torch.arange(batch.tokens.shape[1]) < lengths[:, None]) & batch.scored
        batch = Batch(batch.tokens, batch.valid, batch.index, batch.index, batch.frozen, None, batch.documents)
        return batch.to(self.device), text.to(self.device)

    def _kinds(self, batch: Batch) -> list[Tensor]:
        """For each of the divisions the number of every token's kind, [B, L]."""
        often = counts_in_row(batch)
        return [
            (~self.rule.mark(batch)).long(),
            self.types.words[batch.tokens],
            torch.bucketize(often, torch.tensor([1, 5, 20], device=often.device)),
            self.types.quarter[batch.tokens],
        ]

    def _noise(self, level: float) -> Noise:
        """The same whatever other levels are asked for."""
        return self.noise.fork(f"{level:g}")

    def _corrupted(self, level: float, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        rates = torch.full((len(batch.tokens),), level, device=batch.tokens.device)
        mask_id = self.model.vocabulary.mask_id
        _, x_t, t, masked, _, _ = CountMasking().at(rates, batch, mask_id, self._noise(level))
        return x_t, masked, t if self.model.time_conditioned else None

    def _sampled_stage(self, number: int) -> tuple[Tensor, Tensor]:
        """Features of the first stage [N, D] at masked tokens of the first rows, for their mean: both kinds of it."""
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
    """From features [N, D]; logits a slice at a time, the mask left out."""
    parts = []
    rows = max(1, SLICE_LOGITS // len(head.bias))
    for h, y in zip(hidden.split(rows), tokens.split(rows), strict=True):
        log_p = head(h).log_softmax(-1)
        top = log_p.max(-1)
        parts.append((-log_p.gather(-1, y[:, None])[:, 0], top.indices, top.values.exp()))
    nats, best, confidence = (torch.cat(each) for each in zip(*parts, strict=True))
    if not (nats.isfinite() & confidence.isfinite()).all():
        raise ModelError("asked what the anchors of a model do", "logits that are not finite", "train it again")
    return _Prediction(nats, best, confidence)


def _columns(levels: Sequence[float]) -> Iterator[Column]:
    for level in levels:
        yield from ((level, kind, *what) for kind in KINDS for what in _PLAIN)
        yield from ((level, kind, *what) for kind in MAIN for what in _OF_BOTH)
        for kind, stage, i, what in itertools.product(MAIN, STAGES, range(BINS), _OF_BIN):
            yield level, kind, stage, f"bin {i} {what}"


def anchor_figures(table: Array, columns: Mapping[Column, int]) -> dict[str, Figure]:
    """Figures from the sums of rows, named "LEVEL, KIND, STAGE: WHAT"; kinds that do not occur at a level are left out.

    `gain over unigram` is what the denoiser's nats rise by when it is told no more than how frequent tokens are.
    """
    figures: dict[str, Figure] = {}

    def add(level: float, kind: str, stage: str, what: str, found: tuple[float, float], unit: str = "") -> None:
        name = ", ".join(filter(None, (f"{level:g}", kind, stage)))
        figures[f"{name}: {what}"] = Figure(*found, unit=unit)

    def of(*names: Column) -> Array:
        return table[:, [columns[name] for name in names]]

    for level in dict.fromkeys(name[0] for name in columns):
        for kind in KINDS:
            count: Column = (level, kind, "", "count")
            if not of(count).sum():
                continue
            for stage in STAGES:
                add(level, kind, stage, "nats", ratio(of((level, kind, stage, "nats"), count)), "nats per token")
                add(level, kind, stage, "accuracy", ratio(of((level, kind, stage, "correct"), count)))
                add(level, kind, stage, "probability", ratio(of((level, kind, stage, "probability"), count)))
            if kind not in MAIN:
                continue
            add(level, kind, "", "agreement", ratio(of((level, kind, "", "agree"), count)))
            for stage in STAGES:
                bins = [
                    (level, kind, stage, f"bin {i} {what}") for what in ("confidence", "correct") for i in range(BINS)
                ]
                add(level, kind, stage, "calibration error", jackknife(of(*bins, count), _calibration_error))
            for trial in TRIALS[1:]:
                nats = of((level, kind, trial, "nats"), count)
                add(level, kind, f"denoiser told {trial}", "nats", ratio(nats), "nats per token")
            gain = of((level, kind, "unigram", "nats"), (level, kind, "denoiser", "nats"), count)
            found = jackknife(gain, lambda sums: (sums[..., 0] - sums[..., 1]) / sums[..., 2])
            add(level, kind, "denoiser", "gain over unigram", found, "nats per token")
    return figures


def reliability(table: Array, columns: Mapping[Column, int], kind: str, stage: str) -> list[tuple[float, float, int]]:
    """Mean confidence, accuracy and tokens of each bin of confidence that has any, over all levels."""
    found = []
    for i in range(BINS):
        count, confidence, correct = (
            sum(
                table[:, position].sum()
                for name, position in columns.items()
                if name[1:] == (kind, stage, f"bin {i} {what}")
            )
            for what in ("count", "confidence", "correct")
        )
        if count:
            found.append((float(confidence / count), float(correct / count), int(count)))
    return found


def _calibration_error(sums: Array) -> Array:
    """sum over bins |confidence - accuracy| * share, from [..., confidences, corrects, count]."""
    gap: Array = np.abs(sums[..., :BINS] - sums[..., BINS : 2 * BINS]).sum(-1) / sums[..., -1]
    return gap
