"""`generate` of masked models, by the names that transformers' own diffusion models use.

Those are the names of its DiffusionGemma: `max_new_tokens`, `max_length`, `max_denoising_steps`, `sampler_config`,
`eos_token_id`, `pad_token_id`, `return_dict_in_generate`, `streamer`, and `tokens_per_forward` in what is returned. Its
`t_min`, `t_max`, `stability_threshold` and `confidence_threshold` belong to canvases of random tokens that are all
written anew at every step; a canvas of masks has no use for them, and they are refused like any name that is not known.
What may be drawn goes by the names of its `GenerationConfig`: `do_sample`, `temperature`, `top_k`, `top_p`, `min_p`,
`repetition_penalty`; and there are `num_return_sequences`, `seed` and `generator`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils.generic import ModelOutput

from adlm.errors import ConfigError, OutOfRange, UnknownName
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.named import canonical, sampler_for
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import StepCallback, StepEvent

if TYPE_CHECKING:
    from adlm.hf.models import AdlmMaskedLM

_FILTERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_DRAWING = ("temperature", "top_k", "top_p", "nucleus_p", "keep_crossing", "min_p")
_LENGTHS = ("max_new_tokens", "max_length")
_HOW = ("max_denoising_steps", "sampler_config", "do_sample", *_FILTERS)
_IDS = ("eos_token_id", "pad_token_id", "bos_token_id")
_OTHERS = ("num_return_sequences", "return_dict_in_generate")
KNOWN = (*_LENGTHS, *_HOW, *_IDS, *_OTHERS, "attention_mask", "generation_config", "generator", "seed", "streamer")
_ROWS = 64  # that a sampler has in hand at a time


@dataclass
class DiffusionOutput(ModelOutput):
    """Sequences [B * num_return_sequences, L + new], and the mean number of tokens per pass of a row."""

    sequences: Tensor | None = None
    tokens_per_forward: float | None = None


def generate(
    self: "AdlmMaskedLM",
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *,
    generation_config: GenerationConfig | None = None,
    streamer: Any = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor | DiffusionOutput:
    """Prompts [B, L], and what follows them, [B * num_return_sequences, L + new]; padding after the end token.

    Masks in a prompt are filled too. The rows that the network is shown are those it knows, as in `TextModel.generate`.

    Args:
        attention_mask: [B, L], 0 at padding, on either side.
        streamer: of one row; those that take drafts see every step.
        seed, generator: of the random numbers; without either, PyTorch's global generator is used.
        options: see the top of this module. `sampler_config` is a sampler of this package, its name, a dict with its
            name as `sampler` and its options, or transformers' `EntropyBoundSamplerConfig`.
    """
    given = _given(self.generation_config, generation_config, options)
    config, mask_id = self.model_config, self.config.mask_token_id
    prompts = torch.empty(1, 0, dtype=torch.long) if input_ids is None else input_ids
    shown = torch.ones_like(prompts) if attention_mask is None else attention_mask
    prompts, shown = prompts.to(self.device), shown.to(self.device).bool()
    sampler = _sampler(self.network, config, given)
    new = _new_tokens(config, sampler, given, shown)
    copies, ends = given.get("num_return_sequences", 1), _ids(given.get("eos_token_id"))
    if streamer is not None:
        streamer.put(prompts.cpu())
    sequences = F.pad(prompts.repeat_interleave(copies, 0), (0, new), value=mask_id)
    shown = F.pad(shown.repeat_interleave(copies, 0), (0, new), value=True)
    noise, passes = Noise(_seed(seed, generator)).fork("sample"), 0
    lengths = shown.sum(-1)
    for length in lengths.unique().tolist():
        for rows in (lengths == length).nonzero()[:, 0].split(_ROWS):
            texts = sequences[rows][shown[rows]].view(len(rows), length)
            canvas = _canvas(texts, rows, config)
            on_step = _drafts(streamer, length - new, length)
            stop = ends[0] if len(ends) == 1 else None
            sample = sampler.sample(self.network, canvas, noise=noise, on_step=on_step, stop=stop)
            sequences[rows] = sequences[rows].masked_scatter(shown[rows], sample.tokens[:, :length])
            passes += sample.network_calls
    written = sequences[:, sequences.shape[1] - new :]
    after = torch.isin(written, torch.tensor(ends, device=written.device, dtype=torch.long)).cumsum(-1)[:, :-1] > 0
    written[:, 1:][after] = given["pad_token_id"]
    if streamer is not None:
        streamer.put(written.cpu())
        streamer.end()
    if given.get("return_dict_in_generate"):
        return DiffusionOutput(sequences=sequences, tokens_per_forward=new * len(sequences) / max(passes, 1))
    return sequences


def _given(own: GenerationConfig, config: GenerationConfig | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings: from options, a config or the model's own config, in this order."""
    given: dict[str, Any] = {}
    for each in (own.to_diff_dict(), {} if config is None else config.to_diff_dict(), options):
        given |= {name: value for name, value in each.items() if value is not None and name != "transformers_version"}
    for name in given:
        if name not in KNOWN:
            raise UnknownName("argument of generate", name, KNOWN)
    if given.get("num_return_sequences", 1) < 1:
        raise OutOfRange("num_return_sequences", given["num_return_sequences"], "at least 1")
    return given


def _sampler(network: LanguageModel, config: ModelConfig, given: Mapping[str, Any]) -> Sampler:
    """The chosen sampler; by default the model's own (`ModelConfig.sampling`)."""
    named = {name: given[name] for name in _FILTERS if name in given}
    if "max_denoising_steps" in given:
        named["steps"] = given["max_denoising_steps"]
    asked, greedy = given.get("sampler_config"), given.get("do_sample") is False
    if greedy and (drawing := [name for name in named if name in _DRAWING]):
        raise ConfigError(
            f"do_sample=False always takes the most likely token; leave out {' and '.join(drawing)}", subject=drawing[0]
        )
    if isinstance(asked, Sampler):
        return sampler_for(network, asked, named | ({"top_k": 1} if greedy else {}))
    options = _options(config.sampling if asked is None else asked) | canonical(named)
    if greedy:
        options = {name: value for name, value in options.items() if name not in _DRAWING} | {"top_k": 1}
    if "block_size" in options:
        options.setdefault("window", config.packing.length)
    return sampler_for(network, options.pop("sampler", None), options)


def _options(asked: Any) -> dict[str, Any]:
    """A `sampler_config` as the name of a sampler and its options."""
    if isinstance(asked, str):
        return {"sampler": asked}
    data = dict(asked) if isinstance(asked, Mapping) else None
    if is_dataclass(asked) and not isinstance(asked, type):
        data = {"_cls_name": type(asked).__name__, **asdict(asked)}
    if data is None:
        raise ConfigError(
            f"sampler_config must be a sampler, its name, or a dict with its name as `sampler`, got {asked!r}",
            subject="sampler_config",
        )
    kind = data.pop("_cls_name", None)
    if kind == "EntropyBoundSamplerConfig":
        return {"sampler": "entropy-bounded", "gamma": data["entropy_bound"]}
    if kind is not None:
        raise UnknownName("sampler_config of transformers", kind, ("EntropyBoundSamplerConfig",))
    name = data.pop("sampler", None)
    return ({} if name is None else {"sampler": name}) | canonical(data)


def _new_tokens(config: ModelConfig, sampler: Sampler, given: Mapping[str, Any], shown: Tensor) -> int:
    """How many to write after each prompt, of which the positions `shown` [B, L] are there."""
    length, longest = config.packing.length, int(shown.sum(-1).max())
    new = given.get("max_new_tokens", given.get("max_length", length) - shown.shape[1])
    windowed = isinstance(sampler, Blocks) and sampler.window is not None
    if new < 1:
        "shorten it, or raise max_length" if shown.shape[1] < length else "shorten it"
        raise ConfigError(
            f"{shown.shape[1]} tokens leave no room for more{'; raise max_length' if shown.shape[1] < length else ''}",
            subject="max_new_tokens",
        )
    if longest + new > length and not windowed:
        raise ConfigError(
            f"{new} new tokens do not fit after a prompt of {longest}: the model's rows have room for "
            f"{max(length - longest, 0)} more; give block_size in sampler_config to write in blocks",
            subject="max_new_tokens",
        )
    return new


def _canvas(texts: Tensor, numbers: Tensor, config: ModelConfig) -> Canvas:
    """Rows as the model knows them: where they were always full, blanks that stay blank follow."""
    rows, mask_id, length = config.packing, config.vocabulary.mask_id, texts.shape[1]
    if rows.padding_counts or not rows.pads:
        texts = F.pad(texts, (0, max(rows.length - length, 0)), value=mask_id)
    frozen = texts != mask_id
    frozen[:, length:] = True
    return Canvas(texts, frozen, numbers)


def _drafts(streamer: Any, start: int, end: int) -> StepCallback | None:
    if not hasattr(streamer, "put_draft"):
        return None

    def on_step(event: StepEvent) -> None:
        streamer.put_draft(event.tokens[:, start:end].cpu())

    return on_step


def _ids(tokens: int | list[int] | None) -> list[int]:
    return [] if tokens is None else [tokens] if isinstance(tokens, int) else list(tokens)


def _seed(seed: int | None, generator: torch.Generator | None) -> int:
    if seed is None:
        device = "cpu" if generator is None else generator.device
        return int(torch.randint(1 << 62, (), generator=generator, device=device))
    if generator is not None:
        raise ConfigError("give a seed or a generator, not both", subject="seed")
    return seed
