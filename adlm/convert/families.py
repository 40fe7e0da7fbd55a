"""Families of left-to-right models by their settings and the names of their weights in the library transformers.

Each says which stack of this package computes the same, and where its weights go. A setting that no stack here has is
told by `no_counterpart`; such a model can still be converted as a network of that library.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adlm.convert.native import HEAD, TOKENS
from adlm.errors import ConfigError
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import MlpKind, StackConfig

Settings = Mapping[str, Any]
Get = Callable[[str], Tensor]
_GELU: dict[str, MlpKind] = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu": "exact_gelu"}


@dataclass(frozen=True)
class ModelFamily:
    """A family of left-to-right models: its settings and the names of its weights.

    Args:
        prefix: of the names of all weights but the head's, which some files leave out.
        embedding: the name of that of the tokens, without the prefix.
        network: the network that computes the same, without the begin token.
        weights: all weights under their names here, from those under the family's names without the prefix.
        fixed: settings that change the function, with the only values that have a counterpart.
    """

    prefix: str
    embedding: str
    network: Callable[[Settings], OneStageConfig]
    weights: Callable[[OneStageConfig, Get], Iterator[tuple[str, Tensor]]]
    fixed: Mapping[str, tuple[Any, ...]]


def no_counterpart(settings: Settings) -> str | None:
    """The first setting of a model of these families that no stack here has, as `mlp_bias=True`."""
    family = FAMILIES[settings["model_type"]]
    for name, values in family.fixed.items():
        if name in settings and settings[name] not in values:
            return f"{name}={settings[name]}"
    rope = _rope(settings)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        return f"rope_type={kind}"
    if any(kind != "full_attention" for kind in settings.get("layer_types") or ()):
        return "layer_types=sliding_attention"
    return None


def _rope(settings: Settings) -> Settings:
    """Of rotary positions: in one place since version 5 of the library, in several before."""
    found = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    return found if isinstance(found, Mapping) else {}


def _number(settings: Settings, name: str, default: float | None = None) -> float:
    value = settings.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"its {name} must be a positive number, got {value!r}", subject=name)
    return value


def _size(settings: Settings, name: str, default: int | None = None) -> int:
    return int(_number(settings, name, default))


def _llama(settings: Settings, **differing: Any) -> OneStageConfig:
    """Llama; Qwen2 has biases of queries, keys and values, Qwen3 normalizes queries and keys."""
    width, heads = _size(settings, "hidden_size"), _size(settings, "num_attention_heads")
    rope = _rope(settings)
    base = _number(rope, "rope_theta", _number(settings, "rope_theta", 10_000.0))
    stack = StackConfig(
        width=width,
        heads=heads,
        layers=_size(settings, "num_hidden_layers"),
        attention="causal",
        norm="rms",
        norm_eps=float(_number(settings, "rms_norm_eps", 1e-6)),
        mlp="swiglu",
        hidden=_size(settings, "intermediate_size"),
        kv_heads=_size(settings, "num_key_value_heads", heads),
        head_width=_size(settings, "head_dim", width // heads),
        rotary_base=float(base),
        **{"biases": "none", **differing},
    )
    return OneStageConfig(stack, tied=bool(settings.get("tie_word_embeddings", False)), shift=True)


def _qwen2(settings: Settings) -> OneStageConfig:
    return _llama(settings, biases="qkv")


def _qwen3(settings: Settings) -> OneStageConfig:
    return _llama({"head_dim": 128, **settings}, query_key_norm=True, query_key_gains=True)


def _llama_weights(network: OneStageConfig, get: Get) -> Iterator[tuple[str, Tensor]]:
    stack = network.stack
    yield TOKENS, get("embed_tokens.weight")
    for n in range(stack.layers):
        theirs, ours = f"layers.{n}.", f"stack.blocks.{n}."
        yield f"{ours}norm_1.weight", get(f"{theirs}input_layernorm.weight")
        for kind in ("weight", "bias") if stack.biases == "qkv" else ("weight",):
            yield f"{ours}qkv.{kind}", torch.cat([get(f"{theirs}self_attn.{x}_proj.{kind}") for x in "qkv"])
        if stack.query_key_gains:
            yield f"{ours}query_norm.weight", get(f"{theirs}self_attn.q_norm.weight")
            yield f"{ours}key_norm.weight", get(f"{theirs}self_attn.k_norm.weight")
        yield f"{ours}out.weight", get(f"{theirs}self_attn.o_proj.weight")
        yield f"{ours}norm_2.weight", get(f"{theirs}post_attention_layernorm.weight")
        yield f"{ours}up.weight", torch.cat([get(f"{theirs}mlp.{x}_proj.weight") for x in ("gate", "up")])
        yield f"{ours}down.weight", get(f"{theirs}mlp.down_proj.weight")
    yield "stack.norm.weight", get("norm.weight")
    if not network.tied:
        yield HEAD, get("lm_head.weight")


def _gpt_neox(settings: Settings) -> OneStageConfig:
    rope = _rope(settings)
    stack = StackConfig(
        width=_size(settings, "hidden_size"),
        heads=_size(settings, "num_attention_heads"),
        layers=_size(settings, "num_hidden_layers"),
        attention="causal",
        norm_eps=float(_number(settings, "layer_norm_eps", 1e-5)),
        mlp=_GELU[settings.get("hidden_act", "gelu")],
        hidden=_size(settings, "intermediate_size"),
        biases="all",
        rotary_base=float(_number(rope, "rope_theta", _number(settings, "rotary_emb_base", 10_000.0))),
        rotary_fraction=float(_number(rope, "partial_rotary_factor", _number(settings, "rotary_pct", 0.25))),
        parallel=bool(settings.get("use_parallel_residual", True)),
    )
    return OneStageConfig(stack, tied=bool(settings.get("tie_word_embeddings", False)), shift=True)


def _gpt_neox_weights(network: OneStageConfig, get: Get) -> Iterator[tuple[str, Tensor]]:
    heads = network.stack.heads
    yield TOKENS, get("embed_in.weight")
    for n in range(network.stack.layers):
        theirs, ours = f"layers.{n}.", f"stack.blocks.{n}."
        for kind in ("weight", "bias"):
            yield f"{ours}norm_1.{kind}", get(f"{theirs}input_layernorm.{kind}")
            # Each head has its own query, key and value rows there; here all queries come first.
            qkv = get(f"{theirs}attention.query_key_value.{kind}")
            yield f"{ours}qkv.{kind}", qkv.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            yield f"{ours}out.{kind}", get(f"{theirs}attention.dense.{kind}")
            yield f"{ours}norm_2.{kind}", get(f"{theirs}post_attention_layernorm.{kind}")
            yield f"{ours}up.{kind}", get(f"{theirs}mlp.dense_h_to_4h.{kind}")
            yield f"{ours}down.{kind}", get(f"{theirs}mlp.dense_4h_to_h.{kind}")
    for kind in ("weight", "bias"):
        yield f"stack.norm.{kind}", get(f"final_layer_norm.{kind}")
    if not network.tied:
        yield HEAD, get("embed_out.weight")


def _gpt2(settings: Settings) -> OneStageConfig:
    width = _size(settings, "n_embd")
    stack = StackConfig(
        width=width,
        heads=_size(settings, "n_head"),
        layers=_size(settings, "n_layer"),
        attention="causal",
        norm_eps=float(_number(settings, "layer_norm_epsilon", 1e-5)),
        mlp=_GELU[settings.get("activation_function", "gelu_new")],
        hidden=_size(settings, "n_inner", 4 * width),
        biases="all",
        rotary_fraction=0.0,
    )
    tied = bool(settings.get("tie_word_embeddings", True))
    return OneStageConfig(stack, tied=tied, positions=_size(settings, "n_positions", 1024), shift=True)


def _gpt2_weights(network: OneStageConfig, get: Get) -> Iterator[tuple[str, Tensor]]:
    yield TOKENS, get("wte.weight")
    yield "embedding.positions", get("wpe.weight")
    maps = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    for n in range(network.stack.layers):
        theirs, ours = f"h.{n}.", f"stack.blocks.{n}."
        for kind in ("weight", "bias"):
            yield f"{ours}norm_1.{kind}", get(f"{theirs}ln_1.{kind}")
            yield f"{ours}norm_2.{kind}", get(f"{theirs}ln_2.{kind}")
            for mine, name in maps.items():
                yield f"{ours}{mine}.{kind}", get(f"{theirs}{name}.{kind}").t()  # its maps are stored [in, out]
    for kind in ("weight", "bias"):
        yield f"stack.norm.{kind}", get(f"ln_f.{kind}")
    if not network.tied:
        yield HEAD, get("lm_head.weight")


_PLAIN = {"hidden_act": ("silu", "swish"), "attention_bias": (False,), "mlp_bias": (False,)}
_WINDOW = {"use_sliding_window": (False,)}
FAMILIES: dict[str, ModelFamily] = {
    "gpt2": ModelFamily(
        "transformer.",
        "wte.weight",
        _gpt2,
        _gpt2_weights,
        {
            "activation_function": tuple(_GELU),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
    ),
    "gpt_neox": ModelFamily(
        "gpt_neox.",
        "embed_in.weight",
        _gpt_neox,
        _gpt_neox_weights,
        {"hidden_act": tuple(_GELU), "attention_bias": (True,)},
    ),
    "llama": ModelFamily("model.", "embed_tokens.weight", _llama, _llama_weights, _PLAIN),
    "qwen2": ModelFamily(
        "model.", "embed_tokens.weight", _qwen2, _llama_weights, {"hidden_act": _PLAIN["hidden_act"], **_WINDOW}
    ),
    "qwen3": ModelFamily("model.", "embed_tokens.weight", _qwen3, _llama_weights, _PLAIN | _WINDOW),
}
# Models that are asked for by name and have no family of their own here.
_NEAREST = {"gptj": "gpt_neox", "gpt_neo": "gpt2", "opt": "gpt2", "bloom": "gpt2", "starcoder2": "gpt2"}


def nearest_family(kind: str) -> str:
    """The family most like a `model_type` that has none: most of today's models are much like Llama."""
    if kind in FAMILIES or kind in _NEAREST:
        return _NEAREST.get(kind, kind)
    return next((name for name in sorted(FAMILIES, reverse=True) if kind.startswith(name)), "llama")
