"""The names of weights in the official ADLM, MDLM, BD3-LM and AR code and here, one table read both ways; and writing.

The official networks are called `backbone` and, with two stages, `denoiser` (`replica` in older files). Only the
denoiser has another input, a linear map of the backbone's logits. The official AR network has no conditioning.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from adlm.config import differences, to_json
from adlm.errors import ModelError
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig

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
METADATA = "adlm_config"  # under which `to_official` writes down what official files do not say
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


def depths(network: NetworkConfig) -> dict[str, int] | None:
    """The layers of each official network; None if there is nothing official like it."""
    return dict(zip(("backbone", "denoiser"), network.layers, strict=False)) if network.stacks else None


def to_official(model: LanguageModel, config: ModelConfig, *, asked: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Weights under the official names, with the official buffers, and metadata that makes the way back exact.

    A causal model goes over as it is: what it reads before a row is the mask's embedding, where the official code has
    a begin token in the row.
    """
    network, layers = config.network, depths(config.network)
    if layers is None:
        raise ModelError(
            f"{asked}: the official code has ADLM, MDLM, BD3-LM and AR, and no {type(network).__name__}",
            subject="network",
        )
    stack, *more = network.stacks
    same: NetworkConfig = OneStageConfig(_official(stack), block_size=network.block_size)
    fits = stack.causal == (stack.condition == 0)
    if more:
        whole = replace(stack, attention="causal" if stack.causal else "full")
        same = TwoStageConfig(_official(whole), denoiser_layers=more[0].layers)
        fits = fits and not stack.causal
    differing = [] if fits else [f"causal={stack.causal} with condition={stack.condition}"]
    differing += [f"{name}={ours}" for name, ours, _ in differences(to_json(network), to_json(same))]
    if differing:
        raise ModelError(f"{asked}: the official networks have no {', '.join(differing)}", subject=", ".join(differing))
    parameters = dict(model.named_parameters())
    names = key_map(layers, conditioned=stack.condition > 0)
    weights = {theirs: parameters[ours].detach().contiguous() for theirs, ours in names.items()}
    width = stack.width // stack.heads
    for part in layers:
        weights[f"{part}.{BUFFER}"] = 1.0 / 10_000 ** (torch.arange(0, width, 2).float() / width)
    return weights, {"format": "pt", METADATA: json.dumps(to_json(config))}


def _official(stack: StackConfig) -> StackConfig:
    """The published stack nearest to one: whatever else there is has its value of leaving it out."""
    return StackConfig(
        width=stack.width,
        heads=stack.heads,
        layers=stack.layers,
        dropout=stack.dropout,
        attention=stack.attention,
        condition=stack.condition,
        timed=stack.timed,
    )
