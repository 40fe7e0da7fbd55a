"""Tiny left-to-right models to adapt: random weights, all in use."""

import torch

from adlm.data.packing import Padded
from adlm.data.tokenizer import characters
from adlm.models.hand_over import Continued
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel

STACK = StackConfig(width=16, heads=2, layers=3, attention="causal")
ONE = OneStageConfig(STACK, tied=True, shift=True)
A2R = TwoStageConfig(STACK, 1, Continued(), shift=True)
LETTERS = "abcdefgh "


def left_to_right(network=ONE, packing=None):
    tokenizer = characters(LETTERS)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    config = ModelConfig(network, vocabulary, packing or Padded(16, begin=False))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = config.build().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return TextModel(model, config, tokenizer)


def corpus(folder):
    """A file of short lines of these letters."""
    lines = [" ".join(LETTERS[(i * k) % 8] * 2 for k in range(1, 5)) for i in range(1, 200)]
    path = folder / "corpus.jsonl"
    path.write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    return str(path)
