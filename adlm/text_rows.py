"""Texts as rows of a model: framed and padded as in training, blank where something is to be written."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, OutOfRange
from adlm.models.stack import Attention
from adlm.samplers.canvas import Canvas
from adlm.samplers.constraints import Constraint, Language
from adlm.samplers.holes import Template
from adlm.samplers.stopping import added_text, cut_at


class TextRow(NamedTuple):
    """A row with blanks, and the text that it stands for: `before`, the tokens `start` to `end`, `after`.

    tokens: ids, the mask at blanks. Only blanks from `start` to `end` are filled.
    first_id: number of its first sample, see `Canvas.sample_ids`.
    holes: start and end of spans, and what may stand in each.
    """

    tokens: list[int]
    start: int
    end: int
    before: Sequence[int] = ()
    after: Sequence[int] = ()
    first_id: int = 0
    holes: Sequence[tuple[int, int, Language]] = ()


class RowFormat:
    """The layout of a model's rows."""

    def __init__(self, packing: Packing, tokenizer: Tokenizer, attention: Attention) -> None:
        self.packing, self.tokenizer, self.attention = packing, tokenizer, attention
        self.begin, self.end = packing.frame(tokenizer.roles)
        # Padding that a model had to predict, or rows that were always full: it knows no shorter rows.
        self.always_full = attention == "full" and (packing.padding_counts or not packing.pads)

    @property
    def one_way(self) -> bool:
        """Whether the model writes from left to right, in blocks or token by token: then rows may be of any length."""
        return self.attention != "full"

    def check_right(self, what: str, subject: str) -> None:
        """Refuse a text to the right of blanks, if the model does not see it."""
        if self.attention == "causal":
            raise ConfigError(f"a left-to-right model does not see {what}", fix="use a masked model", subject=subject)
        if self.attention == "block":
            raise ConfigError(
                f"a model that writes in blocks does not see {what}: only what is within the block",
                fix="use a masked model, or give block_size=0 if the model was trained to read whole rows too",
                subject=subject,
            )

    def finished(self, ids: Sequence[int]) -> tuple[list[int], list[bool]]:
        """A finished text as in training, and which of its tokens count."""
        room = self.packing.length - len(self.begin) - len(self.end)
        if len(ids) > room:
            raise ConfigError(
                f"the text has {len(ids)} tokens; the model's rows have room for {room}",
                fix="shorten it",
                subject="text",
            )
        row = [*self.begin, *ids, *self.end]
        padding = self.packing.length - len(row) if self.packing.pads else 0
        counts = [True] * len(row) + [self.packing.padding_counts] * padding
        return row + [self.tokenizer.roles.pad_id] * padding, counts

    def room(self, prompt: Sequence[int], suffix: Sequence[int] = ()) -> int:
        """The number of tokens that can be written between a prompt and a suffix within a row."""
        closing = len(suffix) + len(self.end) if suffix else 0
        return self.packing.length - len(self.begin) - len(prompt) - closing

    def continuing(
        self, prompt: str | Sequence[int], suffix: str = "", limit: int | None = None, *, windowed: bool = False
    ) -> TextRow:
        """The row in which a text continues from `prompt` to `suffix`.

        Args:
            prompt: a text, or the ids of one.
            limit: the most new tokens to write; by default as many as the row has room for.
            windowed: the network is shown a window of the row, which may then be longer than those of training.
        """
        roles = self.tokenizer.roles
        ids = self.tokenizer.encode_known(prompt).tolist() if isinstance(prompt, str) else list(prompt)
        after = self.tokenizer.encode_known(suffix, first=False).tolist()
        if suffix:
            self.check_right("a suffix", "suffix")
        room = self.room(ids, after)
        if limit is None:
            self.finished([*ids, *after])
            if room < 1:
                raise ConfigError(
                    f"the prompt of {len(ids)} tokens fills the model's rows", fix="shorten it", subject="prompt"
                )
            limit = room
        elif limit < 1:
            raise OutOfRange("max_new_tokens", limit, "at least 1")
        elif limit > room and not self.one_way and (after or not windowed):
            raise ConfigError(
                f"{limit} new tokens do not fit after a prompt of {len(ids)}: the model's rows have room for "
                f"{max(room, 0)} more"
                f"{'' if after else '; set block_size to write in blocks'}",
                subject="max_new_tokens",
            )
        closing = [*after, *self.end] if after else []
        row = [*self.begin, *ids, *[roles.mask_id] * limit, *closing]
        # What follows a finished text is padding, if there is any; else it may be anything, and stays unknown.
        row = self._full(row, roles.pad_id if closing and self.packing.pads else roles.mask_id)
        start = len(self.begin) + len(ids)
        return TextRow(row, start, start + limit, ids, after, _first_id(ids, after))

    def infilling(self, template: Template, lengths: Sequence[int]) -> TextRow:
        """The row of a text with holes of these lengths."""
        row, counts = self.finished(template.ids(lengths, self.tokenizer.mask_id))
        if any(template.parts[1:]):
            self.check_right("what follows a hole", "text")
        # Padding that does not count was never shown to the model.
        row = row[: sum(counts)]
        return TextRow(row, len(self.begin), len(row), holes=template.spans(lengths, offset=len(self.begin)))

    def resuming(self, tokens: Sequence[int]) -> TextRow:
        """The row of a canvas: ids that stay, the mask where something is to be written."""
        row, mask_id = list(tokens), self.tokenizer.mask_id
        first = row.index(mask_id) if mask_id in row else len(row)
        if any(token != mask_id for token in row[first:]):
            self.check_right("what follows a blank", "canvas")
        start = len(self.begin) if row[: len(self.begin)] == self.begin else 0
        return TextRow(self._full(row, mask_id), start, len(row))

    def canvas(self, samples: Sequence[tuple[TextRow, int]]) -> Canvas:
        """One row per sample: (row, its number among those of the row). Shorter rows are filled up at the end."""
        length, roles = max(len(row.tokens) for row, _ in samples), self.tokenizer.roles
        # Beyond a row its block is blank, as if the row were alone.
        filler = roles.mask_id if self.attention == "block" else roles.eos_id
        tokens = torch.tensor([[*row.tokens, *[filler] * (length - len(row.tokens))] for row, _ in samples])
        position = torch.arange(length)
        start, end = (torch.tensor([[getattr(row, name)] for row, _ in samples]) for name in ("start", "end"))
        frozen = (tokens != roles.mask_id) | (position < start) | (position >= end)
        numbers = torch.tensor([row.first_id + k for row, k in samples])
        held = tuple(Constraint(i, *hole) for i, (row, _) in enumerate(samples) for hole in row.holes)
        return Canvas(tokens, frozen, numbers, held)

    def text(self, row: TextRow, tokens: Sequence[int], *, stop: bool = True, strings: Sequence[str] = ()) -> str:
        """The text of a filled row, up to the end token if `stop`, and up to the first of the strings."""
        written, end = list(tokens[row.start : row.end]), self.tokenizer.roles.eos_id
        if stop and end in written:
            written = written[: written.index(end)]
        if strings:
            added, found = cut_at(added_text(self.tokenizer.decode, row.before, written), strings)
            if found:
                return self.tokenizer.decode(row.before) + added
        return self.tokenizer.decode([*row.before, *written, *row.after])

    def _full(self, row: list[int], filler: int) -> list[int]:
        return row + [filler] * (self.packing.length - len(row)) if self.always_full else row


def _first_id(prompt: list[int], suffix: list[int]) -> int:
    """62 bits, so that the samples of two prompts do not share numbers. 0 if nothing was given."""
    if not prompt and not suffix:
        return 0
    digest = hashlib.blake2b(repr((prompt, suffix)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
