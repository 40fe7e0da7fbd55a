"""Decisions at holes of a text: how probable each of a few options is there.

The probability of an option is the product of its tokens' probabilities, each given the text on both sides (of a
left-to-right model: before it), the option's earlier tokens, and blanks in the other holes. If options have different
numbers of tokens, the likelihood of the context around a hole of that length counts too. Probabilities are normalized
over the options; `mass` is what they had together before, given the length of the likeliest option.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.constraints import Choice
from adlm.samplers.hole_lengths import context_nats
from adlm.samplers.holes import Template
from adlm.text_rows import RowFormat


class Decision(NamedTuple):
    """The probability of each option of a hole; they sum to 1.

    mass: what the options had together before, so a small one means that the model expects something else.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    mass: float

    @property
    def best(self) -> str:
        """The option with the highest probability, the first of several alike."""
        return self.options[int(np.argmax(self.probabilities))]


class _Query(NamedTuple):
    """A token of an option: its probability is read at one position of a row."""

    option: int
    row: tuple[int, ...]
    position: int
    token: int


def decide_holes(
    network: LanguageModel, rows: RowFormat, text: str, choices: Sequence[Choice], *, seed: int
) -> list[Decision]:
    """The decision at each hole; see `TextModel.decide`."""
    Template.read(text, rows.tokenizer, choices)  # raises if there is not one choice per hole
    return [_decision(network, rows, text, choices, hole, seed) for hole in range(len(choices))]


def _decision(
    network: LanguageModel, rows: RowFormat, text: str, choices: Sequence[Choice], hole: int, seed: int
) -> Decision:
    tokenizer, options = rows.tokenizer, choices[hole].options
    queries: list[_Query] = []
    sizes: list[int] = []  # of each option, in tokens
    contexts: dict[int, list[int]] = {}  # by size, the ids of the text with blank holes
    for number, option in enumerate(options):
        template = Template.read(text, tokenizer, [*choices[:hole], Choice((option,)), *choices[hole + 1 :]])
        lengths = [min(each) for each in template.lengths]
        language, size = template.languages[hole], lengths[hole]
        path = [int(np.flatnonzero(language.allowed([tokenizer.mask_id] * size, i))[0]) for i in range(size)]
        row = rows.infilling(template, lengths)
        start = row.holes[hole][0]
        for i, token in enumerate(path):
            filled = (*row.tokens[:start], *path[:i], *row.tokens[start + i :])
            queries.append(_Query(number, filled, start + i, token))
        contexts.setdefault(size, template.ids(lengths, tokenizer.mask_id))
        sizes.append(size)
    logs = [0.0] * len(options)
    for query, value in zip(queries, _token_logs(network, tokenizer.mask_id, queries), strict=True):
        logs[query.option] += value
    total = list(logs)
    if len(contexts) > 1 and not network.causal:
        finished, counts = zip(*map(rows.finished, contexts.values()), strict=True)
        nats = context_nats(network, finished, counts, noise=Noise(seed).fork("lengths")).tolist()
        by_size = dict(zip(contexts, nats, strict=True))
        total = [log - by_size[size] for log, size in zip(logs, sizes, strict=True)]
    best = max(range(len(total)), key=total.__getitem__)
    weights = [math.exp(value - total[best]) for value in total]
    mass = sum(math.exp(log) for log, size in zip(logs, sizes, strict=True) if size == sizes[best])
    return Decision(options, tuple(weight / sum(weights) for weight in weights), mass)


def _token_logs(network: LanguageModel, mask_id: int, queries: Sequence[_Query], at_once: int = 32) -> list[float]:
    """log p of the token of each query. Options share rows, and rows of one length are computed together."""
    found = [0.0] * len(queries)
    by_length: dict[int, dict[tuple[tuple[int, ...], int], list[int]]] = {}
    for number, query in enumerate(queries):
        same_length = by_length.setdefault(len(query.row), {})
        same_length.setdefault((query.row, query.position), []).append(number)
    for same_length in by_length.values():
        keys = list(same_length)
        for first in range(0, len(keys), at_once):
            part = keys[first : first + at_once]
            tokens = torch.tensor([row for row, _ in part])
            logs = _log_probabilities(network, mask_id, tokens, [position for _, position in part])
            for key, row_logs in zip(part, logs, strict=True):
                for number in same_length[key]:
                    found[number] = float(row_logs[queries[number].token])
    return found


def _log_probabilities(network: LanguageModel, mask_id: int, tokens: Tensor, positions: Sequence[int]) -> Tensor:
    """[B, V] at one position of each row."""
    output_mask = torch.zeros(tokens.shape, dtype=torch.bool)
    output_mask[torch.arange(len(tokens)), torch.tensor(positions)] = True
    device = next(iter(network.parameters())).device
    t = (tokens == mask_id).double().mean(-1).float().to(device) if network.time_conditioned else None
    with torch.no_grad():
        features = network.features(tokens.to(device), t, output_mask=output_mask.to(device))
        logits = network.logits(features.final)
    logits[:, mask_id] = -math.inf
    return logits.double().log_softmax(-1).cpu()
