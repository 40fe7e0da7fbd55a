"""Decisions at marked slots of a text, as `/v1/decide` takes and answers them."""

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from adlm.decisions import Decision
from adlm.samplers.constraints import Choice
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
    found = model.decide(ask.text, [Choice(tuple(slot.texts)) for slot in ask.slots], seed=ask.seed)
    return [_answer(slot, decision) for slot, decision in zip(ask.slots, found, strict=True)]


def _answer(slot: Slot, decision: Decision) -> dict[str, Any]:
    probabilities = decision.probabilities
    found: dict[str, Any] = {"decision": decision.best, "probability": round(max(probabilities), 6)}
    if slot.type in ("number", "score"):
        numbers = np.array([int(text) for text in decision.options])
        mean = float(numbers @ np.array(probabilities))
        spread = math.sqrt(max(0.0, float((numbers - mean) ** 2 @ np.array(probabilities))))
        found |= {"mean": round(mean, 6), "standard_deviation": round(spread, 6)}
    options = {text: round(p, 6) for text, p in zip(decision.options, probabilities, strict=True)}
    return {**found, "probabilities": options, "mass": round(decision.mass, 6)}
