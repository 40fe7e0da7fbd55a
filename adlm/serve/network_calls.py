"""What requests ask a network to compute, and how several of them are computed at once.

Rows of different lengths stand in one batch under segments, which keep padding from touching a text; if much would be
padding, `LanguageModel.features` packs the texts side by side. Causal networks read the next token of all rows in one
pass (`batched_cache.py`), those that read blocks the current blocks of all rows (`block_pool.py`), and a prompt by
itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.models.cache import Cache
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import BlockFeatures, LanguageModel
from adlm.samplers.state import SLICE
from adlm.serve.batched_cache import CachedReading, read_together
from adlm.serve.block_pool import BlockReading, PooledBlocks, read_blocks_together
from adlm.types import Features

MOST_POSITIONS = 1 << 15  # in one pass
Kind = Literal["features", "anchor_stage", "denoise"]


class NetworkCall(ABC):
    """Something to compute for one request, together with other calls of its group."""

    @property
    def group(self) -> Hashable | None:
        """Calls of one group are computed together; None: always by itself."""
        return None

    @property
    def rows(self) -> int:
        """Rows that go through the network."""
        return 0

    @property
    def load(self) -> float:
        """The part of the largest allowed pass that it takes."""
        return 0.0

    @abstractmethod
    def compute(self, network: LanguageModel, calls: Sequence[Any]) -> Sequence[Any]:
        """The results of all calls of one group."""


class NetworkInput(NamedTuple):
    """What a pass reads: tokens [B, L], times [B], segments [B, L], output_mask [B, L], an anchor stage."""

    tokens: Tensor
    t: Tensor | None = None
    segments: Tensor | None = None
    output_mask: Tensor | None = None
    stage: AnchorState | None = None


@dataclass(frozen=True, eq=False)
class Pass(NetworkCall):
    """A pass over rows. Gives its result, and the logits of its final features if they are asked for and small."""

    kind: Kind
    input: NetworkInput
    with_logits: bool = False

    @property
    def group(self) -> Hashable:
        return self.kind

    @property
    def rows(self) -> int:
        return len(self.input.tokens)

    @property
    def load(self) -> float:
        return self.input.tokens.numel() / MOST_POSITIONS

    def compute(self, network: LanguageModel, calls: Sequence["Pass"]) -> Sequence[tuple[Any, Tensor | None]]:
        parts = [call.input for call in calls]
        if len(parts) == 1:
            results = [run_pass(network, self.kind, parts[0])]
        else:
            joined = join(parts, network.vocabulary.mask_id)
            results = split(parts, joined, run_pass(network, self.kind, joined))
        return _with_logits(network, calls, results)


@dataclass(frozen=True, eq=False)
class NextToken(NetworkCall):
    """A causal network reads one more token [B, 1] per row of a cache. Gives what `Pass` gives."""

    tokens: Tensor
    cache: Cache
    with_logits: bool = False

    @property
    def group(self) -> Hashable:
        return "next token"

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def load(self) -> float:
        return self.cache.rows * self.cache.length / MOST_POSITIONS  # they are attended to

    def compute(self, network: LanguageModel, calls: Sequence["NextToken"]) -> Sequence[tuple[Any, Tensor | None]]:
        readings = [CachedReading(call.tokens, call.cache) for call in calls]
        return _with_logits(network, calls, read_together(network, readings))


@dataclass(frozen=True, eq=False)
class LogitsCall(NetworkCall):
    """Logits [N, V] of features [N, D]."""

    features: Tensor
    vocabulary_size: int
    anchor: bool = False

    @property
    def group(self) -> Hashable:
        return ("logits", self.anchor)

    @property
    def load(self) -> float:
        return len(self.features) * self.vocabulary_size / (4 * SLICE)

    def compute(self, network: LanguageModel, calls: Sequence["LogitsCall"]) -> Sequence[Tensor]:
        return _logits(network.anchor_logits if self.anchor else network.logits, [call.features for call in calls])


@dataclass(frozen=True, eq=False)
class BlockPass(NetworkCall):
    """A network reads the current blocks of some rows. Gives what `Pass` gives.

    Passes that read finished positions as well are computed apart from those that do not, since a pass has as many
    sites in every row as the row with the most; and a prompt by itself.
    """

    reading: BlockReading
    size: int
    with_logits: bool = False

    @property
    def group(self) -> Hashable | None:
        own = self.reading
        if not isinstance(own.cache, PooledBlocks) or own.clean > 2 * self.size:
            return None
        return "block", id(own.cache.pool), own.clean > 0, own.left_to_right, own.stage is None

    @property
    def rows(self) -> int:
        return len(self.reading.tokens)

    @property
    def load(self) -> float:
        return self.rows * self.reading.tokens.shape[1] / MOST_POSITIONS  # they are attended to

    def compute(self, network: LanguageModel, calls: Sequence["BlockPass"]) -> Sequence[tuple[Any, Tensor | None]]:
        return _with_logits(network, calls, read_blocks_together(network, [call.reading for call in calls]))


@dataclass(frozen=True, eq=False)
class Alone(NetworkCall):
    """Anything that cannot share a pass."""

    run: Callable[[], Any]
    count: int

    @property
    def rows(self) -> int:
        return self.count

    def compute(self, network: LanguageModel, calls: Sequence["Alone"]) -> Sequence[Any]:
        return [call.run() for call in calls]


def _logits(head: Callable[[Tensor], Tensor], features: Sequence[Tensor]) -> Sequence[Tensor]:
    together = features[0] if len(features) == 1 else torch.cat(list(features))
    return head(together).split([len(each) for each in features])


def _with_logits(
    network: LanguageModel, calls: Sequence[Pass | NextToken | BlockPass], results: Sequence[Any]
) -> list[tuple[Any, Tensor | None]]:
    """The logits of all requests in one product, unless there would be too many."""
    finals = {
        i: result.final if isinstance(result, (Features, BlockFeatures)) else result
        for i, (call, result) in enumerate(zip(calls, results, strict=True))
        if call.with_logits
    }
    logits: dict[int, Tensor] = {}
    if finals and sum(map(len, finals.values())) * network.vocabulary.size <= SLICE:
        logits = dict(zip(finals, _logits(network.logits, list(finals.values())), strict=True))
    return [(result, logits.get(i)) for i, result in enumerate(results)]


def run_pass(network: LanguageModel, kind: Kind, rows: NetworkInput) -> Any:
    """What a network gives for one input."""
    tokens, t, segments, output_mask, stage = rows
    if kind == "features":
        return network.features(tokens, t, segments=segments, output_mask=output_mask)
    if kind == "anchor_stage":
        return network.anchor_stage(tokens, t, segments=segments)
    assert stage is not None
    return network.denoise(stage, tokens, t, segments=segments, output_mask=output_mask)


def join(parts: Sequence[NetworkInput], mask_id: int) -> NetworkInput:
    """All rows in one batch, as long as the longest. Segments are left out if nothing needs them."""
    length = max(part.tokens.shape[1] for part in parts)

    def filled(values: Sequence[Tensor], fill: int | bool) -> Tensor:
        return torch.cat([F.pad(x, (0, length - x.shape[1]), value=fill) for x in values])

    plain = all(part.segments is None and part.tokens.shape[1] == length for part in parts)
    segments = [torch.zeros_like(p.tokens) if p.segments is None else p.segments.to(p.tokens.dtype) for p in parts]
    stages = [part.stage for part in parts if part.stage is not None]
    times = [part.t for part in parts if part.t is not None]
    every = all(part.output_mask is None for part in parts) and len({part.tokens.shape[1] for part in parts}) == 1
    return NetworkInput(
        filled([part.tokens for part in parts], mask_id),
        torch.cat(times) if times else None,
        None if plain else filled(segments, -1),
        None if every else filled([_output_mask(part) for part in parts], False),
        AnchorState(*(_stacked(each, length) for each in zip(*stages, strict=True))) if stages else None,
    )


def split(parts: Sequence[NetworkInput], joined: NetworkInput, result: Any) -> list[Any]:
    """Each part of what was computed for all."""
    found: list[Any] = []
    row = position = 0
    for part in parts:
        rows, length = part.tokens.shape
        own = slice(row, row + rows)
        span = slice(position, position + int(_output_mask(part).sum()))
        row, position = own.stop, span.stop

        def final(x: Tensor, own: slice = own, span: slice = span, part: NetworkInput = part) -> Tensor:
            chosen = x[own] if joined.output_mask is None else x[span]
            return chosen.view(*part.tokens.shape, -1) if part.output_mask is None else chosen

        if isinstance(result, Features):
            anchor = None if result.anchor is None else result.anchor[own, :length]
            found.append(Features(final(result.final), anchor))
        elif isinstance(result, AnchorState):
            found.append(AnchorState(*(state[own, :length] for state in result)))
        else:
            found.append(final(result))
    return found


def _output_mask(part: NetworkInput) -> Tensor:
    return torch.ones_like(part.tokens, dtype=torch.bool) if part.output_mask is None else part.output_mask


def _stacked(states: Sequence[Tensor], length: int) -> Tensor:
    """[B, L, D] each -> one, zeros at padding."""
    return torch.cat([F.pad(x, (0, 0, 0, length - x.shape[1])) for x in states])
