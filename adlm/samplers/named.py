"""Samplers by name."""

from adlm.models.language_model import LanguageModel
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.sampler import Sampler


def default_sampler(model: LanguageModel) -> Sampler:
    """The plain sampler of a model's kind."""
    return LeftToRight() if model.causal else Ancestral()
