"""The front door: a network and its tokenizer together, as text in and text out."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from adlm.data.tokenizer import MASK, Tokenizer
from adlm.errors import ConfigError
from adlm.evaluate.perplexity import row_nats
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.sampler import Sampler, Watch, default_sampler
from adlm.types import Batch, Estimate

_REPEATS = 8


@dataclass(frozen=True)
class TextModel:
    """A trained model that reads and writes text."""

    network: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer

    def save(self, folder: str | Path) -> None:
        """Write a folder that `adlm.load` reads."""
        save_model(Path(folder), self.network, self.config, self.tokenizer)

    def generate(
        self, prompt: str = "", *, n: int = 1, seed: int = 0, sampler: Sampler | None = None, watch: Watch | None = None
    ) -> list[str]:
        """`n` texts that go on from `prompt`, prompt included, up to the end token or the model's length."""
        begin, _ = self.config.rows.frame(self.tokenizer.roles)
        ids = begin + self._fitting(self.tokenizer.encode(prompt).tolist(), "go on from")
        canvas = Canvas.continuing([ids] * _positive("n", n), self.config.rows.length, self.tokenizer.mask_id)
        return self._fill(canvas, seed, sampler, watch)

    def infill(
        self, text: str, *, n: int = 1, seed: int = 0, sampler: Sampler | None = None, watch: Watch | None = None
    ) -> list[str]:
        """Fill every `[MASK]` in `text` with one token each."""
        parts = text.split(MASK)
        if len(parts) == 1:
            raise ConfigError("asked to fill holes", f"no {MASK} in the text", f"write {MASK} for each missing token")
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self.tokenizer.mask_id] * (i > 0) + self.tokenizer.encode(part).tolist()
        row, _ = self._row(self._fitting(ids, "fill"))
        canvas = Canvas.infilling([row] * _positive("n", n), self.tokenizer.mask_id)
        return self._fill(canvas, seed, sampler, watch)

    def score(self, text: str, *, draws: int = 64, seed: int = 0) -> Estimate:
        """-log p(text) in nats: exact for a left-to-right model, else the bound with its standard error.

        The bound is the mean of independent estimates, each from mask counts stratified over the row, and the
        error comes from their spread.
        """
        ids, counts = self._row(self._fitting(self.tokenizer.encode(text).tolist(), "score"))
        repeats = 1 if self.network.causal else max(2, min(_REPEATS, _positive("draws", draws)))
        rows = torch.arange(repeats)
        batch = Batch(torch.tensor([ids] * repeats), torch.tensor([counts] * repeats), rows, rows)
        strata = max(1, draws // repeats)
        nats = row_nats(self.network, batch, draws=strata, noise=Noise(seed).fork("score")).double()
        if self.network.causal:
            return Estimate(nats.item(), 0.0, 0)
        return Estimate(nats.mean().item(), nats.std().item() / math.sqrt(repeats), repeats * strata)

    def _fitting(self, ids: list[int], purpose: str) -> list[int]:
        rows = self.config.rows
        room = rows.length - sum(map(len, rows.frame(self.tokenizer.roles)))
        if len(ids) > room:
            raise ConfigError(
                f"asked to {purpose} a text of {len(ids)} tokens",
                f"the model's rows have room for {room}",
                "shorten it",
            )
        return ids

    def _row(self, ids: list[int]) -> tuple[list[int], list[bool]]:
        """A finished text as the rows of training were: framed, and with padding where they had it."""
        roles, rows = self.tokenizer.roles, self.config.rows
        begin, end = rows.frame(roles)
        ids = [*begin, *ids, *end]
        padding = rows.length - len(ids) if rows.pads else 0
        return ids + [roles.pad_id] * padding, [True] * len(ids) + [rows.padding_counts] * padding

    def _fill(self, canvas: Canvas, seed: int, sampler: Sampler | None, watch: Watch | None) -> list[str]:
        sampler = sampler or default_sampler(self.network)
        sample = sampler.sample(self.network, canvas, noise=Noise(seed).fork("sample"), watch=watch)
        begin, _ = self.config.rows.frame(self.tokenizer.roles)
        return [self._text(row[len(begin) :]) for row in sample.tokens.tolist()]

    def _text(self, ids: list[int]) -> str:
        end = self.tokenizer.roles.eos_id
        return self.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"asked for {name}={value}", "fewer than 1", "give 1 or more")
    return value


def load(folder: str | Path) -> TextModel:
    """A model from a folder written by `adlm demo` or `TextModel.save`."""
    return TextModel(*load_model(Path(folder)))
