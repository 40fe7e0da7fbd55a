"""The tokenizer of a converted model: the one its checkpoint carries, or a named one, with the official roles.

The official code takes the tokenizer's own mask token or, where there is none (GPT-2), gives the mask the first id
after the vocabulary. It also gives a GPT-2 tokenizer a token [PAD], with that same id, which its rows never contain:
here the mask keeps the id and [PAD] goes.
"""

import json
from dataclasses import replace
from typing import Any, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from adlm.convert.description import lookup
from adlm.convert.pickle_data import Name, PickledObject, shown
from adlm.data.tokenizer import MASK, Roles, Tokenizer, load_tokenizer, with_roles
from adlm.data.tokenizer_growth import check_growth
from adlm.errors import ModelError

# Vocabularies are rounded up to multiples of 128 at most; a larger gap means another tokenizer.
PADDING = 128
UNUSED = "<unused "
_FIX = "name the one it was trained with (--tokenizer)"


class Carried(NamedTuple):
    """A tokenizer as JSON, and what its special tokens are called."""

    text: str
    special: dict[str, str]


def carried(hyper_parameters: Any) -> Carried | None:
    """The fast tokenizer in a checkpoint, as data; None where there is none, or a slow one without JSON."""
    record = hyper_parameters.get("tokenizer") if isinstance(hyper_parameters, dict) else None
    state = record.state if isinstance(record, PickledObject) else None
    backend = state.get("_tokenizer") if isinstance(state, dict) else None
    if not isinstance(backend, PickledObject) or backend.name != Name("tokenizers", "Tokenizer"):
        return None
    text = backend.state
    if isinstance(text, bytes | bytearray):
        text = bytes(text).decode("utf-8", "replace")
    if not isinstance(text, str):
        return None
    text = text.encode("utf-8", "replace").decode()  # half characters, which a pickle can hold and no file
    special: dict[str, str] = {}
    for role in ("bos", "eos", "pad", "mask", "cls", "sep"):
        # Where transformers keeps it depends on its version.
        positions = (("_special_tokens_map", f"{role}_token"), (f"_{role}_token",), ("init_kwargs", f"{role}_token"))
        found = (_content(lookup(state, *position)) for position in positions)
        name = next((value for value in found if value), None)
        if name:
            special[role] = name
    return Carried(text, special)


def _content(token: Any) -> str | None:
    """A token's text; it may be wrapped in an AddedToken, whose state `lookup` has unpacked."""
    value = token.get("content") if isinstance(token, dict) else token
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def from_checkpoint(found: Carried, size: int, mask_id: int | None, *, asked: str) -> Tokenizer:
    """The tokenizer a checkpoint carries, for a model of `size` ids."""
    backend = _backend(found.text, asked)
    own = backend.get_vocab_size(with_added_tokens=False)
    own_mask = backend.token_to_id(found.special["mask"]) if "mask" in found.special else None
    if own_mask is None:
        data = json.loads(found.text)
        added = data.get("added_tokens") or []
        data["added_tokens"] = [token for token in added if token["id"] < own]
        if len(data["added_tokens"]) < len(added):
            backend = _backend(json.dumps(data), asked)

    def role(*names: str) -> int | None:
        ids = (backend.token_to_id(found.special[name]) for name in names if name in found.special)
        return next((index for index in ids if index is not None), None)

    eos, bos, pad = role("eos", "sep"), role("bos", "cls"), role("pad")
    mask = own if own_mask is None else own_mask
    if eos is None:
        guessed = with_roles(backend).roles
        eos, bos, pad = guessed.eos_id, guessed.bos_id, guessed.pad_id
    known = max(backend.get_vocab(with_added_tokens=True).values(), default=0) + 1
    roles = Roles(max(known, mask + 1), mask, eos, eos if bos is None else bos, eos if pad is None else pad)
    return _fitted(Tokenizer(backend, roles), size, mask_id, asked=asked)


def named(name: str, size: int, mask_id: int | None, *, asked: str) -> Tokenizer:
    """A tokenizer by name or folder, for a model of `size` ids."""
    return _fitted(load_tokenizer(name), size, mask_id, asked=asked)


def _backend(text: str, asked: str) -> Backend:
    check_growth(text, "of a checkpoint")
    try:
        return Backend.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics on some input, which is not an Exception
        found = f"the tokenizer in the file cannot be read: {shown(str(error))}"
        raise ModelError(f"{asked}: {found}; {_FIX}", subject="tokenizer") from error


def _fitted(tokenizer: Tokenizer, size: int, mask_id: int | None, *, asked: str) -> Tokenizer:
    """The tokenizer with a vocabulary of exactly `size`, which may leave some of the model's last ids unused."""
    roles = tokenizer.roles
    if roles.vocab_size > size:
        raise ModelError(
            f"{asked}: a tokenizer of {roles.vocab_size:,} ids for a model of {size:,}; {_FIX}", subject="tokenizer"
        )
    if size - roles.vocab_size >= PADDING:
        raise ModelError(
            f"{asked}: a tokenizer of only {roles.vocab_size:,} ids for a model of {size:,}; {_FIX}",
            subject="tokenizer",
        )
    mask = roles.mask_id if mask_id is None else mask_id
    if not 0 <= mask < size or mask in (roles.eos_id, roles.bos_id, roles.pad_id):
        found = f"the mask id {mask} where {size:,} ids and other special tokens leave no room for it"
        raise ModelError(f"{asked}: {found}; give another --mask-id, or another --tokenizer", subject="mask_id")
    backend = _padded(tokenizer.backend, size, mask, asked)
    return Tokenizer(backend, replace(roles, vocab_size=size, mask_id=mask), tokenizer.chat_template)


def _padded(backend: Backend, size: int, mask: int, asked: str) -> Backend:
    """The tokenizer with a token for every id of the model, where the mask alone after it is not all there is."""
    known = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if known == size or (known == size - 1 == mask):
        return backend
    backend = _backend(backend.to_str(), asked)
    names = [MASK if index == mask else f"{UNUSED}{index}>" for index in range(known, size)]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    if [backend.token_to_id(name) for name in names] != [*range(known, size)]:
        raise ModelError(
            f"{asked}: a tokenizer that cannot be padded from {known:,} to {size:,} ids; {_FIX}", subject="tokenizer"
        )
    return backend
