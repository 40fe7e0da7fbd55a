"""Tiny text models of every kind for the tests of adlm.hf."""

from dataclasses import replace

import torch

from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.tokenizer import characters, train_words
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.io import ModelConfig
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel

WORDS = train_words(["the cat sat on the mat", "the dog saw a big red cat, and ran"])
LETTERS = characters("abcdefgh ")
PLAIN = StackConfig(width=16, heads=2, layers=2, mlp_ratio=2)
SMALL = replace(PLAIN, convolution=5, query_key_norm=True)
PUBLISHED = replace(PLAIN, condition=8, dropout=0.1)
LENGTH = 12
FULL = Padded(LENGTH, begin=False, predict_padding=True)
NETWORKS: dict[str, NetworkConfig] = {
    "ar": OneStageConfig(replace(SMALL, attention="causal"), tied=True, positions=LENGTH),
    "ar-published": OneStageConfig(replace(PUBLISHED, attention="causal", condition=0)),
    "a2r": TwoStageConfig(replace(SMALL, attention="causal"), 1, Hidden(), tied=True, positions=LENGTH),
    "a2r-published": TwoStageConfig(replace(PUBLISHED, attention="causal", condition=0), 1, Logits()),
    "mdlm": OneStageConfig(replace(SMALL, input_reinjection=1), tied=True, positions=LENGTH),
    "mdlm-published": OneStageConfig(PUBLISHED),
    "sedd": OneStageConfig(replace(PUBLISHED, timed=True)),
    "adlm": TwoStageConfig(SMALL, 1, Hidden(), tied=True, positions=LENGTH),
    "adlm-published": TwoStageConfig(PUBLISHED, 1, Logits()),
    "adlm-probabilities": TwoStageConfig(SMALL, 1, Probabilities(), tied=True),
    "adlm-continued": TwoStageConfig(SMALL, 1, Continued()),
}
CAUSAL = [name for name in NETWORKS if name.startswith("a") and "r" in name[:3]]
MASKED = [name for name in NETWORKS if name not in CAUSAL]


def text_model_of(name: str, rows: Packing = FULL, tokenizer=WORDS) -> TextModel:
    """With weights that are all random, none of which starts at zero."""
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    sampling = {} if name in CAUSAL else {"sampler": "ancestral", "steps": 6}
    config = ModelConfig(NETWORKS[name], vocabulary, rows, sampling=sampling)
    network = config.build().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, generator=generator))
    return TextModel(network, config, tokenizer)


def rows_of(name: str, length: int = 7, count: int = 3) -> torch.Tensor:
    """Random tokens with masks among them; rows of left-to-right models begin with one."""
    tokens = torch.randint(WORDS.vocab_size - 1, (count, length), generator=torch.Generator().manual_seed(2))
    if name in CAUSAL:
        tokens[:, 0] = WORDS.mask_id
    else:
        tokens[:, ::3] = WORDS.mask_id
    return tokens


FRAMED = Wrapped(LENGTH, framed=True)
