"""The cost of a text under a model, token by token."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.errors import ConfigError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import mean_of, position_nats
from adlm.randomness import Noise
from adlm.text_rows import RowFormat
from adlm.types import Batch, Estimate

_REPEATS = 8
Span = str | tuple[int, int]


class Score(NamedTuple):
    """The score of a text: -log p in nats, its tokens, and what each token adds to the mean of `nats`."""

    nats: Estimate
    tokens: tuple[str, ...]
    surprise: tuple[float, ...]


def score_text(
    network: LanguageModel, rows: RowFormat, text: str, *, span: Span | None, draws: int, seed: int
) -> Score:
    """Score a text; see `TextModel.score`."""
    ids, counts = rows.finished(rows.tokenizer.encode_known(text).tolist())
    if draws < 1:
        raise OutOfRange("draws", draws, "at least 1")
    if not ids:
        raise ConfigError("a text without tokens has no score", subject="text")
    repeats = 1 if network.causal else max(2, min(_REPEATS, draws))
    numbers = torch.arange(repeats)
    tokens, valid = torch.tensor([ids] * repeats), torch.tensor([counts] * repeats)
    frozen = None if span is None else ~_inside(span, text, rows, len(ids)).expand_as(tokens)
    batch = Batch(tokens, valid, numbers, numbers, frozen).to(next(network.parameters()).device)
    strata = max(1, draws // repeats)
    costs = position_nats(network, batch, draws=strata, noise=Noise(seed).fork("score")).cpu()
    nats = costs.double().sum(-1)
    estimate = Estimate(nats.item(), 0.0, 0) if network.causal else mean_of(nats, repeats * strata)
    scored = batch.scored[0].cpu()
    names = tuple(rows.tokenizer.token(i) for i in tokens[0, scored].tolist())
    return Score(estimate, names, tuple(costs.double().mean(0)[scored].tolist()))


def _inside(span: Span, text: str, rows: RowFormat, length: int) -> Tensor:
    """[length] bool: the positions of a row whose tokens reach into a part of the text."""
    if isinstance(span, str):
        if (found := text.count(span)) != 1 or not span:
            raise ConfigError(
                f"the span {span!r} occurs {found} times in the text",
                fix="give the numbers of its first character and the one after its last",
                subject="span",
            )
        span = (text.index(span), text.index(span) + len(span))
    first, after = span
    if not 0 <= first < after <= len(text):
        raise OutOfRange("span", span, f"within the text: 0 <= first < after <= {len(text)}")
    inside = torch.tensor([start < after and end > first for start, end in rows.tokenizer.offsets(text)])
    if not inside[-1]:
        rows.check_right("what follows a span", "span")
    return F.pad(inside, (len(rows.begin), length - len(rows.begin) - len(inside)))
