"""Which parameters are trained: freezing, and low-rank adapters (LoRA, arXiv 2106.09685) by the library peft."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from adlm.errors import ConfigError, OutOfRange, UnknownName, optional_module
from adlm.models.block import Block
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel

# All that the first stage's prediction depends on.
_ANCHOR = ("embedding", "anchor", "anchor_head")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: W x + alpha / rank * B A x, with W frozen and A, B trained.

    They adapt the query, key and value maps and the up projection of the MLP; in time-conditioned stacks also the maps
    back to the residual stream. Elsewhere the weights of those are read directly, so an adapter would have no effect.

    Args:
        rank: of the added matrices.
        alpha: scale of their product, as alpha / rank.
        dropout: on the input of the adapters.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise OutOfRange("adapters.rank", self.rank, "at least 1")
        if not self.alpha > 0:
            raise OutOfRange("adapters.alpha", self.alpha, "positive")
        if not 0 <= self.dropout < 1:
            raise OutOfRange("adapters.dropout", self.dropout, "in [0, 1)")

    def apply(self, model: LanguageModel) -> None:
        """Insert adapters into `model` and freeze everything else. A is drawn from torch's generator.

        B starts at zero, so the model computes the same function as before.
        """
        peft = _peft()
        config = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=_called(model)
        )
        peft.inject_adapter_in_model(config, model)

    @torch.no_grad()
    def merge(self, model: LanguageModel) -> None:
        """Merge the adapters into the weights and remove them: an ordinary model, all of it trainable again.

        The model must not be sharded.
        """
        adapted = _peft().tuners.lora.LoraLayer
        for name, module in list(model.named_modules()):
            if isinstance(module, adapted):
                module.merge()
                model.set_submodule(name, module.get_base_layer())
        del model.peft_config
        model.requires_grad_()


def merged_model(config: ModelConfig, adapters: Lora | None, weights: dict[str, Tensor]) -> LanguageModel:
    """A plain model from the weights of one that was trained, with its adapters merged."""
    model = config.build()
    if adapters is not None:
        adapters.apply(model)
    model.load_state_dict(weights, strict=False)  # tied weights have one name
    if adapters is not None:
        adapters.merge(model)
    return model.eval()


def _called(model: LanguageModel) -> list[str]:
    """Names of the linear maps in the blocks that are called as modules."""
    names = []
    for position, block in model.named_modules():
        if isinstance(block, Block):
            names += [
                f"{position}.{name}" for name in ("qkv", "up", *(("out", "down") if block.time_conditioned else ()))
            ]
    return names


def _peft() -> ModuleType:
    return optional_module("peft", extra="lora", purpose="training adapters")


def train_adapters_only(model: LanguageModel) -> None:
    """Freeze what the left-to-right model in a network with adapters is made of, see `StackConfig.adapter_rank`.

    Only the adapters are trained, and what the anchor stage alone is read through: its last norm and the bias of its
    head.
    """
    anchor_alone = {"anchor.norm.weight", "anchor.norm.bias", "anchor_head.bias"}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".adapters." in name or (model.stages == 2 and name in anchor_alone))


def freeze(model: LanguageModel, names: Sequence[str]) -> None:
    """Freeze parts of a model: they get no gradient and are in no optimizer.

    A name is a stage of a two-stage model or a prefix of parameter names, such as `embedding` or `anchor.blocks.0`.
    The stage `anchor` is embedding, anchor stack and anchor head; `denoiser` is the rest. The matrix of tied heads is
    the embedding: it is frozen with the anchor stage, which leaves the last head its bias, and not with the denoiser.
    """
    own = {parameter: name for name, parameter in model.named_parameters()}
    every = dict(model.named_parameters(remove_duplicate=False))
    stages = _stages(own.values()) if model.stages == 2 else {}
    frozen = {name for asked in names for name in stages.get(asked) or _beginning(asked, every, stages)}
    for name in sorted(frozen):
        first = own[every[name]]
        if first not in frozen:
            fix = f"freeze {first} too, or name the other parameters in full"
            found = f"its weights are tied to {first}, which is trained"
            raise ConfigError(f"cannot freeze {name}: {found}; {fix}", subject=name)
    if not any(parameter.requires_grad and name not in frozen for parameter, name in own.items()):
        raise ConfigError(f"nothing is left to train after freezing {', '.join(names)}", subject="train.freeze")
    for name in frozen:
        every[name].requires_grad_(False)


def _stages(names: Iterable[str]) -> dict[str, list[str]]:
    anchor = [name for name in names if name.split(".")[0] in _ANCHOR]
    return {"anchor": anchor, "denoiser": [name for name in names if name not in anchor]}


def _beginning(asked: str, names: Iterable[str], stages: Iterable[str]) -> list[str]:
    """The names that start with `asked`, in whole words."""
    found = [name for name in names if f"{name}.".startswith(f"{asked}.")]
    if found:
        return found
    # Offer the words that can follow the part that is right.
    words = asked.split(".")
    for depth in reversed(range(len(words))):
        right = "".join(f"{word}." for word in words[:depth])
        known = {".".join(name.split(".")[: depth + 1]) for name in names if name.startswith(right)}
        if known:
            break
    raise UnknownName("part to freeze", asked, known if depth else {*known, *stages})
