"""Ways to choose masks that make masked models learn faster, as published. They are for training: validation and scores
mask at random (`CountMasking`) whatever a run was trained with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.diffusion.corruption import Corruption, CountMasking
from adlm.errors import OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted

_LOGITS = 1 << 24  # in memory at a time, at most


@dataclass(frozen=True)
class MirrorMasking(Corruption):
    """Every row is read twice, with opposite masks, which makes the loss of the pair vary less (MIRROR, arXiv
    2511.18159).

    With k drawn uniformly from 0..n, the first copy masks a random k of the n scored tokens and the second the other
    n - k: each token is predicted once. A copy with k masks weighs (n + 1) / 2k, so that the pair has the expectation
    of `CountMasking`: the bound. A step costs two for the same rows.

    Args:
        complement: False masks as many in the second copy as in the first, k from 1..n, those whose random numbers are
            largest instead of smallest, with weight n / 2k: what the paper's code does.
    """

    complement: bool = True

    @property
    def copies(self) -> int:
        return 2

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        """With k = floor(level * (n + 1)), or floor(level * n) + 1 without complement."""
        tokens, scored = batch.tokens, batch.scored
        n = scored.sum(-1)
        level = level.to(n.device)
        all_counts = n + 1 if self.complement else n
        k = (level * all_counts).long().minimum(all_counts - 1) + (0 if self.complement else 1)
        counts = torch.stack([k, n - k if self.complement else k])
        u = noise.fork("mask").uniform(batch.sample_id, tokens.shape[1])
        pair = torch.stack([u, 1 - u]).masked_fill(~scored, 2.0)
        order = pair.argsort(-1)
        masked = (order.argsort(-1) < counts[..., None]) & scored
        t = pair.gather(-1, order.gather(-1, (counts - 1).clamp_min(0)[..., None]))[..., 0].clamp_max(1)
        weight = all_counts / (2 * counts.clamp_min(1))
        x_0 = tokens.expand(2, -1, -1)
        x_t = x_0.masked_fill(masked, mask_id)
        return Corrupted(
            x_0.flatten(0, 1),
            x_t.flatten(0, 1),
            t.flatten().float(),
            masked.flatten(0, 1),
            weight.flatten()[:, None].float(),
        )


@dataclass(frozen=True)
class _SomeRows(CountMasking):
    """Count masking that chooses which tokens are masked in another way in some of the rows.

    Args:
        fraction: of rows.
    """

    fraction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise OutOfRange("fraction", self.fraction, "from 0 to 1")

    @property
    def bounds(self) -> bool:
        return self.fraction == 0

    def _chosen(self, batch: Batch, noise: Noise) -> Tensor:
        """[B] bool."""
        return noise.fork("chosen").uniform(batch.sample_id, 1)[:, 0] < self.fraction


@dataclass(frozen=True)
class LeftToRightMasking(_SomeRows):
    """Count masking, but some rows are masked as a text that is written from left to right: the last k tokens (AO-GPT,
    arXiv 2506.19935, with a tenth of the rows).

    Count and weight are those of `CountMasking`, and all masked tokens are predicted, where AO-GPT, which reads one
    token per position, predicts the next one. The loss is not a bound.
    """

    def _priorities(self, batch: Batch, noise: Noise) -> Tensor:
        """As they are, but in the chosen rows from the last token to the first."""
        u, scored = super()._priorities(batch, noise), batch.scored
        from_end = scored.sum(-1, keepdim=True) - scored.cumsum(-1)
        falling = u.sort(-1).values.gather(-1, from_end).masked_fill(~scored, 2.0)
        return torch.where(self._chosen(batch, noise)[:, None], falling, u)


@dataclass(frozen=True)
class ConfidenceMasking(_SomeRows):
    """Count masking, but in some rows the visible tokens are those that the model itself would reveal first (PUMA,
    arXiv 2602.10314).

    As many tokens are masked as in `CountMasking`. Of those that are not, the first 1 / (passes + 1) is drawn at
    random; the others are added in `passes` equal parts, each time where the model, given the true tokens so far, is
    most certain. PUMA keeps a row over many steps and takes the next mask from the pass that trained the last one.
    Here a step depends on its rows alone, and the chosen rows cost `passes` more forward passes. The loss is not a
    bound.
    """

    fraction: float = 0.5
    passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passes < 1:
            raise OutOfRange("passes", self.passes, "at least 1")

    @torch.no_grad()
    def revised(self, corrupted: Corrupted, batch: Batch, model: LanguageModel, noise: Noise) -> Corrupted:
        chosen = self._chosen(batch, noise).to(batch.tokens.device)
        rows = chosen.nonzero()[:, 0]
        if not len(rows):
            rows = rows.new_zeros(1)  # sharded models need all processes to take part in every pass
        part = batch.selected(rows)
        n, visible = part.scored.sum(-1, keepdim=True), (part.scored & ~corrupted.masked[rows]).sum(-1, keepdim=True)
        first = self._priorities(part, noise).argsort(-1).argsort(-1)
        masked = (first < n - visible // (self.passes + 1)) & part.scored
        for i in range(2, self.passes + 2):
            certainty = _certainty(model, part, masked, corrupted.t[rows]).masked_fill(~masked, 2.0)
            masked = (certainty.argsort(-1).argsort(-1) < n - i * visible // (self.passes + 1)) & masked
        everywhere = corrupted.masked.index_copy(0, rows, masked)
        everywhere = torch.where(chosen[:, None], everywhere, corrupted.masked)
        x_t = corrupted.x_0.masked_fill(everywhere, model.vocabulary.mask_id)
        return corrupted._replace(x_t=x_t, masked=everywhere)


def _certainty(model: LanguageModel, batch: Batch, masked: Tensor, t: Tensor) -> Tensor:
    """[B, L]: the largest probability at the masked positions, 0 elsewhere."""
    x_t = batch.tokens.masked_fill(masked, model.vocabulary.mask_id)
    # Weights that were cast without a graph must not be found by the pass that trains.
    device = x_t.device.type
    with torch.autocast(
        device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device), cache_enabled=False
    ):
        hidden = model.features(x_t, t, segments=batch.segments, output_mask=masked).final
        parts = hidden.split(max(1, _LOGITS // model.vocabulary.size))
        largest = torch.cat([model.logits(part).softmax(-1).amax(-1) for part in parts])
    return torch.zeros(masked.shape, dtype=largest.dtype, device=x_t.device).masked_scatter(masked, largest)
