"""Exact measures on generated stories: the process that writes them is known, so a model's distance to it is, too.

    KL(truth, model) = E over true stories of (log p(story) - log q(story)) >= 0

with log p exact for every story and -log q exact left to right, else a bound, which then bounds the divergence. Paired
story by story: the differences vary far less than the costs do. Of samples: how many the grammar could have told, what
is wrong with the others, and how likely the grammar finds the good ones.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.data.packing import Packing
from adlm.data.stories import Stories
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, ModelError
from adlm.evaluate.bound import mean_of, position_nats
from adlm.evaluate.result import Figure
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.types import Batch

Array = NDArray[np.float64]
_KINDS = (
    (re.compile(r"sentence \d+: the (\w+) '.*' should be"), "wrong {}"),
    (re.compile(r"the (\w+) '.*' does not go with"), "{} that does not go with the rest"),
    (re.compile(r"sentence \d+ does not go with"), "sentence that does not go with the rest"),
    (re.compile(r"sentence \d+: unknown here"), "unknown sentence"),
    (re.compile(r"number of sentences"), "wrong number of sentences"),
    (re.compile(r"no word tells which (\w+)"), "{} never told"),
)


def story_rows(texts: Sequence[str], tokenizer: Tokenizer, packing: Packing) -> Batch:
    """Each story on a row of its own, as rows of training are, its noise by its number."""
    asked = "asked for exact measures on stories"
    begin, end = packing.frame(tokenizer.roles)
    ids = [[*begin, *row.tolist(), *end] for row in tokenizer.encode_batch(texts)]
    longest = max(map(len, ids))
    if longest > packing.length:
        raise ConfigError(
            asked, f"a story of {longest} tokens, rows of {packing.length}", "name a model that was trained on stories"
        )
    for text, row in zip(texts, ids, strict=True):
        if (read := tokenizer.decode(row)).strip() != text:
            raise ConfigError(
                asked, f"a tokenizer that reads {text[:30]!r} as {read[:30]!r}", "name a model trained on stories"
            )
    counts = packing.pads and packing.padding_counts
    length = packing.length if counts else longest
    tokens = torch.tensor([row + [tokenizer.roles.pad_id] * (length - len(row)) for row in ids])
    valid = torch.stack([(torch.arange(length) < len(row)) | counts for row in ids])
    numbers = torch.arange(len(ids))
    return Batch(tokens, valid, numbers, numbers)


def gives_length(model: LanguageModel, packing: Packing) -> bool:
    """Whether the model is told how long a story is: masked ones are, where they do not have to write the padding."""
    return not model.causal and not (packing.pads and packing.padding_counts)


def story_nats(
    model: LanguageModel, rows: Batch, *, draws: int = 8, seed: int = 0
) -> Callable[[NDArray[np.int64]], Array]:
    """For `each_of`: -log q of each story, or its bound, [n, 1]."""
    noise = Noise(seed).fork("stories")
    device = next(model.parameters(), torch.zeros(0)).device

    def compute(numbers: NDArray[np.int64]) -> Array:
        chosen = torch.from_numpy(numbers)
        batch = Batch(rows.tokens[chosen], rows.valid[chosen], chosen, chosen).to(device)
        with torch.no_grad():
            nats = position_nats(model, batch, draws=draws, noise=noise).double().sum(-1).cpu()
        if not nats.isfinite().all():
            raise ModelError("asked what stories cost", "a cost that is no finite number", "train it again")
        return nats.numpy()[:, None]

    return compute


def likelihood_figures(nats: Array, exact: Array, source: Stories, *, kind: str, draws: int) -> dict[str, Figure]:
    """From the costs [n] of stories under a model and under the grammar, -log q and -log p."""

    def mean(values: Array) -> tuple[float, float]:
        found = mean_of(torch.from_numpy(values), draws)
        return found.mean, found.error

    return {
        "cross-entropy": Figure(*mean(nats), kind=kind, unit="nats per story", draws=draws),
        "entropy": Figure(source.entropy(), kind="exact", unit="nats per story"),
        "divergence": Figure(*mean(nats - exact), kind=kind, unit="nats per story", draws=draws),
    }


def sample_figures(texts: Sequence[str], source: Stories) -> dict[str, Figure]:
    """How many samples the grammar could have told, how likely it finds those, and what is wrong with the others."""
    found = [source.problems(text) for text in texts]
    flawless = [text for text, problems in zip(texts, found, strict=True) if not problems]
    figures = {"flawless": _fraction(len(flawless), len(texts))}
    if flawless:
        likely = mean_of(torch.tensor([source.log_likelihood(text) for text in flawless]), 0)
        figures["log-likelihood of flawless"] = Figure(likely.mean, likely.error, unit="nats per story")
        figures["distinct among flawless"] = Figure(len(set(flawless)) / len(flawless), None, "exact")
    kinds = Counter(kind for problems in found for kind in {kind_of(problem) for problem in problems})
    return figures | {f"share with {kind}": _fraction(count, len(texts)) for kind, count in kinds.most_common()}


def kind_of(problem: str) -> str:
    """The rule that a problem of `Stories.problems` breaks."""
    for pattern, kind in _KINDS:
        if found := pattern.match(problem):
            return kind.format(*found.groups())
    return "other"


def _fraction(count: int, of: int) -> Figure:
    """With its binomial error, for which one more of each kind is taken to be there: 0 of 100 is not for sure 0."""
    likely = (count + 1) / (of + 2)
    return Figure(count / of, math.sqrt(likely * (1 - likely) / of))
