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
        ids = self.tokenizer.encode(prompt).tolist()
        length = self.config.length
        if len(ids) >= length:
            raise ConfigError(
                f"asked to go on from a prompt of {len(ids)} tokens", f"the model writes {length}", "shorten the prompt"
            )
        canvas = Canvas.continuing([ids] * n, length, self.tokenizer.mask_id)
        return [self._text(row) for row in self._fill(canvas, seed, sampler, watch)]

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
        ids.append(self.tokenizer.roles.eos_id)
        length = self.config.length
        if len(ids) > length:
            raise ConfigError(f"asked to fill a text of {len(ids)} tokens", f"the model reads {length}", "shorten it")
        ids += [self.tokenizer.roles.pad_id] * (length - len(ids))
        canvas = Canvas.infilling([ids] * n, self.tokenizer.mask_id)
        return [self._text(row) for row in self._fill(canvas, seed, sampler, watch)]

    def score(self, text: str, *, draws: int = 64, seed: int = 0) -> Estimate:
        """-log p(text) in nats: exact for a left-to-right model, else the bound with its standard error."""
        ids = [*self.tokenizer.encode(text).tolist(), self.tokenizer.roles.eos_id]
        if len(ids) > self.config.length:
            raise ConfigError(
                f"asked to score a text of {len(ids)} tokens", f"the model reads {self.config.length}", "shorten it"
            )
        tokens = torch.tensor([ids])
        if self.network.causal:
            draws = 1
        # Each draw is one stratum of the mask count, so their spread overstates the error a little.
        rows = torch.arange(draws)
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros(1), torch.zeros(1))
        nats = torch.cat(
            [row_nats(self.network, batch, draws=8, noise=Noise(seed).fork("score", int(i))) for i in rows]
        )
        error = nats.std().item() / math.sqrt(draws) if draws > 1 else 0.0
        return Estimate(nats.mean().item(), error, 0 if self.network.causal else 8 * draws)

    def _fill(self, canvas: Canvas, seed: int, sampler: Sampler | None, watch: Watch | None) -> list[list[int]]:
        sampler = sampler or default_sampler(self.network)
        sample = sampler.sample(self.network, canvas, noise=Noise(seed).fork("sample"), watch=watch)
        return sample.tokens.tolist()

    def _text(self, ids: list[int]) -> str:
        end = self.tokenizer.roles.eos_id
        return self.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)


def load(folder: str | Path) -> TextModel:
    """A model from a folder written by `adlm demo` or `TextModel.save`."""
    return TextModel(*load_model(Path(folder)))
