"""Networks: configurations, the models built from them, their costs, and saved models."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.models.cache import Cache
    from adlm.models.costs import activation_bytes, count_parameters, forward_work, training_work
    from adlm.models.hand_over import Continued, HandOver, Hidden, Logits, Probabilities
    from adlm.models.io import ModelConfig, load_model, save_model
    from adlm.models.language_model import LanguageModel
    from adlm.models.network import NetworkConfig, Vocabulary
    from adlm.models.one_stage import OneStageConfig
    from adlm.models.sizes import SIZES, published
    from adlm.models.stack import Attention, StackConfig
    from adlm.models.transformers_causal import TransformersCausalConfig
    from adlm.models.two_stage import TwoStageConfig

__all__ = [
    "SIZES",
    "Attention",
    "Cache",
    "Continued",
    "HandOver",
    "Hidden",
    "LanguageModel",
    "Logits",
    "ModelConfig",
    "NetworkConfig",
    "OneStageConfig",
    "Probabilities",
    "StackConfig",
    "TransformersCausalConfig",
    "TwoStageConfig",
    "Vocabulary",
    "activation_bytes",
    "count_parameters",
    "forward_work",
    "load_model",
    "published",
    "save_model",
    "training_work",
]

_HOMES = {
    "Attention": "adlm.models.stack",
    "Cache": "adlm.models.cache",
    "Continued": "adlm.models.hand_over",
    "HandOver": "adlm.models.hand_over",
    "Hidden": "adlm.models.hand_over",
    "LanguageModel": "adlm.models.language_model",
    "Logits": "adlm.models.hand_over",
    "ModelConfig": "adlm.models.io",
    "NetworkConfig": "adlm.models.network",
    "OneStageConfig": "adlm.models.one_stage",
    "Probabilities": "adlm.models.hand_over",
    "SIZES": "adlm.models.sizes",
    "StackConfig": "adlm.models.stack",
    "TransformersCausalConfig": "adlm.models.transformers_causal",
    "TwoStageConfig": "adlm.models.two_stage",
    "Vocabulary": "adlm.models.network",
    "activation_bytes": "adlm.models.costs",
    "count_parameters": "adlm.models.costs",
    "forward_work": "adlm.models.costs",
    "load_model": "adlm.models.io",
    "published": "adlm.models.sizes",
    "save_model": "adlm.models.io",
    "training_work": "adlm.models.costs",
}


def __getattr__(name: str) -> Any:
    # Fetched when first used, so that looking at a configuration does not import every network.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
