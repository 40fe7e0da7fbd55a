"""What the official ADLM, MDLM and AR code calls its weights and what they are called here: one table, read both ways.

The official networks are called `backbone` and, with two stages, `denoiser` (`replica` in older files). Only the
denoiser has another input, a linear map of the backbone's logits. The official AR network has no conditioning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Of one network; {n} is the number of a block.
_BLOCK = {
    "blocks.{n}.norm1.weight": "blocks.{n}.norm_1.weight",
    "blocks.{n}.attn_qkv.weight": "blocks.{n}.qkv.weight",
    "blocks.{n}.attn_out.weight": "blocks.{n}.out.weight",
    "blocks.{n}.norm2.weight": "blocks.{n}.norm_2.weight",
    "blocks.{n}.mlp.0.weight": "blocks.{n}.up.weight",
    "blocks.{n}.mlp.0.bias": "blocks.{n}.up.bias",
    "blocks.{n}.mlp.2.weight": "blocks.{n}.down.weight",
    "blocks.{n}.mlp.2.bias": "blocks.{n}.down.bias",
}
_BLOCK_CONDITION = {
    "blocks.{n}.adaLN_modulation.weight": "blocks.{n}.modulation.weight",
    "blocks.{n}.adaLN_modulation.bias": "blocks.{n}.modulation.bias",
}
_STACK = {"output_layer.norm_final.weight": "norm.weight"}
_STACK_CONDITION = {
    "sigma_map.mlp.0.weight": "time.first.weight",
    "sigma_map.mlp.0.bias": "time.first.bias",
    "sigma_map.mlp.2.weight": "time.second.weight",
    "sigma_map.mlp.2.bias": "time.second.bias",
    "output_layer.adaLN_modulation.weight": "modulation.weight",
    "output_layer.adaLN_modulation.bias": "modulation.bias",
}
_EMBEDDING = {"vocab_embed.embedding": "embedding.tokens.weight"}
_HAND_OVER = {"vocab_embed.0.weight": "hand_over.project.weight", "vocab_embed.0.bias": "hand_over.project.bias"}

BUFFER = "rotary_emb.inv_freq"  # not a parameter: in a state_dict, not among EMA weights
FORMER = "replica."  # what `denoiser.` was called


@dataclass(frozen=True)
class StageNames:
    """An official network: what its stack and its head are called here, and what comes before the stack."""

    stack: str
    head: str
    before: Mapping[str, str]


ONE_STAGE = {"backbone": StageNames("stack", "head", MappingProxyType(_EMBEDDING))}
TWO_STAGE = {
    "backbone": StageNames("anchor", "anchor_head", MappingProxyType(_EMBEDDING)),
    "denoiser": StageNames("denoiser", "head", MappingProxyType(_HAND_OVER)),
}


def key_map(layers: Mapping[str, int], *, conditioned: bool) -> dict[str, str]:
    """Official name -> ours, for every parameter there is.

    Args:
        layers: the number of blocks of each official network: {"backbone": 12} or {"backbone": 12, "denoiser": 6}.
        conditioned: whether blocks are modulated; true of all but the official AR network.
    """
    parts = TWO_STAGE if "denoiser" in layers else ONE_STAGE
    found: dict[str, str] = {}
    for network, part in parts.items():
        for theirs, ours in part.before.items():
            found[f"{network}.{theirs}"] = ours
        for kind in ("weight", "bias"):
            found[f"{network}.output_layer.linear.{kind}"] = f"{part.head}.{kind}"
        stack = {**_STACK, **(_STACK_CONDITION if conditioned else {})}
        block = {**_BLOCK, **(_BLOCK_CONDITION if conditioned else {})}
        for n in range(layers[network]):
            stack |= {theirs.format(n=n): ours.format(n=n) for theirs, ours in block.items()}
        found |= {f"{network}.{theirs}": f"{part.stack}.{ours}" for theirs, ours in stack.items()}
    return found


def current(key: str) -> str:
    """An official name as the newest official code has it."""
    return "denoiser." + key.removeprefix(FORMER) if key.startswith(FORMER) else key
