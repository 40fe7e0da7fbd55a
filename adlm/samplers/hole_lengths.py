"""How long a hole should be, by what the model makes of the text around it.

With the hole masked for ever, -log p of the rest is the marginal likelihood of the context: every prediction of a
masked model already averages over whatever a mask may hide, so the sum over all fillings of the hole is never taken
and nothing is sampled. Tokens in the hole cost nothing, many or few; comparing finished texts instead, by their own
likelihood, would favor short holes, since each further token costs something. Where padding counts, it is part of
the context: a longer hole leaves less of it, as in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import position_nats
from adlm.objectives.nelbo import Nelbo
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted

_AT_A_TIME = 16


@dataclass(frozen=True)
class ContextMasking(CountMasking):
    """As `CountMasking`, with the random number of a scored token a matter of its rank among them, not of its place.

    So what stands to the right of a hole is masked alike whatever the hole's length, and most of the noise is gone
    from the differences.
    """

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        scored = batch.scored
        front = torch.arange(scored.shape[1], device=scored.device) < scored.sum(-1, keepdim=True)
        _, _, t, masked, weight, *_ = super().at(
            level, Batch(batch.tokens, front, batch.index, batch.sample_id), mask_id, noise
        )
        masked = masked.gather(-1, (scored.cumsum(-1) - 1).clamp_min(0)) & scored
        return Corrupted(batch.tokens, batch.tokens.masked_fill(masked, mask_id), t, masked, weight)


def context_nats(
    model: LanguageModel,
    rows: Sequence[Sequence[int]],
    counts: Sequence[Sequence[bool]],
    *,
    draws: int = 32,
    noise: Noise,
) -> Tensor:
    """The bound [N] of -log p(context) for each row, its masks kept; all rows are scored under the same noise.

    Args:
        rows: of any lengths, with the mask token in the holes.
        counts: which tokens of each are text; the others are padding that the model does not see.
        draws: mask counts for each row.
    """
    if model.causal:
        raise ConfigError(
            "a left-to-right model cannot choose the length of a hole",
            fix="give the length, as in [MASK:4], or use a masked model",
            subject="lengths",
        )
    longest, mask_id = max(map(len, rows)), model.vocabulary.mask_id
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    tokens = torch.full((len(rows), longest), mask_id)
    valid = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, (row, counted) in enumerate(zip(rows, counts, strict=True)):
        tokens[i, : len(row)], valid[i, : len(row)] = torch.tensor(row), torch.tensor(counted)
    seen = int(valid.any(0).nonzero().max()) + 1  # beyond, all rows have padding that the model does not see
    tokens, valid = tokens[:, :seen], valid[:, :seen]
    same = torch.zeros(len(rows), dtype=torch.long)
    batch = Batch(tokens, valid, torch.arange(len(rows)), same, frozen=tokens == mask_id)
    objective = Nelbo(ContextMasking())
    parts = [
        position_nats(model, part.to(device), draws=draws, noise=noise, objective=objective).double().sum(-1).cpu()
        for part in batch.split(_AT_A_TIME)
    ]
    return torch.cat(parts)
