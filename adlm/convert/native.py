"""A left-to-right model of another family as one of this package's own networks.

The vocabulary gains a mask, which no text contains and nothing predicts; its embedding starts as the mean of all
others. Rows begin with the family's own begin token, which is read before them and is not part of them
(`OneStageConfig.start`), so every token of a row is predicted from exactly what the original reads.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ModelError
from adlm.memory import available_bytes
from adlm.models.costs import count_parameters
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig

TOKENS, HEAD = "embedding.tokens.weight", "head.weight"
# Of a head that has none in the original.
HEAD_BIAS = "head.bias"
_DIFFERENT = "settings and weights belong to different models, or the files are damaged"


def native_config(network: OneStageConfig, tokenizer: Tokenizer, packing: Packing, *, asked: str) -> ModelConfig:
    """The config of a converted model, if there is memory for it."""
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    needed, free = 4 * count_parameters(network, vocabulary).total, available_bytes()
    if free is not None and needed > free:
        found = f"its weights take {needed / 2**30:.1f} GiB in float32, and {free / 2**30:.1f} GiB of memory are free"
        raise ModelError(f"{asked}: {found}", subject="memory")
    return ModelConfig(network, vocabulary, packing)


@torch.no_grad()
def native_model(config: ModelConfig, weights: Iterable[tuple[str, Tensor]], *, asked: str) -> LanguageModel:
    """The network of `config` with these weights, under the names they have here.

    Tables of tokens may have other sizes than the vocabulary: rows that no token has are left out, and tokens without
    a row, the mask among them, get the mean of all.
    """
    model = config.build()
    parameters = dict(model.named_parameters())
    missing = parameters.keys() - {HEAD_BIAS}
    for name, values in weights:
        ours = parameters.get(name)
        if ours is None:
            raise ModelError(f"{asked}: no place for {name}; {_DIFFERENT}", subject=name)
        if name in (TOKENS, HEAD) and values.shape[1:] == ours.shape[1:]:
            known = min(len(values), len(ours))
            ours[:known] = values[:known]
            ours[known:] = ours[config.vocabulary.mask_id] = values[:known].float().mean(0)
        elif values.shape == ours.shape:
            ours.copy_(values)
        else:
            found = f"{name} has shape {list(values.shape)} instead of {list(ours.shape)}"
            raise ModelError(f"{asked}: {found}; {_DIFFERENT}", subject=name)
        missing.discard(name)
    if missing:
        raise ModelError(f"{asked}: no weights for {sorted(missing)[0]}; {_DIFFERENT}", subject=sorted(missing)[0])
    return model.eval()


def half_split(rows: Tensor, head_width: int) -> Tensor:
    """Rows [n head_width, ...] of a map to queries or keys whose rotary pairs are neighbors, as halves of each head.

    A network that turns channels (2i, 2i + 1) computes the same as one that turns (i, i + half) with these rows.
    """
    return rows.unflatten(0, (-1, head_width // 2, 2)).transpose(1, 2).flatten(0, 2)
