"""The front door: a network and its tokenizer together, as text in and text out."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from huggingface_hub import HfApi, ModelCard, ModelHubMixin
from torch import Tensor

from adlm import registry
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError
from adlm.evaluate.bound import mean_of, position_nats
from adlm.evaluate.hole_lengths import context_nats
from adlm.models.card import CARD, Facts, card_text
from adlm.models.hub import explained, find_model, has_edited_card
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.constraints import Wording
from adlm.samplers.holes import Template
from adlm.samplers.named import canonical, default_sampler, names_one, sampler_for
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import StepCallback
from adlm.types import Batch, Estimate

_REPEATS = 8
ROWS = 64  # that a sampler has in hand at a time


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
        model = cls(*load_model(folder, asked=asked))
        if Path(pretrained_model_name_or_path).is_dir():  # never for a model of the Hub
            registry.offer_imports((model.config.run or {}).get("imports"), folder)
        return model

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
        return ModelCard(card_text(self.network, config.network, config.vocabulary, config.packing, Facts(**facts)))

    def sampler(self, sampler: Sampler | str | None = None, **options: object) -> Sampler:
        """The one that `generate` takes for a name and options. Blocks see as much at once as a row of the model.

        Without a name it is the model's own (`ModelConfig.sampling`), with these options instead of its own.
        """
        given = canonical(options)
        if sampler is None and not names_one(given):
            own = dict(self.config.sampling)
            sampler = own.pop("sampler", None)
            given = canonical(own) | given
        if "block_size" in given:
            given.setdefault("window", self.config.packing.length)
        return sampler_for(self.network, sampler, given)

    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        suffix: str = "",
        n: int = 1,
        seed: int = 0,
        max_new_tokens: int | None = None,
        sampler: Sampler | str | None = None,
        stop: bool = True,
        watch: StepCallback | None = None,
        **options: object,
    ) -> list[str]:
        """`n` texts that go on from `prompt`, prompt included, up to the end token or the model's length.

        A text is a function of model, prompt, suffix, settings, seed and its number among the `n`, whatever else is
        asked for in the same call. The samples of different prompts are independent.

        Args:
            prompt: one, or several: then `n` texts of the first, `n` of the second and so on.
            suffix: what the text ends with; the blanks between are filled. For models that see both sides.
            n: also num_samples, num_return_sequences.
            max_new_tokens: write no more than so many after the prompt; also gen_length. What a masked model is shown
                are rows as it knows them. Where its rows were always full, the rest of the row is shown and stays
                blank; where padding was hidden from it, a row was as long as its text, and so it is here: such a model
                writes exactly so many tokens, its end token among them. Beyond the model's length, left-to-right
                models go on, and masked ones do with `block_size`, the row's length their window.
            sampler: itself, or its name (`adlm.samplers.named.sampler_for` has them); by default the plain one of the
                model's kind.
            stop: end the text at the end token. Otherwise all that was written is kept, but for special tokens.
            watch: called after every step. Many rows are filled in several parts, each with steps from 0.
            options: of a sampler that goes by its name: steps, temperature, top_p and others, see `sampler_for`.
        """
        given = canonical({**options, "n": None if n == 1 else n, "max_new_tokens": max_new_tokens})
        n, limit = _positive("n", given.pop("n", 1)), given.pop("max_new_tokens", None)
        chosen = self.sampler(sampler, **given)
        windowed = isinstance(chosen, Blocks) and chosen.window is not None
        gaps = [self._gap(each, suffix, limit, windowed) for each in ([prompt] if isinstance(prompt, str) else prompt)]
        # The rows of a canvas have one length, which masked models see. Others see nothing of what lies to the right.
        groups: dict[int, list[int]] = {}
        for i, gap in enumerate(gaps):
            groups.setdefault(0 if self.network.causal else len(gap.row), []).append(i)
        end = self.tokenizer.roles.eos_id
        texts: dict[tuple[int, int], str] = {}
        for group in groups.values():
            names = [(i, k) for i in group for k in range(n)]
            canvas = _canvas_of([gaps[i] for i in group], n, end)
            for name, row in zip(names, self._filled(canvas, seed, chosen, watch, end if stop else None), strict=True):
                texts[name] = self._joined(gaps[name[0]], row, end if stop else None)
        return [texts[i, k] for i in range(len(gaps)) for k in range(n)]

    def infill(
        self,
        text: str,
        *,
        n: int = 1,
        seed: int = 0,
        constraints: Sequence[Wording | None] | None = None,
        sampler: Sampler | str | None = None,
        watch: StepCallback | None = None,
        **options: object,
    ) -> list[str]:
        """`n` texts with the holes of `text` filled: `[MASK]` by one token, `[MASK:4]` by 4, `[MASK:2-6]` by 2 to 6.

        Where a length is open, the model takes the one with which it finds the rest of the text likeliest; it is the
        same in all `n`. Everything around the holes stays, spaces too, and no hole gets a special token. A
        left-to-right model fills holes without seeing what follows them, and leaves no length open.

        Args:
            constraints: one for each hole, None where anything may stand: `Choice(("red", "blue green"))`, `Digits()`,
                `Pattern(r"[A-Z][a-z]+")`. A `[MASK]` under a choice is as long as its options are.
            sampler, watch, options: as in `generate`.
        """
        template = Template.read(text, self.tokenizer, constraints)
        lengths = self._lengths(template, seed)
        row, counts = self._row_with(template, lengths)
        offset = len(self.config.packing.frame(self.tokenizer.roles)[0])
        # Padding that does not count was never shown to the model.
        canvas = Canvas.infilling([row[: sum(counts)]] * _positive("n", n), self.tokenizer.mask_id)
        canvas = replace(canvas, constraints=template.constraints(lengths, offset=offset, samples=n))
        return self._fill(canvas, seed, self.sampler(sampler, **options), watch)

    def _lengths(self, template: Template, seed: int) -> tuple[int, ...]:
        """Of the holes: as given, or those with which the rest of the text is likeliest."""
        candidates = template.combinations()
        if len(candidates) == 1:
            return candidates[0]
        rows, counts = zip(*(self._row_with(template, lengths) for lengths in candidates), strict=True)
        nats = context_nats(self.network, rows, counts, noise=Noise(seed).fork("lengths"))
        return candidates[int(nats.argmin())]

    def _row_with(self, template: Template, lengths: Sequence[int]) -> tuple[list[int], list[bool]]:
        return self._row(self._fitting(template.ids(lengths, self.tokenizer.mask_id), "fill"))

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
        if not ids:
            raise ConfigError("asked to score a text", "it has no tokens, and rows have no ends", "give a longer one")
        tokens, valid = torch.tensor([ids] * repeats), torch.tensor([counts] * repeats)
        fixed = None if span is None else ~self._tokens_of(span, text, len(ids)).expand_as(tokens)
        batch = Batch(tokens, valid, rows, rows, fixed).to(next(network.parameters()).device)
        strata = max(1, draws // repeats)
        costs = position_nats(network, batch, draws=strata, noise=Noise(seed).fork("score")).cpu()
        nats = costs.double().sum(-1)
        estimate = Estimate(nats.item(), 0.0, 0) if network.causal else mean_of(nats, repeats * strata)
        scored = batch.scored[0].cpu()
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
        begin, _ = self.config.packing.frame(self.tokenizer.roles)
        return F.pad(inside, (len(begin), length - len(begin) - len(inside)))

    def _fitting(self, ids: list[int], purpose: str) -> list[int]:
        rows = self.config.packing
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
        roles, rows = self.tokenizer.roles, self.config.packing
        begin, end = rows.frame(roles)
        ids = [*begin, *ids, *end]
        padding = rows.length - len(ids) if rows.pads else 0
        return ids + [roles.pad_id] * padding, [True] * len(ids) + [rows.padding_counts] * padding

    def _gap(self, prompt: str, suffix: str, limit: int | None, windowed: bool) -> "_Gap":
        """The row in which a text is to be written: as the rows of training were, blank where it may go on."""
        roles, rows, causal = self.tokenizer.roles, self.config.packing, self.network.causal
        begin, end = rows.frame(roles)
        ids, after = self.tokenizer.encode(prompt).tolist(), self.tokenizer.encode(suffix).tolist()
        if suffix and causal:
            raise ConfigError("asked for a suffix", "the model writes left to right", "use a masked model")
        closing = [*after, *end] if after else []
        room = rows.length - len(begin) - len(ids) - len(closing)
        if limit is None:
            self._fitting([*ids, *after], "go on from")
            if room < 1:
                raise ConfigError(f"asked to go on from {len(ids)} tokens", "they fill the model's rows", "shorten it")
            limit = room
        elif _positive("max_new_tokens", limit) > room and not causal and (after or not windowed):
            raise ConfigError(
                f"asked for {limit} new tokens with a prompt of {len(ids)}",
                f"the model's rows have room for {max(room, 0)} more",
                "ask for fewer" if after else "ask for fewer, or give block_size, to go on in blocks",
            )
        row = [*begin, *ids, *[roles.mask_id] * limit, *closing]
        if not causal and (rows.padding_counts or not rows.pads):
            # What follows a finished text is padding, where there is any; else it may be anything, and stays unknown.
            row += [roles.pad_id if closing and rows.pads else roles.mask_id] * (rows.length - len(row))
        start = len(begin) + len(ids)
        return _Gap(row, start, start + limit, ids, after)

    def _joined(self, gap: "_Gap", row: list[int], stop: int | None) -> str:
        written = row[gap.start : gap.end]
        if stop in written:
            written = written[: written.index(stop)]
        return self.tokenizer.decode([*gap.prompt, *written, *gap.suffix])

    def _fill(self, canvas: Canvas, seed: int, sampler: Sampler | None, watch: StepCallback | None) -> list[str]:
        """Texts that have a row each."""
        begin, _ = self.config.packing.frame(self.tokenizer.roles)
        filled = self._filled(canvas, seed, sampler or default_sampler(self.network), watch)
        return [self._text(row[len(begin) :]) for row in filled]

    def _filled(
        self, canvas: Canvas, seed: int, sampler: Sampler, watch: StepCallback | None, stop: int | None = None
    ) -> list[list[int]]:
        """The canvas, filled on the network's device, so many rows at a time that memory stays flat."""
        device = next((weight.device for weight in self.network.parameters()), canvas.tokens.device)
        noise, rows = Noise(seed).fork("sample"), []
        for part in _parts(canvas):
            rows += sampler.sample(self.network, part.to(device), noise=noise, watch=watch, stop=stop).tokens.tolist()
        return rows

    def _text(self, ids: list[int]) -> str:
        end = self.tokenizer.roles.eos_id
        return self.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)


class _Gap(NamedTuple):
    """A row, the positions `start` to `end` in it that are to be written, and the ids before and after that were
    given."""

    row: list[int]
    start: int
    end: int
    prompt: list[int]
    suffix: list[int]


def _canvas_of(gaps: Sequence[_Gap], n: int, filler: int) -> Canvas:
    """`n` rows for each, shorter ones filled up. Their noise follows what was given and the number among the `n`."""
    length = max(len(gap.row) for gap in gaps)
    tokens = torch.tensor([gap.row + [filler] * (length - len(gap.row)) for gap in gaps])
    position = torch.arange(length)
    frozen = torch.stack([(position < gap.start) | (position >= gap.end) for gap in gaps])
    first = torch.tensor([_first_number(gap) for gap in gaps])
    rows = first.repeat_interleave(n) + torch.arange(n).repeat(len(gaps))
    return Canvas(tokens.repeat_interleave(n, 0), frozen.repeat_interleave(n, 0), rows)


def _first_number(gap: _Gap) -> int:
    """62 bits, so that the numbers of two prompts do not meet. 0 where nothing was given."""
    if not gap.prompt and not gap.suffix:
        return 0
    digest = hashlib.blake2b(repr((gap.prompt, gap.suffix)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def _parts(canvas: Canvas) -> Iterator[Canvas]:
    """In parts of `ROWS` rows, in order."""
    for start in range(0, len(canvas.sample_ids), ROWS):
        rows = slice(start, start + ROWS)
        held = [replace(each, row=each.row - start) for each in canvas.constraints if start <= each.row < start + ROWS]
        yield Canvas(canvas.tokens[rows], canvas.frozen[rows], canvas.sample_ids[rows], tuple(held))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"asked for {name}={value}", "fewer than 1", "give 1 or more")
    return value


def load(name: str | Path, *, revision: str | None = None) -> TextModel:
    """A model from a folder that `TextModel.save` wrote, by its name on the Hugging Face Hub, or the one in the box.

    Args:
        name: the folder, owner/name, or box: a small model of simple stories that comes with the package. Without a
            network, what was fetched from the Hub before is found in its cache.
        revision: a branch, tag or commit, on the Hub.
    """
    return TextModel.from_pretrained(name, revision=revision)
