"""Tokens as they are shown to people, in a terminal and on a page, and which of them are anchors.

A token that is only a part of a character has its bytes written out, as in `\\xc3`; `joined` puts them together.
"""

import re
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch
from tokenizers import decoders
from torch import Tensor

from adlm.anchors import AnchorRule, RareInSequence
from adlm.config import from_json
from adlm.data.byte_names import part_of_character
from adlm.data.tokenizer import Tokenizer
from adlm.errors import AdlmError
from adlm.models.io import ModelConfig
from adlm.types import Batch

UNFINISHED = "◌"  # a character of which a part is missing
_BYTE = r"\\x[89a-f][0-9a-f]"
_BYTES, _FIRST, _LAST = re.compile(rf"(?:{_BYTE})+"), re.compile(_BYTE), re.compile(rf"{_BYTE}\Z")


class Pieces(dict[int, str]):
    """Tokens as they are shown, each on one line."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer, self.apart = tokenizer, isinstance(tokenizer.backend.decoder, decoders.WordPiece)
        some = [tokenizer.token(i) for i in range(0, tokenizer.vocab_size, 1 + tokenizer.vocab_size // 200)]
        # About as wide as what will stand there, so that the rest of the text moves little.
        self.blank = " ░░░" if sum(map(len, some)) > 2 * len(some) else "░"

    def __missing__(self, index: int) -> str:
        text = self.tokenizer.token(index)
        if "\ufffd" in text:
            name = self.tokenizer.backend.id_to_token(index) or text
            text = part_of_character(name).decode("utf-8", "backslashreplace")
        if self.apart:
            text = text[2:] if text.startswith("##") else f" {text}"
        self[index] = harmless(text.replace("\t", " ")).replace("\n", "⏎")
        return self[index]


def joined(pieces: Sequence[str | None]) -> list[str | None]:
    """The pieces of a row as they are shown, None at blanks. Characters of several tokens stand in the first of them,
    and the others are empty."""
    shown = list(pieces)
    i = 0
    while i < len(shown):
        piece, last = shown[i] or "", i
        while (_LAST.search(piece) and last + 1 < len(shown)) and _FIRST.match(shown[last + 1] or ""):
            last += 1
            piece += shown[last] or ""
            shown[last] = ""
        if shown[i] is not None:
            shown[i] = _BYTES.sub(_decoded, piece)
        i = last + 1
    return shown


def _decoded(written: re.Match[str]) -> str:
    text = bytes.fromhex(written[0].replace("\\x", "")).decode("utf-8", "replace")
    return harmless(re.sub("\ufffd+", UNFINISHED, text))


def harmless(text: str) -> str:
    """The text without characters that a terminal would interpret: a model may write anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)


def anchor_rule(config: ModelConfig) -> AnchorRule:
    """The anchor rule a model was trained with, or the paper's."""
    objective = (config.run or {}).get("objective")
    data = objective.get("rule", objective.get("anchors")) if isinstance(objective, dict) else None
    try:
        return RareInSequence() if data is None else from_json(AnchorRule, data)  # type: ignore[type-abstract]
    except AdlmError:
        return RareInSequence()


def anchors_by(rule: AnchorRule, tokens: Tensor, valid: Tensor) -> Tensor:
    """The anchors among the valid tokens, [B, L] bool; by the paper's rule if this one does not apply."""
    number = torch.arange(len(tokens))
    batch = Batch(tokens, valid, number, number)
    try:
        return rule.mark(batch)
    except AdlmError:  # a rule may need a table or marks that came with its data
        return RareInSequence().mark(batch)


def anchors_in(rule: AnchorRule, row: Sequence[int], ignored: AbstractSet[int]) -> list[int]:
    """The positions of the anchors of one row, without tokens that do not count. Asked for at every step of a text, so
    the rule that most models have takes no tensors."""
    if type(rule) is RareInSequence:
        counts = Counter(row)
        return [i for i, token in enumerate(row) if token not in ignored and counts[token] <= rule.most]
    valid = torch.tensor([[token not in ignored for token in row]])
    found: list[int] = anchors_by(rule, torch.tensor([row]), valid)[0].nonzero()[:, 0].tolist()
    return found
