"""What every language model here is: features for all positions first, a vocabulary for chosen ones last.

Position l of the features predicts token l, in every model. A left-to-right model therefore shifts its input
by itself and starts from the mask token, which no text contains.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import ConfigError
from adlm.models.cache import Cache
from adlm.models.derived import frozen
from adlm.models.int8 import check_supported
from adlm.models.layers import Block, places_in, starts_of
from adlm.models.stack import Stack
from adlm.models.unpadded import moved, plan_for, put_back
from adlm.types import Features


@dataclass(frozen=True)
class Vocabulary:
    """What a model has to know of its tokenizer: the number of ids, the mask among them, and the mask."""

    size: int
    mask_id: int

    def __post_init__(self) -> None:
        if not 0 <= self.mask_id < self.size:
            raise ConfigError(
                f"asked for the mask token {self.mask_id} in a vocabulary of {self.size}",
                "it lies outside",
                "take both from the tokenizer's roles",
            )


@dataclass(frozen=True)
class NetworkConfig(ABC):
    """The shape of a network, whatever its vocabulary."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> "LanguageModel": ...


class Embedding(nn.Module):
    """Tokens [B, L] -> [B, L, D], with a learned vector for each of the first `positions` places if there are any.

    Rotary positions tell distances only. Where rows begin with their document, a fully masked row looks the same
    everywhere to a masked model, and places are what it can know; in packed rows they mean nothing.

    Starts as published, uniform in +-1/sqrt(D); as the head too (`tied`), smaller, so that first guesses are nearly
    uniform over the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, width: int, positions: int = 0, *, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary.size, width)
        if tied:
            nn.init.normal_(self.tokens.weight, std=0.02)
        else:
            nn.init.uniform_(self.tokens.weight, -(width**-0.5), width**-0.5)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width)) if positions else None

    def forward(self, tokens: Tensor, segments: Tensor | None = None, start: int = 0) -> Tensor:
        """`start` is the place of the first position, where rows are read in parts."""
        x: Tensor = self.tokens(tokens)
        if self.positions is None:
            return x
        end = start + tokens.shape[1]
        if end > len(self.positions):
            raise ConfigError(
                f"asked to read rows of {end} tokens",
                f"the model has learned {len(self.positions)} places",
                "use shorter rows, or a model with positions=0",
            )
        return x + (self.positions[start:end] if segments is None else self.positions[places_in(segments)])


class Head(nn.Module):
    """h [N, D] -> logits [N, V]. The mask token gets -inf: nothing ever predicts it (SUBS, arXiv 2406.07524)."""

    def __init__(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None = None) -> None:
        super().__init__()
        self.mask_id = vocabulary.mask_id
        self.weight = nn.Parameter(torch.zeros(vocabulary.size, width)) if tied_to is None else tied_to.tokens.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))

    def raw(self, h: Tensor) -> Tensor:
        """Logits with the mask's own among them, as the second stage reads them."""
        return F.linear(h, self.weight, self.bias)

    def forward(self, h: Tensor) -> Tensor:
        return widened(self.raw(h)).index_fill(-1, torch.tensor([self.mask_id], device=h.device), -math.inf)


def widened(x: Tensor) -> Tensor:
    """At least float32: short types are for matrix products, not for probabilities."""
    return x if x.dtype == torch.float64 else x.float()


def sigma_at(t: Tensor | None, eps: float = 1e-3) -> Tensor | None:
    """-log alpha_t of the log-linear schedule: what timed networks are told."""
    return None if t is None else -torch.log1p(-(1 - eps) * t)


class LanguageModel(nn.Module, ABC):
    """Tokens [B, L] -> features [B, L, D] -> logits [N, V] at the N positions that asked."""

    vocabulary: Vocabulary
    causal: bool = False
    timed: bool = False  # told the time of each row, which must then keep to itself
    # Models whose logits are one linear map show it here, so that losses can be taken without storing logits.
    head: Head | None
    anchor_head: Head | None

    def __init__(self) -> None:
        super().__init__()
        self.head = self.anchor_head = None

    def features(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> Features:
        """Hidden states at every position.

        Args:
            tokens: x_t [B, L].
            t: [B], for time-conditioned models.
            segments: [B, L] numbers; positions see each other where they are equal (`Batch.segments`): padding and
                other documents do not touch a text.
            wanted: [B, L] bool; with it `final` is [N, D], at these positions alone, and cheaper.
        """
        plan = plan_for(segments) if segments is not None and not self.timed else None
        if plan is None:
            return self._features(tokens, t, segments, wanted)
        packed_wanted = None if wanted is None else moved(plan, wanted, False)
        packed = self._features(moved(plan, tokens, self.vocabulary.mask_id), None, plan.segments, packed_wanted)
        return put_back(plan, packed, wanted, tokens.shape)

    @abstractmethod
    def _features(self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, wanted: Tensor | None) -> Features:
        """As `features`, on the rows as they are."""

    def cache(self, rows: int, length: int, t: Tensor | None = None) -> Cache:
        """For `extend`, with room for rows of so many tokens. Of left-to-right models.

        Args:
            t: [B], for time-conditioned models.
        """
        if not self.causal:
            raise ConfigError(
                f"asked a {type(self).__name__} that sees both sides for a cache",
                "what it makes of a token changes with those to the right",
                "use features, or a model with causal stacks",
            )
        return Cache(rows, length, t)

    @torch.no_grad()
    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
        """Read the tokens that follow what the cache has read, and predict the one after them.

        Args:
            tokens: [B, n]. A first call may bring none: then the first token is predicted.
            every: `final` is [B, n, D], of all positions that are new, instead of [B, D]; a first call has one more,
                since nothing had predicted its first token yet. Together they are `features` of the whole rows.
        """
        inputs = tokens if cache.length else F.pad(tokens, (1, 0), value=self.vocabulary.mask_id)
        cache.check(inputs)
        new = inputs.shape[1]
        wanted = None
        if new > 1 and not every:
            wanted = (torch.arange(new, device=inputs.device) == new - 1).expand_as(inputs)
        features = self._extended(inputs, cache, wanted)
        cache.length += new
        return features if every else features._replace(final=features.final.flatten(1))

    def _extended(self, inputs: Tensor, cache: Cache, wanted: Tensor | None) -> Features:
        """As `_features`, of new positions that read `inputs` [B, n] as they are."""
        raise ConfigError(
            f"asked {type(self).__name__} to read on", "it keeps nothing of what it has read", "use features"
        )

    @abstractmethod
    def logits(self, final: Tensor) -> Tensor:
        """[N, D] -> [N, V] in float32 at least, the mask at -inf."""

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        """[N, D] -> [N, V] of the anchor stage, the mask's own logit among them, as the official loss reads them."""
        raise ConfigError(f"asked {type(self).__name__} for anchor logits", "it has one stage", "use a two-stage model")

    def frozen(self) -> AbstractContextManager[None]:
        """`with model.frozen():` weights do not change inside, so what can be computed from them once, is."""
        return frozen(self)

    def checkpoint_activations(self, on: bool = True) -> None:
        """Store one activation a block in training and compute the rest again: less memory, a third more work."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = on

    def use_int8(self, on: bool = True) -> None:
        """Sample and score with the blocks' weights in 8 bits, on a CPU: quicker, and not exact.

        Training and the heads stay as they are; stacks that are told the time keep some of their products whole.
        """
        for block in self._blocks():
            if on:
                check_supported(block.norm_1.weight.device)
            block.int8 = on

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """torch.compile each block: they share one shape, so that is one compilation for a stack of any depth."""
        for block in self._blocks():
            block.compile(*args, **kwargs)

    def _blocks(self) -> Iterator[Block]:
        return (module for module in self.modules() if isinstance(module, Block))


def shifted(tokens: Tensor, start: int, segments: Tensor | None = None) -> Tensor:
    """[start, x_0, ..., x_{L-2}]: what a left-to-right model may see at each position; every segment starts anew."""
    before = F.pad(tokens[:, :-1], (1, 0), value=start).to(torch.long)
    return before if segments is None else before.masked_fill(starts_of(segments), start)
