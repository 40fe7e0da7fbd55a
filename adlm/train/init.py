"""Where the initial weights of a run come from, as values.

They are applied before adapters, freezing and parallelism. A saved model has averaged weights if its run kept them,
so these are what another run starts from.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from adlm.data.tokenizer import Tokenizer
from adlm.errors import ModelError
from adlm.models.hand_over import Continued, Hidden, Logits
from adlm.models.hub import find_model, find_transformers_model
from adlm.models.io import load_model
from adlm.models.language_model import LanguageModel
from adlm.models.one_stage import OneStage
from adlm.models.stack import Stack, StackConfig
from adlm.models.transformers_causal import TransformersCausal, fill_from
from adlm.models.two_stage import TwoStage


@dataclass(frozen=True)
class Init(ABC):
    """The initial weights of a run."""

    @abstractmethod
    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        """Give a freshly built model its first weights."""


@dataclass(frozen=True)
class RandomInit(Init):
    """Random weights, from the run's seed."""

    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        pass


@dataclass(frozen=True)
class Finetune(Init):
    """The weights of another model of the same network; dropout may differ, and what positions see.

    So a left-to-right model starts one that reads blocks, or whole rows, if that is shifted too.

    Args:
        model: a folder, or owner/name on the Hub.
    """

    model: str

    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        asked = f"cannot start from {self.model}"
        other = _load(self.model, tokenizer, asked)
        if type(other) is not type(model):
            fix = "name a model of the same kind; init=AnchorFrom makes two stages from one"
            raise ModelError(
                asked, f"it is {type(other).__name__}, the run trains {type(model).__name__}", fix, subject="init"
            )
        _check_same(_differences("network", getattr(model, "config", None), getattr(other, "config", None)), asked)
        _check_shift(model, other, asked)
        _fill(model, other.state_dict())


@dataclass(frozen=True)
class AnchorFrom(Init):
    """A two-stage model whose first stage is a one-stage model, and which at first predicts what that predicts.

    Embedding, stack and head of the other model become the first stage. Its last norm and its head are copied to the
    second stage too, whose fresh blocks change nothing; and the hand-over starts as the map that makes up for what
    lies between: none for `Continued`, the inverse of the first stage's norm and head for `Logits` (exact, if the head
    has full rank and time plays no part), that of its norm for `Hidden` (nearly, since the embedding is added).
    `Probabilities` cannot be undone, so with it the second stage is that of a fresh model.

    Args:
        model: a folder, or owner/name on the Hub.
    """

    model: str

    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        asked = f"cannot start the anchor stage from {self.model}"
        model, other = _two_and_one(model, self.model, tokenizer, asked)
        _check_fits(model, other, model.config.anchor, asked)
        model.embedding.load_state_dict(other.embedding.state_dict())
        _fill(model.anchor, other.stack.state_dict())
        model.anchor_head.load_state_dict(other.head.state_dict())
        _continue(model, other)


@dataclass(frozen=True)
class SplitFrom(Init):
    """A two-stage model with the `Continued` hand-over, made of the lower and the upper layers of a one-stage model.

    It starts as exactly that model, at the same size and cost; its anchor head reads the residual stream halfway.

    Args:
        model: a folder, or owner/name on the Hub.
    """

    model: str

    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        asked = f"cannot split {self.model} into two stages"
        model, other = _two_and_one(model, self.model, tokenizer, asked)
        if not isinstance(model.config.hand_over, Continued):
            found = f"hand_over={type(model.config.hand_over).__name__} in the run"
            raise ModelError(f"{asked}: {found}; set network.hand_over=Continued", subject="network.hand_over")
        layers = model.config.layers
        _check_fits(model, other, replace(model.config.anchor, layers=sum(layers)), asked)
        model.embedding.load_state_dict(other.embedding.state_dict())
        for head in (model.anchor_head, model.head):
            head.load_state_dict(other.head.state_dict())
        weights, lower = other.stack.state_dict(), layers[0]
        _fill(model.anchor, {name: x for name, x in weights.items() if _layer(name) < lower})
        upper = {_moved(name, lower): x for name, x in weights.items() if _layer(name, lower) >= lower}
        _fill(model.denoiser, upper)


def _fill(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights that may lack those of adapters, which then begin by changing nothing."""
    own = {name: x for name, x in module.state_dict().items() if ".adapters." in name}
    module.load_state_dict({**own, **weights})


def _layer(name: str, default: int = 0) -> int:
    """The number of the block that a parameter of a stack belongs to; `default` for those of no block."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else default


def _moved(name: str, by: int) -> str:
    """The name that a parameter has if its block comes so many earlier."""
    parts = name.split(".")
    return ".".join([parts[0], str(int(parts[1]) - by), *parts[2:]]) if parts[0] == "blocks" else name


@dataclass(frozen=True)
class Pretrained(Init):
    """The weights of a model of the library transformers, for a network of it (`TransformersCausalConfig`).

    Tokens that it does not know start as the mean of those it knows, and rows begin as its own do.

    Args:
        model: a folder as that library saves them, or owner/name on the Hub; read as safetensors only.
    """

    model: str

    def apply(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        asked = f"cannot start from the pretrained {self.model}"
        if not isinstance(model, TransformersCausal):
            fix = "set the network to TransformersCausalConfig; init=Finetune takes models of this package"
            raise ModelError(asked, f"the run trains {type(model).__name__}", fix, subject="init")
        folder = find_transformers_model(self.model, asked=asked)
        fill_from(model, folder, tokenizer.backend.get_vocab(with_added_tokens=True), asked)


@torch.no_grad()
def _continue(model: TwoStage, other: OneStage) -> None:
    """Let the second stage of `model` begin as the identity, where its hand-over can."""
    kind, weights = model.config.hand_over, dict(model.hand_over.named_parameters())
    gain, shift = _last_norm(other.stack)
    if isinstance(kind, Logits):
        matrix, bias = other.head.weight, other.head.bias
        back = _inverse(matrix * gain)
        weights["project.weight"].copy_(back)
        weights["project.bias"].copy_(-back @ (matrix @ shift + bias).double())
    elif isinstance(kind, Hidden):
        # The gate is half open, and the token beside it has unit size: four times as much of the state tells.
        weights["project.weight"].copy_(8 * _inverse(gain.diag()))
    elif not isinstance(kind, Continued):
        return
    for name, module in other.stack.named_children():
        if name != "blocks":
            getattr(model.denoiser, name).load_state_dict(module.state_dict())
    model.head.load_state_dict(other.head.state_dict())


def _last_norm(stack: Stack) -> tuple[Tensor, Tensor]:
    """Gain and shift [D] of a stack's last norm, at t = 0 where it follows the time."""
    gain = stack.norm.weight
    if stack.time is None or stack.modulation is None:
        return gain, torch.zeros_like(gain)
    shift, scale = stack.modulation(stack.time(gain.new_zeros(1)))[0].chunk(2)
    return gain * (1 + scale), shift


def _inverse(matrix: Tensor) -> Tensor:
    """The pseudo-inverse M+ = (M^T M)+ M^T of [V, D], by way of the small side."""
    wide = matrix.double().mT
    return torch.linalg.pinv(wide @ wide.mT, hermitian=True) @ wide


def _two_and_one(model: LanguageModel, name: str, tokenizer: Tokenizer, asked: str) -> tuple[TwoStage, OneStage]:
    """The model of a run, if it has two stages, and another of one stage that starts it."""
    if not isinstance(model, TwoStage):
        found = f"the run trains {type(model).__name__}, which has no anchor stage"
        raise ModelError(f"{asked}: {found}; use Finetune", subject="init")
    other = _load(name, tokenizer, asked)
    if not isinstance(other, OneStage):
        fix = "name a model with one stage; init=Finetune takes a whole model"
        raise ModelError(f"{asked}: it is {type(other).__name__}, not a model with one stage; {fix}", subject=name)
    return model, other


def _load(name: str, tokenizer: Tokenizer, asked: str) -> LanguageModel:
    folder = find_model(name, revision=None, asked=asked)
    model, _, theirs = load_model(folder, asked=asked)
    if theirs.fingerprint != tokenizer.fingerprint:
        found = f"its tokenizer, of {theirs.vocab_size:,} tokens, is not the run's, of {tokenizer.vocab_size:,}"
        raise ModelError(f"{asked}: {found}; set data.tokenizer={folder}", subject="data.tokenizer")
    return model


# Fields without weights. Dropout is off when a model is used; what positions see may change from run to run. Adapters
# that the other model lacks begin by changing nothing.
_WITHOUT_WEIGHTS = ("dropout", "attention", "denoiser_attention", "block_size", "shift", "adapter_rank")


def _check_fits(model: TwoStage, other: OneStage, stack: StackConfig, asked: str) -> None:
    """Refuse a one-stage model that does not have this stack and the embedding of a two-stage one."""
    ours, theirs = model.config, other.config
    differences = [
        *_differences("network.anchor", stack, theirs.stack),
        *_differences("network.positions", ours.positions, theirs.positions),
        # The other way round is possible: one matrix becomes three.
        *_differences("network.tied", ours.tied, ours.tied and theirs.tied),
    ]
    _check_same(differences, asked)
    _check_shift(model, other, asked)


def _check_shift(ours: LanguageModel, theirs: LanguageModel, asked: str) -> None:
    if ours.shifted != theirs.shifted:
        raise ModelError(
            f"{asked}: its positions read {'the token before' if theirs.shifted else 'their own token'}, those of "
            f"the run {'the token before' if ours.shifted else 'their own'}; "
            f"set network.shift={str(theirs.shifted).lower()}",
            subject="network.shift",
        )


def _differences(name: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    """Fields that make another network."""
    if type(ours) is type(theirs) and is_dataclass(ours):
        for field in fields(ours):
            if field.name not in _WITHOUT_WEIGHTS:
                yield from _differences(f"{name}.{field.name}", getattr(ours, field.name), getattr(theirs, field.name))
    elif ours != theirs:
        yield name, _kind(ours), _kind(theirs)


def _kind(value: Any) -> Any:
    """A value as an option names it."""
    return type(value).__name__ if is_dataclass(value) else value


def _check_same(differences: Iterable[tuple[str, Any, Any]], asked: str) -> None:
    if differences := list(differences):
        found = ", ".join(
            f"{name} is {theirs} in the model and {ours} in the run" for name, ours, theirs in differences
        )
        fix = f"set {' '.join(f'{name}={theirs}' for name, _, theirs in differences)}"
        raise ModelError(asked, found, fix, subject=", ".join(name for name, _, _ in differences))
