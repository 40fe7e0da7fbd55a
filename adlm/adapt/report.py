"""What an adaptation did, as a value: likelihoods before and after, and the ways to decode."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adlm.adapt.measures import EXACT, Decoding
from adlm.files import write_atomically
from adlm.models.card import CARD, Facts, card_text, may_replace
from adlm.text_model import TextModel
from adlm.types import Estimate

REPORT = "adapt.json"


@dataclass(frozen=True)
class HeldOut:
    """Nats per token of one held-out text.

    Args:
        data: its name; self: texts that the source sampled, of which no model can have less than the source has.
        source: of the left-to-right model, exact.
        before: by block size, of the initial weights read that way; 1 is left to right, 0 the whole row.
        after: the same at the end of training.
    """

    data: str
    source: Estimate
    before: Mapping[int, Estimate]
    after: Mapping[int, Estimate]

    def distance(self, size: int) -> float:
        """By how many nats per token the adapted model is above the source."""
        return self.after[size].mean - self.source.mean


@dataclass(frozen=True)
class AdaptReport:
    """The report that `adapt` returns and writes to OUT/adapt.json."""

    source: str
    to: str
    data: tuple[str, ...]
    parameters: int
    steps: int
    tokens: int
    held_out: tuple[HeldOut, ...]
    decodings: tuple[Decoding, ...]

    @property
    def default_decoding(self) -> Decoding | None:
        """The faster of the ways that follow the left-to-right distribution exactly; None if it was not trained."""
        exact = [each for each in self.decodings[1:] if each.options["sampler"] in EXACT]
        return max(exact, key=lambda each: each.tokens_per_second, default=None)

    def save(self, folder: Path) -> None:
        """Write OUT/adapt.json."""
        write_atomically(folder / REPORT, json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        plain = asdict(self)
        for text, each in zip(plain["held_out"], self.held_out, strict=True):
            text["source"] = each.source._asdict()
            for name in ("before", "after"):
                text[name] = {str(size): found._asdict() for size, found in getattr(each, name).items()}
        plain["decodings"] = [each._asdict() for each in self.decodings]
        return plain

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The likelihoods as lines of a table: data, block size, before, after, distance from the source."""
        found = []
        for each in self.held_out:
            found.append((each.data, "source, left to right", "", _shown(each.source), ""))
            for size, after in each.after.items():
                distance = each.distance(size)
                share = f"{distance:+.3f} ({distance / each.source.mean:+.0%})"
                found.append(("", reading_name(size), _shown(each.before[size]), _shown(after), share))
        return found

    def write_card(self, folder: Path, model: TextModel) -> None:
        """Add the origin of the model to its card, unless the card was edited."""
        if not may_replace(folder / CARD):
            return
        figures = {
            f"nats per token, {each.data}, {reading_name(size)}": found
            for each in self.held_out
            for size, found in each.after.items()
        }
        sources = {f"nats per token, {each.data}, the model it came from": each.source for each in self.held_out}
        facts = Facts(
            data=f"{' and '.join(f'`{name}`' for name in self.data)}: {self.steps:,} steps, {self.tokens:,} tokens, "
            "by `adlm adapt`.",
            figures={**sources, **figures},
            notes=f"Adapted from the left-to-right model `{self.source}` to `{self.to}`. "
            "`self` is text that that model sampled.",
        )
        config = model.config
        text = card_text(model.network, config.network, config.vocabulary, config.packing, facts)
        write_atomically(folder / CARD, text)


def reading_name(size: int) -> str:
    """The name of a block size in reports."""
    return "whole rows" if size == 0 else "left to right" if size == 1 else f"blocks of {size}"


def _shown(found: Estimate) -> str:
    return f"{'≤ ' if found.draws else ''}{found.mean:.3f} ± {found.error:.3f}"
