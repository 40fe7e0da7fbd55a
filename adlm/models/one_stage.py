"""Models with one stack: AR (left to right), block diffusion (BD3-LM, arXiv 2503.09573), MDLM (arXiv 2406.07524).

They are the baselines of the two-stage ones.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from adlm.models.block_pass import BlockSites
from adlm.models.cache import Cache
from adlm.models.embedding import Embedding, Head
from adlm.models.language_model import LanguageModel
from adlm.models.layers import shift_right, sigma_at
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.stack import StackConfig
from adlm.types import Features


@dataclass(frozen=True)
class OneStageConfig(NetworkConfig):
    """A network with an embedding, one stack and a head.

    With a causal stack it is an autoregressive model, with block-causal attention a block diffusion model, otherwise
    a masked diffusion model.

    Args:
        tied: the head is the embedding.
        positions: number of positions with a learned vector; with 0, as published, there are rotary positions only.
        block_size: tokens per block, for block-causal attention; others can be chosen for each pass.
        shift: position l reads token l - 1, as causal networks always do, so that their weights fit.
        start: the token that a shifted row begins with reading; by default the mask. Models of other families begin
            with a token of their own, which is then not part of the row.
    """

    stack: StackConfig = field(default_factory=StackConfig)
    tied: bool = False
    positions: int = 0
    block_size: int = 0
    shift: bool = False
    start: int | None = None

    def __post_init__(self) -> None:
        self.check_blocks()

    @property
    def stacks(self) -> tuple[StackConfig, ...]:
        return (self.stack,)

    @property
    def learned_positions(self) -> int:
        return self.positions

    def build(self, vocabulary: Vocabulary) -> "OneStage":
        return OneStage(self, vocabulary)

    def _with_stacks(self, *stacks: StackConfig, **changes: Any) -> NetworkConfig:
        return replace(self, stack=stacks[0], **changes)


class OneStage(LanguageModel):
    """The network of a `OneStageConfig`."""

    config: OneStageConfig
    head: Head

    def __init__(self, config: OneStageConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.embedding = Embedding(vocabulary, config.width, config.positions, tied=config.tied)
        self.stack = config.stack.build()
        self.head = Head(vocabulary, config.width, tied_to=self.embedding if config.tied else None)

    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        if self.shifted:
            tokens = shift_right(tokens, self.start_id, segments)
        return Features(self.stack(self.embedding(tokens, segments), sigma_at(t), segments, output_mask)[1])

    def _read_sites(self, sites: BlockSites, output_mask: Tensor) -> Features:
        embedded = self.embedding.at(sites.inputs, sites.positions)
        return Features(self.stack(embedded, None, None, output_mask, sites.cache, sites.layout(self.stack))[1])

    def embed_inputs(self, inputs: Tensor) -> Tensor:
        return self.embedding.tokens(inputs)

    def extend_vectors(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        embedded = self.embedding.add_positions(vectors, cache.segments_after(vectors.shape[1]), cache.length)
        return Features(self.stack(embedded, sigma_at(cache.t), output_mask=output_mask, cache=cache)[1])

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)
