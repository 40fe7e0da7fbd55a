"""Low-rank adapters (LoRA, arXiv 2106.09685) by the library peft."""

from dataclasses import dataclass
from types import ModuleType

import torch

from adlm.errors import ConfigError, optional_module
from adlm.models.block import Block
from adlm.models.language_model import LanguageModel


@dataclass(frozen=True)
class Lora:
    """Train small matrices beside the large ones, which stay as they are: W x + alpha / rank * B A x.

    They stand beside the maps to queries, keys and values and the one up in the MLP; in timed stacks also beside the
    maps back to the residual stream, which all others multiply by their modulation before use.

    Args:
        rank: of the added matrices.
        alpha: their product counts alpha / rank.
        dropout: of what they read.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0 or not 0 <= self.dropout < 1:
            raise ConfigError(
                f"asked for adapters of rank {self.rank} with alpha {self.alpha} and dropout {self.dropout}",
                "one of them is out of range",
                "give a rank of 1 or more, an alpha above 0, a dropout in [0, 1)",
            )

    def apply(self, model: LanguageModel) -> None:
        """Put adapters into `model`; all else in it stops learning. A is drawn by torch's generator.

        B starts at zero, so the model is the same function as before.
        """
        peft = _peft()
        config = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=_called(model)
        )
        peft.inject_adapter_in_model(config, model)

    @torch.no_grad()
    def merge(self, model: LanguageModel) -> None:
        """Add the adapters to the weights beside them and take them out: an ordinary model again, all of it learning.

        The model is to be whole, not in parts over processes.
        """
        adapted = _peft().tuners.lora.LoraLayer
        for name, module in list(model.named_modules()):
            if isinstance(module, adapted):
                module.merge()
                model.set_submodule(name, module.get_base_layer())
        del model.peft_config
        model.requires_grad_()


def _called(model: LanguageModel) -> list[str]:
    """The maps of the blocks that are called. Beside one whose weight is read instead, adapters would do nothing."""
    names = []
    for position, block in model.named_modules():
        if isinstance(block, Block):
            names += [f"{position}.{name}" for name in ("qkv", "up", *(("out", "down") if block.timed else ()))]
    return names


def _peft() -> ModuleType:
    return optional_module("peft", extra="lora", purpose="training adapters")
