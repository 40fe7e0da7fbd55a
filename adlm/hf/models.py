"""This package's networks as models of transformers.

A masked model predicts token l at position l. A left-to-right one follows transformers: position l predicts token
l + 1, and rows begin with the mask token, or the network's own start, which the tokenizer adds (`adlm.hf.tokenizer`).

Shapes: B rows, L positions, V vocabulary.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput

from adlm.config import from_json
from adlm.data.tokenizer import Roles
from adlm.errors import ConfigError, ModelError, UnknownName
from adlm.hf.generation import generate
from adlm.hf.modeling_adlm import AdlmConfig, AdlmModel
from adlm.hf.past import Past
from adlm.models.io import ModelConfig, config_json
from adlm.models.language_model import LanguageModel
from adlm.models.layers import Rotary
from adlm.models.transformers_files import own_fields

# Arguments that follow from the attention mask, or that these models do not have.
_IGNORED = ("position_ids", "cache_position", "token_type_ids", "output_attentions", "output_hidden_states")


def transformers_config(config: ModelConfig, roles: Roles) -> AdlmConfig:
    """A model's config as transformers' own."""
    data = config_json(config, roles)
    if data.get("model_type") != AdlmConfig.model_type:
        raise ConfigError(
            f"{type(config.network).__name__} is a network of the library transformers already",
            fix="use that library's own class for it",
            subject=type(config.network).__name__,
        )
    return AdlmConfig(**{name: value for name, value in data.items() if name != "model_type"})


def model_config(config: AdlmConfig) -> ModelConfig:
    """The config from which this package builds the network."""
    data = {name: value for name, value in own_fields(config.to_dict()).items() if name != "format"}
    return from_json(ModelConfig, data, where="config.json")


class _Model(AdlmModel):
    """A network of this package behind the interface of transformers."""

    network: LanguageModel
    causal: ClassVar[bool]

    def __init__(self, config: AdlmConfig) -> None:
        if config.causal != self.causal:
            other = "AutoModelForCausalLM" if config.causal else "AutoModelForMaskedLM"
            found = "it is a left-to-right model" if config.causal else "it is a masked model"
            raise ConfigError(f"{type(self).__name__} does not suit the model: {found}; use {other}", subject=other)
        super().__init__(config)
        self._built = True

    def _build(self, config: AdlmConfig) -> LanguageModel:
        self.model_config = model_config(config)
        return self.model_config.build()

    def _init_weights(self, module: nn.Module) -> None:
        # Networks initialize themselves. When weights are loaded, all of them are there but computed buffers.
        if not getattr(self, "_built", False):
            return
        if isinstance(module, Rotary):
            fresh = Rotary(module.channels, module.base)
            module.inverse_frequency.copy_(fresh.inverse_frequency)
        for name, weight in module.named_parameters(recurse=False):
            if not getattr(weight, "_is_hf_initialized", False):
                raise ModelError(
                    f"there are no weights for {name} of a {type(module).__name__}",
                    fix="the files are damaged: get them again",
                    subject=name,
                )


class AdlmMaskedLM(_Model):
    """MDLM and ADLM: predicts the tokens at masked positions from all others."""

    causal = False
    generate = generate

    @classmethod
    def can_generate(cls) -> bool:
        """Always true: `generate` is this package's own."""
        return True

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        t: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """Logits [B, L, V] of the token at each position, the mask's own at -inf.

        Args:
            attention_mask: [B, L], 0 at padding, which does not influence the rest.
            labels: [B, L], -100 where nothing is scored. The loss is the mean cross-entropy, not the bound that this
                package trains with.
            t: [B], for time-conditioned networks; by default the fraction of masks in a row.
        """
        _check_known(others)
        if t is None and self.network.time_conditioned:
            visible = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            t = ((input_ids == self.config.mask_token_id) & visible.bool()).sum(-1) / visible.sum(-1)
        features = self.network.features(input_ids, t, segments=_segments(attention_mask))
        logits: Any = self.network.logits(features.final)
        loss: Any = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = MaskedLMOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class AdlmCausalLM(_Model, GenerationMixin):
    """AR and A2R, left to right; `generate` is transformers' own."""

    causal = True

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """Logits [B, L, V] of the token after each position, the mask's own at -inf.

        Args:
            attention_mask: [B, L], with a cache [B, all]; 0 at padding, on either side.
            past_key_values: the cache of the tokens before these. Without gradients.
            labels: [B, L], the tokens themselves, -100 where nothing is scored; they are shifted here.
            logits_to_keep: only those of this many last positions; 0 means all.
        """
        _check_known(others)
        segments = _segments(attention_mask)
        past = DynamicCache() if use_cache and past_key_values is None else past_key_values
        if past is None or past.get_seq_length() == 0:
            self._check_starts(input_ids, segments)
        if past is None:
            # Networks shift their rows themselves. The last token is not read as one to predict, and may be any.
            rolled = torch.cat([input_ids[:, 1:], input_ids[:, -1:]], 1)
            final = self.network.features(rolled, segments=segments).final
        else:
            cache = Past(past, self.network, len(input_ids), segments)
            new = input_ids if cache.length else input_ids[:, 1:]
            final = self.network.extend(new, cache, every=True).final
        logits: Any = self.network.logits(final[:, -logits_to_keep:] if logits_to_keep else final)
        loss: Any = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)
        return output.to_tuple() if return_dict is False else output

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as transformers does; weights derived from others are computed once."""
        with self.network.inference_weights():
            return super().generate(*args, **kwargs)  # type: ignore[misc] # its protocol is stricter than its use

    def _check_starts(self, tokens: Tensor, segments: Tensor | None) -> None:
        first = tokens[:, :1] if segments is None else tokens.gather(1, segments.argmax(-1, keepdim=True))
        start = self.network.start_id
        if bool((first != start).any()):
            raise ConfigError(
                f"some rows do not begin with the token {start}, which a left-to-right model needs",
                fix="let the tokenizer add it (add_special_tokens=True, the default), or prepend it yourself",
                subject="input_ids",
            )


def _segments(attention_mask: Tensor | None) -> Tensor | None:
    """[B, L]: 0 in texts and -1 at padding; None if there is no padding."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    visible = attention_mask.bool()
    if bool(((visible[:, 1:] & ~visible[:, :-1]).sum(-1) + visible[:, 0] > 1).any()):
        raise ConfigError(
            "the attention mask has gaps: padding may come before or after a text, not within it",
            subject="attention_mask",
        )
    return visible.long() - 1


def _check_known(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None and name not in _IGNORED:
            raise UnknownName("argument of these models", name, ("input_ids", "attention_mask", "labels", "t"))
