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
from adlm.models.derived import inference_weights
from adlm.models.fed import at_columns, check_span, read_in_passes
from adlm.models.int8 import check_supported
from adlm.models.layers import Block, positions_in, starts_of
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
    """Tokens [B, L] -> [B, L, D], with a learned vector for each of the first `positions` positions if there are any.

    Rotary positions tell distances only. Where rows begin with their document, a fully masked row looks the same
    everywhere to a masked model, and positions are what it can know; in packed rows they mean nothing.

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

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.placed(self.tokens(tokens), segments)

    def placed(self, x: Tensor, segments: Tensor | None = None, start: int = 0) -> Tensor:
        """Vectors [B, L, D] with those of their positions added.

        Args:
            segments: [B, start + L].
            start: number of the first position, where rows are read in parts.
        """
        if self.positions is None:
            return x
        end = start + x.shape[1]
        if end > len(self.positions):
            raise ConfigError(
                f"asked to read rows of {end} tokens",
                f"the model has learned {len(self.positions)} positions",
                "use shorter rows, or a model with positions=0",
            )
        return x + (
            self.positions[start:end] if segments is None else self.positions[positions_in(segments)[:, start:]]
        )


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
    stages: int = 1  # 2: an anchor stage and a denoiser
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
        output_mask: Tensor | None = None,
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
            return self._features(tokens, t, segments, output_mask)
        packed_wanted = None if output_mask is None else moved(plan, output_mask, False)
        packed = self._features(moved(plan, tokens, self.vocabulary.mask_id), None, plan.segments, packed_wanted)
        return put_back(plan, packed, output_mask, tokens.shape)

    @abstractmethod
    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        """As `features`, on the rows as they are."""

    def fed_features(
        self,
        tokens: Tensor,
        first: int,
        count: int,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Features:
        """As `features`, but tokens first .. first + count - 1 of each row are read as thoughts (arXiv 2412.06769).

        In place of the embedding of token c, position c + 1 reads the final feature of position c: what the model had
        to say there, whole, instead of one token drawn from it. Each position is computed once, with gradients through
        all that it has read: those before the thoughts in one pass, thoughts one by one, the rest in one pass. These
        passes store their activations, whatever `checkpoint_activations` says. Of left-to-right models.

        Args:
            first: the same column in every row; texts of different lengths are padded on the left.
            t, segments, wanted: as in `features`.
        """
        check_span(tokens, first, count)
        self._check_causal("to be fed its own features")
        if count == 0:
            return self.features(tokens, t, segments=segments, output_mask=output_mask)
        cache = Cache(len(tokens), tokens.shape[1], t, segments)
        inputs = shifted(tokens, self.vocabulary.mask_id, segments)
        fed = range(first + 1, first + count + 1)
        # No weight changes between the passes, so what is derived from them is made once, with gradients of its own.
        with_gradients = torch.is_grad_enabled()
        with self.inference_weights(), torch.set_grad_enabled(with_gradients):
            return read_in_passes(self._extended, self._vectors(inputs), fed, cache, output_mask)

    def cache(self, rows: int, length: int, t: Tensor | None = None, *, segments: Tensor | None = None) -> Cache:
        """For `extend`, with room for rows of so many tokens. Of left-to-right models.

        Args:
            t: [B], for time-conditioned models.
            segments: [B, n] of the first n tokens, where these are texts of different lengths, padded on the left.
        """
        self._check_causal("for a cache")
        if segments is not None and (len(segments) != rows or not bool((segments[:, -1:] >= 0).all())):
            raise ConfigError(
                f"asked for a cache of {rows} rows that begin with texts of different lengths",
                f"segments for {len(segments)} rows, of which {int((segments[:, -1:] < 0).sum())} end in padding",
                "give those of each row, padded on the left, so that all texts can go on",
            )
        return Cache(rows, length, t, segments)

    def _check_causal(self, purpose: str) -> None:
        if not self.causal:
            raise ConfigError(
                f"asked a {type(self).__name__} that sees both sides {purpose}",
                "what it makes of a token changes with those to the right",
                "use features, or a model with causal stacks",
            )

    @torch.no_grad()
    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
        """Read the tokens that follow what the cache has read, and predict the one after them.

        Args:
            tokens: [B, n]. A first call may bring none: then the first token is predicted.
            every: `final` is [B, n, D], of all positions that are new, instead of [B, D]; a first call has one more,
                since nothing had predicted its first token yet. Together they are `features` of the whole rows.
        """
        inputs = self._inputs(tokens, cache)
        new = inputs.shape[1]
        output_mask = None
        if new > 1 and not every:
            output_mask = (torch.arange(new, device=inputs.device) == new - 1).expand_as(inputs)
        features = self._extended(self._vectors(inputs), cache, output_mask)
        cache.length += new
        return features if every else features._replace(final=features.final.flatten(1))

    @torch.no_grad()
    def read_fed(self, tokens: Tensor, first: int, count: int, cache: Cache) -> Features:
        """A first `extend` in which tokens first .. first + count - 1 are thoughts, as in `fed_features`.

        Gives `final` [B, count + 1, D]: having read each thought, and having read everything, which predicts the token
        to come.
        """
        check_span(tokens, first, count)
        if cache.length:
            raise ConfigError("asked to feed thoughts", "the cache has read something", "make a new cache")
        inputs = self._inputs(tokens, cache)
        fed = range(first + 1, first + count + 1)
        output_mask = at_columns(inputs, [*fed, -1])
        features = read_in_passes(self._extended, self._vectors(inputs), fed, cache, output_mask)
        final = features.final.unflatten(0, (len(tokens), -1))
        # Where nothing follows the thoughts, the last of them is the end too.
        return features._replace(final=torch.cat([final[:, :count], final[:, -1:]], 1))

    def _inputs(self, tokens: Tensor, cache: Cache) -> Tensor:
        """What the next positions read: these tokens, the mask where a row or a segment begins."""
        inputs = tokens if cache.length else F.pad(tokens, (1, 0), value=self.vocabulary.mask_id)
        cache.check(inputs)
        segments = cache.segments_after(inputs.shape[1])
        if segments is None:
            return inputs
        return inputs.masked_fill(starts_of(segments)[:, cache.length :], self.vocabulary.mask_id)

    def _vectors(self, inputs: Tensor) -> Tensor:
        """[B, n] -> [B, n, D]: tokens as `_extended` reads them."""
        raise self._keeps_nothing()

    def _extended(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        """As `_features`, of new positions that read `vectors` [B, n, D] as they are."""
        raise self._keeps_nothing()

    def _keeps_nothing(self) -> ConfigError:
        return ConfigError(
            f"asked {type(self).__name__} to read on", "it keeps nothing of what it has read", "use features"
        )

    @abstractmethod
    def logits(self, final: Tensor) -> Tensor:
        """[N, D] -> [N, V] in float32 at least, the mask at -inf."""

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        """[N, D] -> [N, V] of the anchor stage, the mask's own logit among them, as the official loss reads them."""
        raise ConfigError(f"asked {type(self).__name__} for anchor logits", "it has one stage", "use a two-stage model")

    def inference_weights(self) -> AbstractContextManager[None]:
        """`with model.inference_weights():` weights do not change inside, so what can be computed from them once,
        is."""
        return inference_weights(self)

    def checkpoint_activations(self, on: bool = True) -> None:
        """Store one activation per block in training and compute the rest again: less memory, a third more work."""
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
