"""The front door: a network and its tokenizer together, as text in and text out."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from huggingface_hub import HfApi, ModelCard, ModelHubMixin
from torch import Tensor

from adlm.data.tokenizer import MASK, Tokenizer
from adlm.errors import ConfigError
from adlm.evaluate.bound import mean_of, position_nats
from adlm.models.card import CARD, Facts, card_text
from adlm.models.hub import explained, find_model, has_edited_card
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.board import Watch
from adlm.samplers.canvas import Canvas
from adlm.samplers.named import default_sampler
from adlm.samplers.sampler import Sampler
from adlm.types import Batch, Estimate

_REPEATS = 8


class Score(NamedTuple):
    """What a text costs, and what each of its tokens adds to that (their sum is the mean of `nats`)."""

    nats: Estimate
    tokens: tuple[str, ...]
    surprise: tuple[float, ...]


class TextModel(ModelHubMixin, library_name="adlm"):
    """A trained model that reads and writes text.

    On the Hugging Face Hub: `from_pretrained`, `save_pretrained`, `push_to_hub`.
    """

    def __init__(self, network: LanguageModel, config: ModelConfig, tokenizer: Tokenizer) -> None:
        self.network: Final = network
        self.config: Final = config
        self.tokenizer: Final = tokenizer

    def save(self, folder: str | Path, *, facts: Facts | None = None) -> None:
        """Write a folder that `adlm.load` reads, replacing the model in it if there is one.

        Args:
            facts: what its card says beyond what the network shows: licence, training data, figures.
        """
        save_model(Path(folder), self.network, self.config, self.tokenizer, facts=facts)

    # The mixin's own versions of the next two take config.json into their hands: one removes it before anything is
    # written, the other reads it loosely. What is left of them is what belongs to the Hub.
    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """As `save`, with `Facts` as `model_card_kwargs`; then to the Hub, if asked."""
        if config not in (None, self.config):
            raise ConfigError("asked to save a model with another config", repr(config), "leave config out")
        self.save(save_directory, facts=Facts(**(model_card_kwargs or {})))
        if not push_to_hub:
            return None
        name = repo_id or Path(save_directory).name
        return self.push_to_hub(name, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override] # the mixin's returns any of its children
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> "TextModel":
        """As `adlm.load`, with the Hub's options."""
        asked = f"asked to load the model {str(pretrained_model_name_or_path)!r}"
        folder = find_model(
            pretrained_model_name_or_path,
            revision=revision,
            asked=asked + (f" at {revision!r}" if revision else ""),
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
        return cls(*load_model(folder, asked=asked))

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model; returns the address of the commit. A card that was edited on the Hub stays.

        Args:
            options: of `huggingface_hub.ModelHubMixin.push_to_hub`: private, token, branch, commit_message,
                model_card_kwargs (see `Facts`) and others.
        """
        token, private, branch = options.get("token"), options.get("private"), options.get("branch")
        with explained(f"asked to push a model to {repo_id!r}"):
            repo_id = HfApi(token=token).create_repo(repo_id, private=private, exist_ok=True).repo_id
            if has_edited_card(repo_id, revision=branch, token=token):
                ignored = options.get("ignore_patterns") or []
                options["ignore_patterns"] = [*([ignored] if isinstance(ignored, str) else ignored), CARD]
            return super().push_to_hub(repo_id, **options)

    def generate_model_card(self, **facts: Any) -> ModelCard:
        """The card that `save` writes."""
        config = self.config
        return ModelCard(card_text(self.network, config.network, config.vocabulary, config.rows, Facts(**facts)))

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

    def score(self, text: str, *, span: str | tuple[int, int] | None = None, draws: int = 64, seed: int = 0) -> Score:
        """-log p(text) in nats: exact for a left-to-right model, else the bound with its standard error.

        The bound is the mean of independent estimates, each from mask counts stratified over the row, and the
        error comes from their spread.

        Args:
            span: score only this part, given all the rest: a piece of the text that occurs once, or the numbers of
                its first character and the one after its last. Tokens that reach into it count whole.
            draws: mask counts in all.
        """
        network = self.network
        ids, counts = self._row(self._fitting(self.tokenizer.encode(text).tolist(), "score"))
        repeats = 1 if network.causal else max(2, min(_REPEATS, _positive("draws", draws)))
        rows = torch.arange(repeats)
        tokens, valid = torch.tensor([ids] * repeats), torch.tensor([counts] * repeats)
        fixed = None if span is None else ~self._tokens_of(span, text, len(ids)).expand_as(tokens)
        batch = Batch(tokens, valid, rows, rows, fixed)
        strata = max(1, draws // repeats)
        costs = position_nats(network, batch, draws=strata, noise=Noise(seed).fork("score"))
        nats = costs.double().sum(-1)
        estimate = Estimate(nats.item(), 0.0, 0) if network.causal else mean_of(nats, repeats * strata)
        scored = batch.scored[0]
        surprise = costs.double().mean(0)[scored]
        names = tuple(self.tokenizer.token(i) for i in tokens[0, scored].tolist())
        return Score(estimate, names, tuple(surprise.tolist()))

    def _tokens_of(self, span: str | tuple[int, int], text: str, length: int) -> Tensor:
        """[length] bool: the positions of a row whose tokens reach into a part of the text."""
        asked = f"asked to score {span!r} in a text of {len(text)} characters"
        if isinstance(span, str):
            if (found := text.count(span)) != 1 or not span:
                raise ConfigError(asked, f"it occurs {found} times", "give its first and last character's numbers")
            span = (text.index(span), text.index(span) + len(span))
        first, after = span
        if not 0 <= first < after <= len(text):
            raise ConfigError(asked, "it is empty or lies outside", "give 0 <= first < after <= length")
        offsets = self.tokenizer.offsets(text)
        inside = torch.tensor([start < after and end > first for start, end in offsets])
        if self.network.causal and not inside[-1]:
            raise ConfigError(
                asked,
                "the model writes left to right and cannot take what follows for given",
                "cut the text after the part, or use a masked model",
            )
        begin, _ = self.config.rows.frame(self.tokenizer.roles)
        return F.pad(inside, (len(begin), length - len(begin) - len(inside)))

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


def load(name: str | Path, *, revision: str | None = None) -> TextModel:
    """A model from a folder that `TextModel.save` wrote, or by its name on the Hugging Face Hub.

    Args:
        name: the folder, or owner/name. Without a network, what was fetched before is found in the Hub's cache.
        revision: a branch, tag or commit, on the Hub.
    """
    return TextModel.from_pretrained(name, revision=revision)
