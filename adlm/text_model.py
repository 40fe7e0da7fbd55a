"""The front door: a network and its tokenizer together, as text in and text out."""

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final, cast

import torch

from adlm.data.tokenizer import Tokenizer
from adlm.decisions import Decision, decide_holes
from adlm.errors import ConfigError, OutOfRange
from adlm.models.hub_model import HubModel
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.constraints import Choice, Wording
from adlm.samplers.hole_lengths import context_nats
from adlm.samplers.holes import Template
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.named import canonical, named_sampler, names_one, sampler_for
from adlm.samplers.network import Network
from adlm.samplers.ordered import Ordered
from adlm.samplers.paces import PerStep
from adlm.samplers.sampler import Sampler, Unmasking
from adlm.samplers.state import DrawCallback, Sample, StepCallback
from adlm.samplers.stopping import StopRule
from adlm.scoring import Score, Span, score_text
from adlm.text_rows import RowFormat, TextRow

ROWS = 64  # filled at a time
_TEXTS = 8 * ROWS  # of which rows of one length are filled together


class TextModel(HubModel):
    """A trained model that reads and writes text.

    On the Hugging Face Hub: `from_pretrained`, `save_pretrained`, `push_to_hub`.
    """

    def __init__(self, network: LanguageModel, config: ModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__(network, config, tokenizer)
        self.rows: Final = RowFormat(config.packing, tokenizer, network.attention)

    def sampler(self, sampler: Sampler | str | None = None, **options: object) -> Sampler:
        """The sampler that `generate` uses for a name and options. Blocks see as much at once as a row of the model.

        Without a name it is the model's own (`ModelConfig.sampling`), with these options instead of its own. If that
        writes from left to right, `block_size=1` changes nothing, and other sizes are written by `confidence`.
        """
        given = canonical(options)
        if sampler is None and not names_one(given):
            own = dict(self.config.sampling)
            name: str | None = own.pop("sampler", None)
            given = canonical(own) | given
            if self.network.reads_blocks and name is not None and "block_size" not in named_sampler(name).options:
                size = given.pop("block_size", None)
                if size not in (None, 1):
                    name, given["block_size"] = "confidence", size
            sampler = name
        if "block_size" in given and not self.network.reads_blocks:
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
        stop: bool | str | Sequence[str] = True,
        on_step: StepCallback | None = None,
        **options: object,
    ) -> list[str]:
        """Generate `n` texts that continue `prompt`, prompt included, up to the end token or the model's length.

        A text depends on the model, the prompt, the suffix, the settings, the seed and its number among the `n`, and on
        nothing else in the same call. Samples of different prompts are independent.

        Args:
            prompt: one prompt, or several: then `n` texts of the first, `n` of the second and so on.
            suffix: text after the blanks, for models that see both sides.
            n: texts per prompt; also num_samples, num_return_sequences.
            max_new_tokens: write at most this many tokens after the prompt; also gen_length. A masked model sees
                rows as in training: if they were always full, the rest of the row stays blank; if padding was hidden,
                the row is as long as its text, and exactly this many tokens are written, including the end token.
                Left-to-right models, block diffusion, and masked models with `block_size` can write more than a row.
            sampler: a sampler, or its name (see `adlm.samplers.named.sampler_for`); by default the model's own.
            stop: end the text at the end token; False keeps everything but special tokens. One or several strings also
                end it, before the first of them that is written after the prompt. Samplers that write from left to
                right stop there, those that write in blocks stop after the block, others write whole rows, which are
                cut.
            on_step: called after every step. Many rows are filled in several parts, each with steps from 0.
            options: of a sampler given by name: steps, temperature, top_p and others, see `sampler_for`.
        """
        found = self.generate_each(
            prompt, suffix=suffix, n=n, seed=seed, max_new_tokens=max_new_tokens, sampler=sampler, stop=stop,
            on_step=on_step, **options,
        )  # fmt: skip
        return list(found)

    def generate_each(
        self,
        prompt: str | Sequence[str] = "",
        *,
        suffix: str = "",
        n: int = 1,
        seed: int = 0,
        max_new_tokens: int | None = None,
        sampler: Sampler | str | None = None,
        stop: bool | str | Sequence[str] = True,
        on_step: StepCallback | None = None,
        **options: object,
    ) -> Iterator[str]:
        """Generate texts as `generate` does, yielding one after another: memory does not grow with `n`."""
        given = canonical({**options, "n": None if n == 1 else n, "max_new_tokens": max_new_tokens})
        n, limit = _count(given.pop("n", 1)), given.pop("max_new_tokens", None)
        chosen = self.sampler(sampler, **given)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        model = self.read_by(chosen)
        if suffix:
            model, chosen = self.read_for_holes(chosen)
        rows = [model.prompt_row(each, suffix=suffix, max_new_tokens=limit, sampler=chosen) for each in prompts]
        return model._texts(rows, n, seed, chosen, on_step, stop=self.stop_rule(stop))

    def read_by(self, sampler: Sampler) -> "TextModel":
        """The model as a sampler reads it: in blocks of its size, from left to right, or whole rows at once."""
        network = cast("LanguageModel", sampler.suited(self.network)[1])
        return self if network is self.network else TextModel(network, self.config, self.tokenizer)

    def read_for_holes(self, sampler: Sampler) -> "tuple[TextModel, Sampler]":
        """The model and the sampler that fill holes: whole rows at once, if the model was trained to read them."""
        model = self.read_by(sampler)
        if model.rows.one_way and 0 in self.block_sizes:
            return self.in_blocks(0), _for_whole_rows(sampler)
        return model, sampler

    @property
    def both_sides(self) -> "TextModel":
        """The model as it sees both sides of a position, if it was trained to; otherwise as it is."""
        return self.in_blocks(0) if self.rows.one_way and 0 in self.block_sizes else self

    def in_blocks(self, size: int) -> "TextModel":
        """The same weights, read in blocks of `size` tokens: 1 is left to right, 0 sees whole rows at once.

        A model does well at the sizes it was trained with.
        """
        return TextModel(self.network.in_blocks(size), self.config, self.tokenizer)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The sizes of blocks that the model was trained to read; 0 is the whole row."""
        if not self.network.reads_blocks:
            return ()
        masking = ((self.config.run or {}).get("objective") or {}).get("corruption") or {}
        sizes = tuple(masking.get("sizes", (self.network.block_size,)))
        # Adapters leave the left-to-right model as it was trained before them.
        adapted = any(stack.adapter_rank for stack in self.config.network.stacks)
        return (1, *sizes) if adapted and 1 not in sizes else sizes

    def stop_rule(self, stop: bool | str | Sequence[str] = True) -> StopRule | None:
        """The rule that ends a text: at the end token, unless `stop` is False, and at strings."""
        if stop is False:
            return None
        strings = () if stop is True else (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(strings):
            raise ConfigError("a stop string must not be empty", subject="stop")
        return StopRule(self.tokenizer.roles.eos_id, strings, self.tokenizer.decode)

    def prompt_row(
        self,
        prompt: str | Sequence[int],
        *,
        suffix: str = "",
        max_new_tokens: int | None = None,
        sampler: Sampler | None = None,
    ) -> TextRow:
        """The row in which a text continues from a prompt (a text, or its ids), blank where a sampler writes."""
        windowed = isinstance(sampler, Blocks) and sampler.window is not None
        return self.rows.continuing(prompt, suffix, max_new_tokens, windowed=windowed)

    def infill(
        self,
        text: str,
        *,
        n: int = 1,
        best_of: int = 1,
        seed: int = 0,
        constraints: Sequence[Wording | None] | None = None,
        sampler: Sampler | str | None = None,
        on_step: StepCallback | None = None,
        **options: object,
    ) -> list[str]:
        """Fill the holes of `text`, `n` times: `[MASK]` by one token, `[MASK:4]` by 4, `[MASK:2-6]` by 2 to 6.

        If a length is open, the model takes the length under which the rest of the text is most likely; it is the
        same in all `n`. Everything around the holes stays, spaces too, and no hole gets a special token. A
        left-to-right model fills only holes at the end of the text: it sees nothing that follows them.

        Args:
            best_of: make this many `fillings` for each text, and keep the one with which the left-to-right reading of
                the model finds the whole text likeliest; for models that were trained to be read so.
            constraints: one per hole, None if anything may stand there: `Choice(("red", "blue green"))`, `Digits()`,
                `Pattern(r"[A-Z][a-z]+")`. A `[MASK]` under a choice is as long as its options are.
            sampler, on_step, options: as in `generate`.
        """
        if best_of > 1 and 1 not in self.block_sizes:
            raise ConfigError(
                "best_of compares fillings from left to right, which the model was not trained for",
                fix="leave best_of out",
                subject="best_of",
            )
        given: dict[str, Any] = {**options, "seed": seed, "constraints": constraints}
        given |= {"sampler": sampler, "on_step": on_step}
        if _count(best_of) == 1:
            return list(self.infill_each(text, n=n, **given))
        found = self.fillings(text, _count(n) * best_of, **given)
        ranked = self.in_blocks(1)
        return [ranked.likeliest(found[i : i + best_of]) for i in range(0, len(found), best_of)]

    def fillings(
        self,
        text: str,
        n: int,
        *,
        seed: int = 0,
        constraints: Sequence[Wording | None] | None = None,
        sampler: Sampler | str | None = None,
        on_step: StepCallback | None = None,
        **options: object,
    ) -> list[str]:
        """Fill the holes `n` times, in turn from left to right and with both sides in view.

        Left to right, holes are filled without regard to what follows them, through the filters of the sampler. The two
        readings fail on different holes, so the best of both is better than the best of either. A model that was not
        trained to be read from left to right fills all of them with both sides in view. Arguments are those of
        `infill`; `on_step` is called for the fillings with both sides in view.
        """
        model, chosen = self.read_for_holes(self.sampler(sampler, **options))
        row, stop = model.infill_row(text, seed=seed, constraints=constraints), self.stop_rule()
        continued = _count(n) - n // 2 if 1 in self.block_sizes else 0
        seen = model._texts([row], n - continued, seed, chosen, on_step, stop=stop) if n > continued else iter(())
        if not continued:
            return list(seen)
        own, forked = LeftToRight(chosen.filters), Noise(seed).fork("left to right").seed
        unseen = self.in_blocks(1)._texts([row], continued, forked, own, None, stop=stop)
        return [text for pair in zip_longest(unseen, seen) for text in pair if text is not None]

    def likeliest(self, texts: Sequence[str]) -> str:
        """The text to which the model gives the highest likelihood, the first of several alike."""
        different = list(dict.fromkeys(texts))
        return min(different, key=lambda text: self.score(text).nats) if len(different) > 1 else different[0]

    def infill_each(
        self,
        text: str,
        *,
        n: int = 1,
        seed: int = 0,
        constraints: Sequence[Wording | None] | None = None,
        sampler: Sampler | str | None = None,
        on_step: StepCallback | None = None,
        **options: object,
    ) -> Iterator[str]:
        """Fill holes as `infill` does, yielding one text after another: memory does not grow with `n`."""
        model, chosen = self.read_for_holes(self.sampler(sampler, **options))
        row = model.infill_row(text, seed=seed, constraints=constraints)
        return model._texts([row], _count(n), seed, chosen, on_step, stop=self.stop_rule())

    def infill_row(self, text: str, *, seed: int = 0, constraints: Sequence[Wording | None] | None = None) -> TextRow:
        """The row in which the holes of a text are blank, their lengths chosen."""
        template = Template.read(text, self.tokenizer, constraints)
        candidates = template.combinations()
        if len(candidates) == 1:
            return self.rows.infilling(template, candidates[0])
        ids = [template.ids(lengths, self.tokenizer.mask_id) for lengths in candidates]
        rows, counts = zip(*map(self.rows.finished, ids), strict=True)
        nats = context_nats(self.network, rows, counts, noise=Noise(seed).fork("lengths"))
        return self.rows.infilling(template, candidates[int(nats.argmin())])

    def fill(
        self,
        canvas: Canvas,
        *,
        sampler: Sampler | str | None = None,
        seed: int = 0,
        network: Network | None = None,
        on_step: StepCallback | None = None,
        on_draw: DrawCallback | None = None,
        stop: int | StopRule | None = None,
    ) -> Sample:
        """Fill the blanks of a canvas, on the network's device. `generate` and `infill` are made of this.

        Args:
            network: what computes instead of the model's own network, for example a `RecordingNetwork` around it.
            on_draw: called with every distribution that tokens are drawn from. Row numbers count from 0 in each part
                of `ROWS` rows.
            stop: a token that ends a row, or a rule; see `stop_rule`.
        """
        chosen, network = self.sampler(sampler), network or self.network
        device = next((weight.device for weight in network.parameters()), canvas.tokens.device)
        noise = Noise(seed).fork("sample")
        samples = [
            chosen.sample(network, part.to(device), noise=noise, on_step=on_step, on_draw=on_draw, stop=stop)
            for part in canvas.split(ROWS)
        ]
        tokens, calls, anchor_calls = zip(*samples, strict=True)
        return Sample(torch.cat(tokens), sum(calls), sum(anchor_calls))

    def score(
        self,
        text: str,
        *,
        span: Span | None = None,
        block_size: int | None = None,
        draws: int = 64,
        seed: int = 0,
    ) -> Score:
        """Score a text: -log p(text) in nats, exact from left to right, else a bound with its standard error.

        The bound is the mean of independent estimates, each from mask counts stratified over the row, and the
        error comes from their spread.

        Args:
            span: score only this part, given all the rest: a piece of the text that occurs once, or the numbers of
                its first character and the one after its last. Tokens that reach into it count whole.
            block_size: tokens per block that the model reads at once: 1 is left to right, 0 whole rows. By default 1 if
                it was trained so, otherwise its own size.
            draws: mask counts in all.
        """
        if span is not None and block_size is not None:
            raise ConfigError("give either a span or a block_size", subject="block_size")
        if block_size is None and span is None and 1 in self.block_sizes:
            block_size = 1
        reader = self.both_sides if span is not None else self if block_size is None else self.in_blocks(block_size)
        return score_text(reader.network, reader.rows, text, span=span, draws=draws, seed=seed)

    def decide(self, text: str, choices: Sequence[Choice], *, seed: int = 0) -> list[Decision]:
        """How probable each option of each hole of a text is, given the text around it and blanks in the other holes.

        A left-to-right model sees only what stands before a hole, and takes only holes at the end of the text.

        Args:
            choices: one per hole, as in `model.decide("A [MASK] dog.", [Choice(("big", "little"))])`.
            seed: of the masks under which contexts are compared, if options differ in their number of tokens.
        """
        model = self.both_sides
        return decide_holes(model.network, model.rows, text, choices, seed=seed)

    def _texts(
        self,
        rows: Sequence[TextRow],
        n: int,
        seed: int,
        sampler: Sampler,
        on_step: StepCallback | None,
        *,
        stop: StopRule | None,
    ) -> Iterator[str]:
        """`n` texts of each row, in order."""
        strings = () if stop is None else stop.strings
        samples = ((row, k) for row in rows for k in range(n))
        while block := list(islice(samples, _TEXTS)):
            texts: dict[int, str] = {}
            # Masked models see the length of a row, so those of one length share a canvas.
            groups: dict[int, list[int]] = {}
            for i, (row, _) in enumerate(block):
                groups.setdefault(0 if self.rows.one_way else len(row.tokens), []).append(i)
            for group in groups.values():
                canvas = self.rows.canvas([block[i] for i in group])
                filled = self.fill(canvas, sampler=sampler, seed=seed, on_step=on_step, stop=stop).tokens.tolist()
                for i, tokens in zip(group, filled, strict=True):
                    texts[i] = self.rows.text(block[i][0], tokens, stop=stop is not None, strings=strings)
            yield from (texts[i] for i in range(len(block)))


def _for_whole_rows(sampler: Sampler) -> Sampler:
    """What fills holes in whole rows in place of a sampler that writes from left to right or in blocks."""
    if isinstance(sampler, Blocks):
        return sampler.inner
    return sampler if isinstance(sampler, Unmasking) else Ordered(sampler.filters, pace=PerStep())


def _count(n: int) -> int:
    if n < 1:
        raise OutOfRange("n", n, "at least 1")
    return n


def load(name: str | Path, *, revision: str | None = None) -> TextModel:
    """Load a model from a folder, by its name on the Hugging Face Hub, or the bundled one.

    Args:
        name: a folder, a Hub name owner/name, or "box" for the bundled model of simple stories. Without a network, a
            model that was downloaded before is loaded from the Hub's cache.
        revision: a branch, tag or commit on the Hub.
    """
    return TextModel.from_pretrained(name, revision=revision)
