"""Checkpoints as the official training writes them, without the libraries it uses.

Classes of omegaconf, transformers and tokenizers are stood in for while `torch.save` runs: a pickle stores only their
names and states, which are given as those libraries write them.
"""

import json
import sys
import types
from collections import OrderedDict
from contextlib import contextmanager

import torch
from safetensors.torch import load_file

from adlm.convert.official import BUFFER
from tests.models.test_official import GOLDEN

TINY = {"model.n_heads": 3, "model.length": 24, "model.dropout": 0.1, "time_conditioning": False, "data.wrap": True}


def tiny_weights(prefix="weights."):
    """The official ADLM network of tests/golden: 4 + 2 layers, width 48, 39 ids."""
    weights = load_file(GOLDEN / "adlm_tiny_weights.safetensors")
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}


def ar_weights(layers=2, width=32, ids=39, heads=4, seed=0):
    """An official AR network, in the order of its state_dict: no conditioning at all."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator) * 0.3

    weights = OrderedDict({"backbone.vocab_embed.embedding": random(ids, width)})
    half = width // heads // 2
    weights[f"backbone.{BUFFER}"] = 1.0 / 10_000 ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    for n in range(layers):
        block = f"backbone.blocks.{n}."
        weights[block + "norm1.weight"] = 1 + random(width)
        weights[block + "attn_qkv.weight"] = random(3 * width, width)
        weights[block + "attn_out.weight"] = random(width, width)
        weights[block + "norm2.weight"] = 1 + random(width)
        weights[block + "mlp.0.weight"], weights[block + "mlp.0.bias"] = random(4 * width, width), random(4 * width)
        weights[block + "mlp.2.weight"], weights[block + "mlp.2.bias"] = random(width, 4 * width), random(width)
    weights["backbone.output_layer.norm_final.weight"] = 1 + random(width)
    weights["backbone.output_layer.linear.weight"] = random(ids, width)
    weights["backbone.output_layer.linear.bias"] = random(ids)
    return weights


def tokenizer_json(ids=38, special=("<unk>", "<bos>", "<eos>", "<pad>"), added=()):
    """One token a letter and the special tokens last; `added` are not counted in the vocabulary."""
    letters = [chr(ord("!") + i) for i in range(ids - len(special))]
    vocabulary = {token: index for index, token in enumerate([*letters, *special])}
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": vocabulary[token], "content": token, **entry} for token in special]
    tokens += [{"id": ids + i, "content": token, **entry} for i, token in enumerate(added)]
    split = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": special[0]}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None}
    return json.dumps({**whole, "pre_tokenizer": split, "post_processor": None, "decoder": None, "model": model})


@contextmanager
def stand_ins(*names):
    """Empty classes under foreign names: `with stand_ins("omegaconf.nodes.AnyNode") as (AnyNode,)`."""
    made, before = [], dict(sys.modules)
    try:
        for full in names:
            module, name = full.rsplit(".", 1)
            for end in range(1, len(module.split(".")) + 1):
                part = ".".join(module.split(".")[:end])
                if end == 1 or part not in sys.modules or sys.modules[part] is before.get(part):
                    sys.modules[part] = types.ModuleType(part)
            cls = type(name, (), {"__module__": module})
            setattr(sys.modules[module], name, cls)
            made.append(cls)
        yield made
    finally:
        sys.modules.clear()
        sys.modules.update(before)


def with_state(cls, state):
    made = cls()
    made.__dict__.update(state)
    return made


def save_checkpoint(path, weights, *, settings=TINY, averaged=None, tokenizer=None, special=None, protocol=2, **more):
    """Write a Lightning checkpoint with these official weights.

    Args:
        settings: the configuration by dotted names; None leaves it out.
        averaged: EMA weights, a list.
        tokenizer: JSON of a fast tokenizer; None leaves it out.
        special: what its special tokens are called.
    """
    names = ["omegaconf.dictconfig.DictConfig", "omegaconf.nodes.AnyNode", "omegaconf.base.Metadata"]
    names += ["transformers.tokenization_utils_base.Fast", "tokenizers.models.Model", "tokenizers.AddedToken"]
    with stand_ins(*names) as (DictConfig, AnyNode, Metadata, Fast, Model, AddedToken):
        sys.modules["tokenizers"].Tokenizer = type("Tokenizer", (), {"__module__": "tokenizers"})
        Rust = sys.modules["tokenizers"].Tokenizer
        Rust.__reduce__ = lambda self: (
            Rust,
            (with_state(Model, {"type": "BPE"}),),
            self.json.encode("utf-8", "surrogatepass"),
        )
        Rust.__setstate__ = lambda self, state: None

        def container(tree):
            content = {key: container(value) if isinstance(value, dict) else node(value) for key, value in tree.items()}
            return with_state(DictConfig, {"_metadata": Metadata(), "_parent": None, "_content": content})

        def node(value):
            return with_state(AnyNode, {"_metadata": Metadata(), "_val": value})

        state_dict = OrderedDict(weights)
        state_dict._metadata = OrderedDict({"": {"version": 1}})
        optimizer = {"state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1}]}
        content = {"epoch": 2, "global_step": 4, "state_dict": state_dict, "optimizer_states": [optimizer], **more}
        hyper_parameters = {}
        if settings is not None:
            tree = {}
            for name, value in settings.items():
                *above, last = name.split(".")
                position = tree
                for part in above:
                    position = position.setdefault(part, {})
                position[last] = value
            hyper_parameters["config"] = container(tree)
        if tokenizer is not None:
            backend = with_state(Rust, {"json": tokenizer})
            tokens = special or {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": None}
            tokens = {
                role: with_state(AddedToken, {"content": text, "special": True}) if role == "eos_token" else text
                for role, text in tokens.items()
            }
            hyper_parameters["tokenizer"] = with_state(Fast, {"_tokenizer": backend, "_special_tokens_map": tokens})
        content["hyper_parameters"] = hyper_parameters
        if averaged is not None:
            content["ema"] = {"decay": 0.9999, "num_updates": 4, "shadow_params": averaged}
        torch.save(content, path, pickle_protocol=protocol)
    return path
