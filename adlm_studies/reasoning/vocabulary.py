"""Tokenizers for reasoning: words and single digits of a task, or those of a pretrained model, each with the marks.

The marks are special tokens: a question that spells one out is read as plain text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from adlm.data.tokenizer import END, MASK, Roles, Tokenizer, with_roles
from adlm.errors import DataError, ModelError
from adlm.models.hub import find_model
from adlm.models.io import load_model
from adlm.models.language_model import LanguageModel
from adlm.train.init import Init

SPECIAL_TOKENS = ("<boa>", "<ant>", "<eoa>", "<pause>", "<bot>", "<eot>")
UNKNOWN = "<unk>"
# A word with the space before it, or one digit, or a sign, or a run of space: joined again they give the text back.
# The marks of answers and equations are whole.
_PIECES = r" ?[^\W\d]+| ?\d| ?(?:####|<<|>>|[^\w\s])|\s+"
_DIGITS = tuple(space + str(digit) for digit in range(10) for space in ("", " "))


def words_and_digits(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with a token for every word of the texts and every digit, so that unseen numbers can be written."""
    backend = Backend(models.WordLevel(unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    backend.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        special_tokens=[END, UNKNOWN, MASK, *SPECIAL_TOKENS], vocab_size=1 << 20, show_progress=False, min_frequency=0
    )
    backend.train_from_iterator(chain(_DIGITS, texts), trainer)
    return with_roles(backend)


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the marks after all other ids; existing ids stay the same."""
    backend, roles = Backend.from_str(tokenizer.backend.to_str()), tokenizer.roles
    known = backend.get_vocab(with_added_tokens=True)
    if all(mark in known for mark in SPECIAL_TOKENS):
        return tokenizer
    if roles.mask_id not in known.values():
        # The mask that was appended by its role alone: without a name its id would go to the first mark.
        backend.add_special_tokens([AddedToken(MASK, special=True)])
        if backend.token_to_id(MASK) != roles.mask_id:
            raise DataError(
                f"cannot add marks to a tokenizer with gaps among the ids before its mask, {roles.mask_id}",
                subject="tokenizer",
            )
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in SPECIAL_TOKENS])
    size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    return Tokenizer(backend, Roles(size, roles.mask_id, roles.eos_id, roles.bos_id, roles.pad_id))


def special_token_id(tokenizer: Tokenizer, mark: str) -> int:
    """The id of a mark."""
    found = tokenizer.backend.token_to_id(mark)
    if found is None:
        raise DataError(
            f"the tokenizer has no token {mark}",
            fix="use a model that `adlm reason train` trained",
            subject=mark,
        )
    return int(found)


@dataclass(frozen=True)
class FinetuneWithNewTokens(Init):
    """The weights of a model of the same network that does not know the marks: they begin as the mean of all tokens.

    Args:
        model: a folder, or owner/name on the Hub.
    """

    model: str

    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        asked = f"cannot start from {self.model}, with marks for reasoning"
        other, config, theirs = load_model(find_model(self.model, revision=None, asked=asked), asked=asked)
        if with_special_tokens(theirs).fingerprint != tokenizer.fingerprint:
            raise ModelError(f"{asked}: the run has another tokenizer; set tokenizer={self.model}", subject="tokenizer")
        if getattr(model, "config", config.network) != config.network:
            raise ModelError(f"{asked}: the run trains another network", subject="network")
        grown = other.state_dict()
        for name, ours in model.state_dict().items():
            old = grown[name]
            if old.shape != ours.shape:
                if old.shape[1:] != ours.shape[1:] or len(old) != theirs.vocab_size:
                    fix = "use a model whose hand-over does not go by the vocabulary"
                    raise ModelError(
                        f"{asked}: {name} has {tuple(old.shape)} there, {tuple(ours.shape)} here; {fix}", subject=name
                    )
                new = old.mean(0, keepdim=True).expand(len(ours) - len(old), *old.shape[1:])
                grown[name] = torch.cat([old, new])
        model.load_state_dict(grown)
