"""A text model with a smaller vocabulary: tokens that do not occur in given data leave embedding, heads and tokenizer.

What remains is exact: features of rows of kept tokens are the same, and so are the logits of kept tokens. Only
hand-overs that sum over the vocabulary (`Logits`, `Probabilities`) lose what the dropped tokens gave.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.data.prune_tokenizer import kept_tokens, pruned_tokenizer
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, OutOfRange
from adlm.models.network import Vocabulary
from adlm.text_model import TextModel

_TEXTS = 1024  # encoded at a time
Counts = NDArray[np.int64]


def prune_vocabulary(model: TextModel, data: Counts | Iterable[str], *, least: int = 1) -> TextModel:
    """The model without the tokens that `data` does not have; special tokens and bytes stay.

    Texts whose tokens are kept are encoded as before. Others get shorter pieces, or bytes; if the tokenizer has none,
    `encode_known` says which part has no token. Weights are copied.

    Args:
        data: documents, or how often each token [V] occurs (`token_counts`).
        least: drop tokens that occur less often.
    """
    tokenizer, config = model.tokenizer, model.config
    counts = data if isinstance(data, np.ndarray) else token_counts(tokenizer, data)
    if len(counts) > tokenizer.vocab_size:
        raise OutOfRange("counts", len(counts), f"one for each of the {tokenizer.vocab_size} tokens")
    if least < 1:
        raise OutOfRange("least", least, "at least 1")
    wanted = np.flatnonzero(counts >= least)
    if not len(wanted):
        raise ConfigError("cannot keep the tokens of data that has none", subject="data")
    start = config.network.start
    kept = kept_tokens(tokenizer, wanted if start is None else [*wanted, start])
    smaller = pruned_tokenizer(tokenizer, kept)
    vocabulary = Vocabulary(smaller.vocab_size, smaller.mask_id)
    network = config.network
    if start is not None:
        network = network.variant(start=int(np.searchsorted(kept, start)))
    new = replace(config, network=network, vocabulary=vocabulary)
    pruned = new.build().eval()
    rows, theirs = torch.from_numpy(kept), dict(model.network.named_parameters())
    with torch.no_grad():
        for name, parameter in pruned.named_parameters():
            parameter.copy_(_selected(theirs[name], parameter, rows))
    return TextModel(pruned, new, smaller)


def token_counts(tokenizer: Tokenizer, documents: Iterable[str]) -> Counts:
    """The number of times each token [V] occurs in these texts."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for texts in _parts(documents):
        for ids in tokenizer.encode_batch(texts):
            counts += np.bincount(ids, minlength=len(counts))
    return counts


def _parts(documents: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(documents)
    while some := list(islice(iterator, _TEXTS)):
        yield some


def _selected(theirs: Tensor, ours: Tensor, rows: Tensor) -> Tensor:
    """A parameter, of which only these tokens remain if it has one entry for each."""
    differing = [dim for dim in range(theirs.ndim) if theirs.shape[dim] != ours.shape[dim]]
    return theirs.index_select(differing[0], rows.to(theirs.device)) if differing else theirs
