"""The network of MDLM and SEDD by the published formulas, and files as they are published, made of random numbers.

Nothing of the package is used: what is converted is compared with this.
"""

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

IDS, WIDTH, HEADS, LAYERS, CONDITION, LENGTH = 39, 32, 4, 2, 16, 24
MDLM = {
    "model_type": "mdlm",
    "architectures": ["MDLM"],
    "auto_map": {"AutoConfig": "configuration_mdlm.MDLMConfig", "AutoModelForMaskedLM": "modeling_mdlm.MDLM"},
    "vocab_size": IDS,
    "model_length": LENGTH,
    "hidden_dim": WIDTH,
    "cond_dim": CONDITION,
    "n_blocks": LAYERS,
    "n_heads": HEADS,
    "dropout": 0.1,
    "time_conditioning": False,
    "return_dict": False,
    "torch_dtype": "float32",
}
BLOCK = 8
BD3LM = {
    **MDLM,
    "model_type": "bd3lm",
    "architectures": ["BD3LM"],
    "auto_map": {"AutoConfig": "configuration_bd3lm.BD3LMConfig", "AutoModelForMaskedLM": "modeling_bd3lm.BD3LM"},
    "block_size": BLOCK,
    "cross_attn": True,
    "adaln": True,
    "causal": False,
    "attn_backend": "flex",
    "var_min": False,
}
SEDD = {
    "ngpus": 8,
    "tokens": IDS - 1,
    "training": {"ema": 0.9999, "batch_size": 512},
    "graph": {"type": "absorb", "file": "data", "report_all": False},
    "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20},
    "model": {
        "name": "small",
        "type": "ddit",
        "hidden_size": WIDTH,
        "cond_dim": CONDITION,
        "length": LENGTH,
        "n_blocks": LAYERS,
        "n_heads": HEADS,
        "scale_by_sigma": True,
        "dropout": 0.1,
    },
}


def weights_of(ids=IDS, seed=0):
    """In the order of the network's state_dict, without a name before it."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator) * 0.2

    def linear(name, out, into):
        return {f"{name}.weight": random(out, into), f"{name}.bias": random(out)}

    half = WIDTH // HEADS // 2
    weights = {"vocab_embed.embedding": random(ids, WIDTH)}
    weights |= linear("sigma_map.mlp.0", CONDITION, 256) | linear("sigma_map.mlp.2", CONDITION, CONDITION)
    weights["rotary_emb.inv_freq"] = 10_000.0 ** (-torch.arange(half) / half)
    for n in range(LAYERS):
        block = f"blocks.{n}."
        weights[block + "norm1.weight"] = 1 + random(WIDTH)
        weights[block + "attn_qkv.weight"] = random(3 * WIDTH, WIDTH)
        weights[block + "attn_out.weight"] = random(WIDTH, WIDTH)
        weights[block + "norm2.weight"] = 1 + random(WIDTH)
        weights |= linear(block + "mlp.0", 4 * WIDTH, WIDTH) | linear(block + "mlp.2", WIDTH, 4 * WIDTH)
        weights |= linear(block + "adaLN_modulation", 6 * WIDTH, CONDITION)
    weights["output_layer.norm_final.weight"] = 1 + random(WIDTH)
    weights |= linear("output_layer.linear", ids, WIDTH)
    weights |= linear("output_layer.adaLN_modulation", 2 * WIDTH, CONDITION)
    return weights


def prefixed(weights):
    return {f"backbone.{name}": value for name, value in weights.items()}


def logits_of(weights, tokens, sigma, hidden=None, positions=None):
    """[B, L] at noise levels [B] -> [B, L, V].

    Args:
        hidden: [L, L] bool, what a position (row) does not see.
        positions: [L] numbers, by default 0, 1, ...
    """

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def modulated(x, name, shift, scale):
        return F.layer_norm(x, x.shape[-1:]) * weights[f"{name}.weight"] * (1 + scale) + shift

    angles = sigma[:, None] * 10_000.0 ** (-torch.arange(128) / 128)
    c = linear(torch.cat([angles.cos(), angles.sin()], -1), "sigma_map.mlp.0")
    c = F.silu(linear(F.silu(c), "sigma_map.mlp.2"))
    positions = torch.arange(tokens.shape[1]) if positions is None else positions
    turns = positions[:, None] * weights["rotary_emb.inv_freq"]
    cos, sin = turns.cos()[:, None], turns.sin()[:, None]

    def rotated(x):
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    x = weights["vocab_embed.embedding"][tokens]
    for n in range(LAYERS):
        block = f"blocks.{n}."
        parts = linear(c, block + "adaLN_modulation")[:, None].chunk(6, -1)
        h = linear(modulated(x, block + "norm1", *parts[:2]), block + "attn_qkv")
        q, k, v = h.view(*tokens.shape, 3, HEADS, -1).unbind(2)
        scores = torch.einsum("blhd,bmhd->bhlm", rotated(q), rotated(k)) / math.sqrt(WIDTH // HEADS)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        x = x + parts[2] * linear(torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), v).flatten(2), block + "attn_out")
        h = F.gelu(linear(modulated(x, block + "norm2", *parts[3:5]), block + "mlp.0"), approximate="tanh")
        x = x + parts[5] * linear(h, block + "mlp.2")
    shift, scale = linear(c, "output_layer.adaLN_modulation")[:, None].chunk(2, -1)
    return linear(modulated(x, "output_layer.norm_final", shift, scale), "output_layer.linear")


def block_logits_of(weights, x_t, x_0, size):
    """BD3-LM's [B, L, V]: one pass over x_t and x_0, each at positions 0, 1, ..."""
    length = x_t.shape[1]
    number = torch.arange(length).repeat(2) // size
    clean = torch.arange(2 * length) >= length
    same = (number[:, None] == number) & (clean[:, None] == clean)
    past = (number[:, None] > number) & clean
    both = torch.cat([x_t, x_0], 1)
    positions = torch.arange(length).repeat(2)
    return logits_of(weights, both, torch.zeros(len(both)), ~(same | past), positions)[:, :length]


def save_folder(folder, settings, weights, *, tokenizer=None, pickled=False):
    """A folder as they are published: settings, weights and, where it is given, a tokenizer as JSON."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "modeling_mdlm.py").write_text("raise SystemExit('code of a folder was run')\n")
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer)
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
