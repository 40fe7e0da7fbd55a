"""Decisions at marked slots of a text: how probable each of a few options is there.

The probability of an option is the product of its tokens' probabilities, each given the text on both sides (of a
left-to-right model: before it), the option's earlier tokens, and blanks in the other slots. If options have different
numbers of tokens, the likelihood of the context around a hole of that length counts too. Probabilities are normalized
over the options; `mass` is what they had together before, given the length of the likeliest option.
"""

import math
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from adlm.randomness import Noise
from adlm.samplers.constraints import Choice
from adlm.samplers.hole_lengths import context_nats
from adlm.samplers.holes import Template
from adlm.serve.requests import Name, Option, Seed, StrictModel, Text
from adlm.text_model import TextModel

Integer = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class Slot(StrictModel):
    """What is decided at one slot: yes or no, one of several texts, a whole number, or a score."""

    type: Literal["yes_no", "choice", "number", "score"]
    options: Annotated[list[Option], Field(min_length=2, max_length=1000)] | None = Field(
        None, description="of a choice"
    )
    low: Integer | None = Field(None, description="of a number or score; a score is from 1 to 5 by default")
    high: Integer | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Slot":
        if (self.type == "choice") != (self.options is not None):
            raise ValueError("options belong to a choice, and a choice needs them")
        if self.options is not None and len(set(self.options)) < len(self.options):
            raise ValueError("options must differ")
        if self.type in ("number", "score"):
            low, high = self.bounds
            if low >= high:
                raise ValueError("low must be less than high")
        elif self.low is not None or self.high is not None:
            raise ValueError("low and high belong to a number or a score")
        if self.type == "number" and (self.low is None or self.high is None):
            raise ValueError("a number needs low and high")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """Of a number or score."""
        return (1 if self.low is None else self.low), (5 if self.high is None else self.high)

    @property
    def count(self) -> int:
        """How many options there are."""
        low, high = self.bounds
        return len(self.options or ("yes", "no")) if self.type in ("yes_no", "choice") else high - low + 1

    @property
    def texts(self) -> list[str]:
        """The options as they are written."""
        if self.type == "yes_no":
            return ["yes", "no"]
        low, high = self.bounds
        return self.options or [str(number) for number in range(low, high + 1)]


class DecideRequest(StrictModel):
    """A text with one [MASK] per slot, and what is decided at each."""

    text: Text
    slots: Annotated[list[Slot], Field(min_length=1, max_length=64)]
    model: Name | None = None
    seed: Seed = 0


def decide(model: TextModel, ask: DecideRequest) -> list[dict[str, Any]]:
    """The decision at each slot, with the probability of each option."""
    choices = [Choice(tuple(slot.texts)) for slot in ask.slots]
    return [_answer(slot, *_probabilities(model, ask, choices, i)) for i, slot in enumerate(ask.slots)]


def _answer(slot: Slot, probabilities: list[float], mass: float) -> dict[str, Any]:
    texts = slot.texts
    best = max(range(len(texts)), key=probabilities.__getitem__)
    found: dict[str, Any] = {"decision": texts[best], "probability": round(probabilities[best], 6)}
    if slot.type in ("number", "score"):
        numbers = np.array([int(text) for text in texts])
        mean = float(numbers @ np.array(probabilities))
        spread = math.sqrt(max(0.0, float((numbers - mean) ** 2 @ np.array(probabilities))))
        found |= {"mean": round(mean, 6), "standard_deviation": round(spread, 6)}
    options = {text: round(p, 6) for text, p in zip(texts, probabilities, strict=True)}
    return {**found, "probabilities": options, "mass": round(mass, 6)}


def _probabilities(model: TextModel, ask: DecideRequest, choices: list[Choice], slot: int) -> tuple[list[float], float]:
    """Of each option of a slot, the others blank; and what the options of the best one's length have together."""
    mask_id = model.tokenizer.mask_id
    paths: list[list[int]] = []
    rows: list[tuple[int, list[int], int, int]] = []  # option, row, position, token
    contexts: dict[int, list[int]] = {}  # by length, the ids of the text with blank slots
    for option in choices[slot].options:
        template = Template.read(ask.text, model.tokenizer, [*choices[:slot], Choice((option,)), *choices[slot + 1 :]])
        lengths = [min(each) for each in template.lengths]
        language, size = template.languages[slot], lengths[slot]
        path = [int(np.flatnonzero(language.allowed([mask_id] * size, i))[0]) for i in range(size)]
        row = model.rows.infilling(template, lengths)
        start = row.holes[slot][0]
        for i, token in enumerate(path):
            filled = [*row.tokens[:start], *path[:i], *row.tokens[start + i :]]
            rows.append((len(paths), filled, start + i, token))
        contexts.setdefault(size, template.ids(lengths, mask_id))
        paths.append(path)
    logs = [0.0] * len(paths)
    for (option_number, _, _, _), value in zip(rows, _token_logs(model, rows), strict=True):
        logs[option_number] += value
    total = list(logs)
    if len(contexts) > 1 and not model.network.causal:
        finished, counts = zip(*map(model.rows.finished, contexts.values()), strict=True)
        nats = context_nats(model.network, finished, counts, noise=Noise(ask.seed).fork("lengths")).tolist()
        by_length = dict(zip(contexts, nats, strict=True))
        total = [log - by_length[len(path)] for log, path in zip(logs, paths, strict=True)]
    best = max(range(len(total)), key=total.__getitem__)
    weights = [math.exp(value - total[best]) for value in total]
    mass = sum(math.exp(log) for log, path in zip(logs, paths, strict=True) if len(path) == len(paths[best]))
    return [weight / sum(weights) for weight in weights], mass


def _token_logs(model: TextModel, rows: list[tuple[int, list[int], int, int]], at_once: int = 32) -> list[float]:
    """log p of a token at a position of each row; rows of one length are computed together."""
    found = [0.0] * len(rows)
    by_length: dict[int, list[int]] = {}
    for number, (_, row, _, _) in enumerate(rows):
        by_length.setdefault(len(row), []).append(number)
    for numbers in by_length.values():
        for first in range(0, len(numbers), at_once):
            part = numbers[first : first + at_once]
            logs = _log_probabilities(model, torch.tensor([rows[i][1] for i in part]), [rows[i][2] for i in part])
            for number, row in zip(part, logs, strict=True):
                found[number] = float(row[rows[number][3]])
    return found


def _log_probabilities(model: TextModel, tokens: Tensor, positions: list[int]) -> Tensor:
    """[B, V] at one position of each row."""
    network, mask_id = model.network, model.tokenizer.mask_id
    wanted = torch.zeros(tokens.shape, dtype=torch.bool)
    wanted[torch.arange(len(tokens)), torch.tensor(positions)] = True
    device = next(iter(network.parameters())).device
    t = (tokens == mask_id).double().mean(-1).float().to(device) if network.time_conditioned else None
    with torch.no_grad():
        features = network.features(tokens.to(device), t, output_mask=wanted.to(device))
        logits = network.logits(features.final)
    logits[:, mask_id] = -math.inf
    return logits.double().log_softmax(-1).cpu()
