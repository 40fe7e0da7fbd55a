"""An anchor rule that depends on the text of a token: content words."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adlm.anchors.rules import TypeRule
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError

# Words of English that hold sentences together and say little by themselves.
_WORDS = """
a about above across after against all along also although am among an and another any anybody anyone anything are
around as at away back be became because become been before behind being below beneath beside besides between beyond
both but by can could did do does doing done down during each either else enough even ever every everybody everyone
everything except few for from further had has have having he hence her here hers herself him himself his how however
i if in indeed into is it its itself just less lest many may me might mine more moreover most much must my myself near
neither never nevertheless no nobody none nor not nothing now of off often on once one only onto or other others
otherwise ought our ours ourselves out over own per perhaps quite rather same several shall she should since so some
somebody someone something still such than that the their theirs them themselves then there therefore these they this
those though through throughout thus till to together too toward towards under unless until unto up upon us very was
we were what whatever when whence where whereas whether which while who whoever whom whose why will with within
without would yes yet you your yours yourself yourselves d ll m re s t ve
"""
FUNCTION_WORDS = frozenset(_WORDS.split())


def is_content_word(text: str) -> bool:
    """Whether a token's text is more than space, marks and English function words.

    A piece of a word counts as content, since its type does not say what word it belongs to.
    """
    return any(c.isalnum() for c in text) and text.strip().strip("'’#").lower() not in FUNCTION_WORDS


@dataclass(frozen=True)
class ContentWords(TypeRule):
    """Token types chosen by their text. Made by `ContentWords.from_tokenizer(tokenizer, is_content)`.

    A function cannot be compared or stored; what it says about each token can, and that is kept.

    Args:
        vocab_size: V, the mask token counted.
        bits: one for each type, packed and written in base64: 8 kB of text for GPT-2's vocabulary.
    """

    vocab_size: int
    bits: str

    def __post_init__(self) -> None:
        try:
            size = len(base64.b64decode(self.bits, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ConfigError(
                f"ContentWords.bits must be base64 ({error}); make it with ContentWords.from_tokenizer", subject="bits"
            ) from error
        if self.vocab_size < 1 or size != (self.vocab_size + 7) // 8:
            raise ConfigError(
                f"ContentWords.bits must have a bit for each of {self.vocab_size} token types, got {size} bytes; "
                "make it with ContentWords.from_tokenizer",
                subject="bits",
            )

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, is_content: Callable[[str], bool] = is_content_word
    ) -> "ContentWords":
        """Asks `is_content` about the text of every token, with the space before it; tokens with a role are none."""
        roles = tokenizer.roles
        chosen = torch.tensor([bool(is_content(tokenizer.token(i))) for i in range(roles.vocab_size)])
        chosen[[roles.mask_id, roles.eos_id, roles.bos_id, roles.pad_id]] = False
        return cls.from_types(chosen)

    @classmethod
    def from_types(cls, chosen: Tensor) -> "ContentWords":
        """The rule from a table [V] of booleans."""
        packed = np.packbits(chosen.bool().cpu().numpy())
        return cls(len(chosen), base64.b64encode(packed.tobytes()).decode())

    def types(self) -> Tensor:
        packed = np.frombuffer(base64.b64decode(self.bits), np.uint8)
        return torch.from_numpy(np.unpackbits(packed, count=self.vocab_size).astype(bool))

    def __repr__(self) -> str:
        return f"ContentWords({int(self.types().sum())} of {self.vocab_size} types)"
