"""This package's networks as models of transformers: its calls, its outputs, its files.

A masked model predicts token l at position l, here as everywhere. A left-to-right one follows transformers: position l
predicts token l + 1, and rows begin with the mask token, which is what this package's networks start from. The
tokenizer puts it there (`adlm.hf.tokenizer`).

Shapes: B rows, L positions, V vocabulary.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput

from adlm.errors import ConfigError, ModelError, UnknownName
from adlm.hf import modeling_adlm
from adlm.hf.config import AdlmConfig
from adlm.hf.generation import generate
from adlm.hf.past import Past
from adlm.models.language_model import LanguageModel
from adlm.models.layers import Rotary

REMOTE_CODE = Path(modeling_adlm.__file__)
# What callers pass along that follows from the attention mask, or that these models do not have.
_NEEDLESS = ("position_ids", "cache_position", "token_type_ids", "output_attentions", "output_hidden_states")


class _Model(PreTrainedModel):
    """A network of this package with the manners of transformers."""

    config_class = AdlmConfig
    base_model_prefix = "network"
    auto_class: ClassVar[str]
    causal: ClassVar[bool]

    def __init__(self, config: AdlmConfig) -> None:
        super().__init__(config)
        if config.causal != self.causal:
            other = "AutoModelForCausalLM" if config.causal else "AutoModelForMaskedLM"
            found = "it writes left to right" if config.causal else "it sees both sides"
            raise ConfigError(f"asked for a model as {type(self).__name__}", found, f"use {other}")
        self.model_config = config.model_config()
        self.network: LanguageModel = self.model_config.build()
        # The library stores tied weights once and ties them again, if it is told the names.
        first: dict[int, str] = {}
        names = [(name, id(each)) for name, each in self.named_parameters(remove_duplicate=False)]
        self._tied_weights_keys = {name: first[key] for name, key in names if first.setdefault(key, name) != name}
        self.post_init()
        self.generation_config = GenerationConfig(
            max_length=self.model_config.packing.length + self.causal,  # the token that rows begin with is one more
            do_sample=True,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
        self._built = True

    def _init_weights(self, module: nn.Module) -> None:
        # Networks start by themselves. When weights are read, all of them are there, and only what is computed is not.
        if not getattr(self, "_built", False):
            return
        if isinstance(module, Rotary):
            fresh = Rotary(2 * len(module.inverse_frequency))
            module.inverse_frequency.copy_(fresh.inverse_frequency)
        for name, weight in module.named_parameters(recurse=False):
            if not getattr(weight, "_is_hf_initialized", False):
                found = f"no weights for {name} of a {type(module).__name__}"
                raise ModelError(
                    "asked to read a model for transformers", found, "the files are damaged: get them again"
                )

    def get_input_embeddings(self) -> nn.Module:
        return self.network.embedding.tokens  # type: ignore[union-attr, return-value] # of both kinds of network

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As ever, and the file with which those load the folder who do not have this package."""
        self.config.auto_map = {
            "AutoConfig": f"{REMOTE_CODE.stem}.AdlmConfig",
            self.auto_class: f"{REMOTE_CODE.stem}.{type(self).__name__}",
        }
        super().save_pretrained(save_directory, *args, **kwargs)
        (Path(save_directory) / REMOTE_CODE.name).write_bytes(REMOTE_CODE.read_bytes())


class AdlmForMaskedLM(_Model):
    """MDLM and ADLM: tokens at the masked positions from all the others."""

    auto_class, causal = "AutoModelForMaskedLM", False
    generate = generate

    @classmethod
    def can_generate(cls) -> bool:
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
            attention_mask: [B, L], 0 at padding, which changes nothing for the rest.
            labels: [B, L], -100 where nothing is scored. The loss is the mean cross-entropy, not the bound that this
                package trains with.
            t: [B], for networks that are told the time; without it, the fraction of masks in a row.
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


class AdlmForCausalLM(_Model, GenerationMixin):
    """AR and A2R, left to right; `generate` is transformers' own."""

    auto_class, causal = "AutoModelForCausalLM", True

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
            past_key_values: what was kept of the tokens before these. Without gradients.
            labels: [B, L], the tokens themselves, -100 where nothing is scored; they are shifted here.
            logits_to_keep: only those of so many last positions; 0 is all.
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
        """As of transformers; what is derived from the weights is made once."""
        with self.network.inference_weights():
            return super().generate(*args, **kwargs)  # type: ignore[misc] # its protocol is stricter than its use

    def _check_starts(self, tokens: Tensor, segments: Tensor | None) -> None:
        first = tokens[:, :1] if segments is None else tokens.gather(1, segments.argmax(-1, keepdim=True))
        if bool((first != self.config.mask_token_id).any()):
            raise ConfigError(
                "asked a left-to-right model to read rows",
                f"some do not begin with the token {self.config.mask_token_id}, from which it starts",
                "let the tokenizer put it there (add_special_tokens=True, the default), or do so yourself",
            )


def _segments(attention_mask: Tensor | None) -> Tensor | None:
    """[B, L]: 0 in texts and -1 at padding; None where there is none."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    visible = attention_mask.bool()
    if bool(((visible[:, 1:] & ~visible[:, :-1]).sum(-1) + visible[:, 0] > 1).any()):
        raise ConfigError(
            "asked to read rows with an attention mask", "it has gaps", "put padding before or after a text, not within"
        )
    return visible.long() - 1


def _check_known(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None and name not in _NEEDLESS:
            raise UnknownName("argument of these models", name, ("input_ids", "attention_mask", "labels", "t"))
