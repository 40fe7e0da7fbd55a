"""Draft a block by the diffusion reading of a network, verify it by its left-to-right reading (speculative sampling).

Shapes: B rows, L positions, N drafted positions, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.errors import ConfigError, OutOfRange
from adlm.samplers.block_reader import BlockReader
from adlm.samplers.draw import inverse_cdf
from adlm.samplers.filters import Sites
from adlm.samplers.network import Network
from adlm.samplers.sampler import Needs, Sampler
from adlm.samplers.state import Prediction, SamplerState, filtered, slice_size


@dataclass(frozen=True)
class DraftAndVerify(Sampler):
    """Writes exactly as left-to-right does, several tokens at a time: a block is drafted at once, then verified.

    One pass reads the block with its blanks and drafts x_l ~ q_l at all of them. A second one reads it from left to
    right, which gives p_l: x_l is kept with probability min(1, p_l(x_l) / q_l(x_l)); the first that is not is drawn
    anew from (p_l - q_l)+, normalized, and what follows it is blank again (arXiv 2211.17192). So texts follow the
    distribution of the left-to-right reading, filters included. A shifted model reads finished tokens causally,
    whatever block they were written in: so both readings share one cache, and the next draft begins at the first blank,
    wherever that is.

    Args:
        block_size: tokens per draft, at most; by default the model's own.
    """

    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 2:
            raise OutOfRange("block_size", self.block_size, "at least 2")

    @property
    def needs(self) -> Needs:
        return "shifted blocks"

    def suited(self, network: Network) -> tuple[Sampler, Network]:
        if self.block_size is None or network.attention != "block":
            return self, network
        return self, network.in_blocks(self.block_size)

    def setup(self, state: SamplerState) -> None:
        if state.network.attention != "block" or not state.network.shifted:
            raise ConfigError(
                "DraftAndVerify needs a shifted model that reads blocks and left to right",
                fix="use a model that `adlm adapt` made, or another sampler",
                subject="DraftAndVerify",
            )
        if state.canvas.constraints:
            raise ConfigError("DraftAndVerify takes no constraints", fix="use left-to-right", subject="constraints")
        super().setup(state)
        state.whole = False

    def fill(self, state: SamplerState) -> None:
        network, size = state.network, state.network.block_size
        reader = BlockReader(network, state.tokens, 1)
        positions = torch.arange(state.tokens.shape[1], device=state.tokens.device)
        attempts = np.zeros(len(state.tokens), np.int64)  # of each row, which its random numbers are named by
        while bool((blank := state.blank).any()):
            start = blank.long().argmax(-1)
            begin = start[:, None]
            where = blank & (positions >= begin) & (positions < begin + size)
            reader.move(start)
            draft = self._draft(state, reader.features(where), where, attempts)
            at = where.nonzero(as_tuple=True)
            state.tokens[at] = draft.tokens
            verified = reader.features(where, left_to_right=True)
            fresh, first = self._verify(state, verified, where, draft, attempts)
            # What was computed up to the first rejected token was computed from final tokens.
            end = torch.where(first.any(-1), first.long().argmax(-1) + 1, start + size)
            reader.keep(end, where.any(-1))
            attempts += where.any(-1).cpu().numpy()
            state.show(state.end_rows(fresh), passes=2)
        state.count(reader)

    def _draft(self, state: SamplerState, final: Tensor, where: Tensor, attempts: NDArray[np.int64]) -> "_Draft":
        """Draw at every blank of the blocks independently."""
        u = state.uniform("draft", attempts)[where]
        distributions = _Distributions(state, final, where)
        tokens, log_probability = torch.empty_like(distributions.row), torch.empty_like(u)
        for part, distribution in distributions:
            tokens[part] = inverse_cdf(distribution.logits, u[part])
            log_probability[part] = distribution.log_probability(tokens[part]).to(u.dtype)
        return _Draft(distributions, tokens, log_probability)

    def _verify(
        self, state: SamplerState, final: Tensor, where: Tensor, draft: "_Draft", attempts: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Keep what is accepted, draw the first that is not anew, and blank the rest.

        Returns [B, L] bool of what is kept, and of the first rejected token of each row.
        """
        u = state.uniform("accept", attempts)[where]
        log_p = torch.empty_like(draft.log_probability)
        distributions = _Distributions(state, final, where)
        for part, distribution in distributions:
            log_p[part] = distribution.log_probability(draft.tokens[part]).to(log_p.dtype)
            distribution.report(state, draft.tokens[part])
        rejected = torch.zeros_like(where)
        rejected[distributions.row, distributions.position] = u.log() > log_p - draft.log_probability
        counted = rejected.long().cumsum(-1)
        first = rejected & (counted == 1)
        behind = (counted > 0) & ~first & where
        state.confidence[distributions.row, distributions.position] = log_p.exp().to(state.confidence.dtype)
        if bool(first.any()):
            again = first[where].nonzero()[:, 0]
            v = state.uniform("again", attempts)[first]
            tokens = torch.empty_like(again)
            for part in torch.arange(len(again), device=again.device).split(distributions.slice):
                p, q = distributions.at(again[part]), draft.distributions.at(again[part])
                tokens[part] = inverse_cdf(p.above(q).logits, v[part])
                p.report(state, tokens[part])
            state.tokens[first] = tokens
        state.remask(behind)
        return where & ~behind, first


class _Distributions:
    """What is drawn at the N positions `where` [B, L], from features [N, D], as filters leave it from left to right.

    Iterating gives slices of the positions and their distributions. A single slice is kept; several are computed again
    where they are asked for, from the tokens as they were.
    """

    def __init__(self, state: SamplerState, final: Tensor, where: Tensor) -> None:
        self.state, self.final = state, final
        self.row, self.position = where.nonzero(as_tuple=True)
        self.slice = slice_size(state.network.vocabulary.size)
        self._tokens = state.tokens.clone()
        self._kept: _Distribution | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, "_Distribution"]]:
        parts = torch.arange(len(self.row), device=self.row.device).split(self.slice)
        if len(parts) == 1:
            self._kept = self._distribution(parts[0], self.final)
            yield parts[0], self._kept
            return
        for part in parts:
            yield part, self._distribution(part, self.final[part])

    def at(self, index: Tensor) -> "_Distribution":
        """The distribution at some of the positions, by their numbers [n]."""
        return self._distribution(index, self.final[index]) if self._kept is None else self._kept.at(index)

    def _distribution(self, index: Tensor, final: Tensor) -> "_Distribution":
        state, row, position = self.state, self.row[index], self.position[index]
        mask_id = state.network.vocabulary.mask_id
        raw = state.network.logits(final)
        # Filters see what is left of a position, as if the rest were not written yet.
        seen, columns = self._tokens[row], torch.arange(self._tokens.shape[1], device=row.device)
        seen = seen.masked_fill(state.open[row] & (columns >= position[:, None]), mask_id)
        sites = Sites(seen, torch.arange(len(row), device=row.device), position)
        return _Distribution(
            Sites(state.tokens, row, position), raw, filtered(raw, sites, state.filters, mask_id=mask_id)
        )


class _Draft(NamedTuple):
    """The distributions that tokens [N] were drawn from, and the log-probability [N] of each."""

    distributions: _Distributions
    tokens: Tensor
    log_probability: Tensor


class _Distribution(NamedTuple):
    """Where tokens are drawn, and the logits [n, V] before and after the filters."""

    sites: Sites
    raw: Tensor
    logits: Tensor

    def log_probability(self, tokens: Tensor) -> Tensor:
        """[n] of one token each."""
        return self.logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]

    def report(self, state: SamplerState, tokens: Tensor) -> None:
        """Tell the distribution of tokens [n]: that of the text, whichever way they were drawn."""
        if state.on_draw is not None:
            state.on_draw(self.sites, Prediction(self.raw, self.logits, tokens, self.log_probability(tokens).exp()))

    def at(self, index: Tensor) -> "_Distribution":
        """At some of the sites, by their numbers."""
        tokens, row, position = self.sites
        return _Distribution(Sites(tokens, row[index], position[index]), self.raw[index], self.logits[index])

    def above(self, other: "_Distribution") -> "_Distribution":
        """(p - q)+, normalized; p where rounding leaves nothing of it."""
        p, q = (distribution.logits.double().softmax(-1) for distribution in (self, other))
        excess = (p - q).clamp_min(0)
        return self._replace(logits=torch.where(excess.sum(-1, keepdim=True) > 0, excess, p).log())
