"""Networks: configurations, the models built from them, their costs, and saved models."""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

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

# Fetched when first used, so that looking at a configuration does not import every network.
__getattr__ = lazy_names(
    __name__,
    {
        "cache": ("Cache",),
        "costs": ("activation_bytes", "count_parameters", "forward_work", "training_work"),
        "hand_over": ("Continued", "HandOver", "Hidden", "Logits", "Probabilities"),
        "io": ("ModelConfig", "load_model", "save_model"),
        "language_model": ("LanguageModel",),
        "network": ("NetworkConfig", "Vocabulary"),
        "one_stage": ("OneStageConfig",),
        "sizes": ("SIZES", "published"),
        "stack": ("Attention", "StackConfig"),
        "transformers_causal": ("TransformersCausalConfig",),
        "two_stage": ("TwoStageConfig",),
    },
)
