"""A model of this package into a state_dict of the official code, as safetensors."""

import json

import torch
from torch import Tensor

from adlm.config import to_json
from adlm.convert.contents import METADATA
from adlm.convert.from_official import depths
from adlm.convert.official import BUFFER, key_map
from adlm.errors import ModelError
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig


def to_official(model: LanguageModel, config: ModelConfig, *, asked: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Weights under the official names, with the official buffers, and metadata that makes the way back exact.

    A causal model goes over as it is: what it reads before a row is the mask's embedding, where the official code has
    a begin token in the row.
    """
    network, layers = config.network, depths(config.network)
    if layers is None:
        raise ModelError(asked, f"a {type(network).__name__}", "the official code has ADLM, MDLM and AR only")
    stack, *more = network.stacks
    same: NetworkConfig = OneStageConfig(_official(stack))
    fits = stack.causal == (stack.condition == 0)
    if more:
        same = TwoStageConfig(_official(stack), denoiser_layers=more[0].layers)
        fits = fits and not stack.causal
    differing = [] if fits else [f"causal={stack.causal} with condition={stack.condition}"]
    differing += _differing(to_json(network), to_json(same))
    if differing:
        raise ModelError(
            asked,
            f"what the official networks have not: {', '.join(differing)}",
            "only models of the published shape can be written (ADLM and MDLM with conditioning, AR without)",
        )
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
        causal=stack.causal,
        condition=stack.condition,
        timed=stack.timed,
    )


def _differing(ours: object, theirs: object, where: str = "") -> list[str]:
    """The fields in which two configurations differ, as `stack.convolution=4`."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
        return [
            line
            for key in ours
            for line in _differing(ours[key], theirs.get(key), f"{where}.{key}" if where else str(key))
        ]
    shown = ours["kind"] if isinstance(ours, dict) else ours
    return [] if ours == theirs else [f"{where}={shown}"]
