"""What a text costs under a model, position by position: exact for left-to-right models, else estimates of the bound.

The estimator is the objective: `Nelbo(CountMasking())` draws how many tokens are masked, `Nelbo(UniformMasking())`
draws the time, SEDD and D3PM have bounds of their own. Levels are stratified: one in each of `draws` equal parts.
"""

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.models.two_copies import block_numbers
from adlm.objectives.linear_cross_entropy import nll
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.types import Batch, Estimate

MOST_ENUMERATED = 14


def clean_objective(model: LanguageModel) -> Objective:
    """The exact likelihood of left-to-right models; of others the bound, by the estimator with the least variance."""
    if model.attention == "block":
        return Nelbo(BlockMasking((model.block_size,)))
    return CrossEntropy() if model.causal else Nelbo(CountMasking())


def position_nats(
    model: LanguageModel, batch: Batch, *, draws: int, noise: Noise, objective: Objective | None = None
) -> Tensor:
    """Nats [B, L] whose sum over a row is an unbiased estimate of its bound, from `draws` levels per row."""
    objective = objective or clean_objective(model)
    if draws < 1:
        raise OutOfRange("draws", draws, "at least 1")
    with model.inference_weights():
        if objective.exact:
            return objective.nats(model, batch, torch.zeros(len(batch.tokens)), noise)
        offset = noise.fork("offset").uniform(batch.sample_id, 1)[:, 0]
        total = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        for i in range(draws):
            total += objective.nats(model, batch, (offset + i) / draws, noise.fork(i))
        return total / draws


def mean_of(values: Tensor, draws: int) -> Estimate:
    """The mean of independent values [N] and its standard error."""
    values = values.double()
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Estimate(values.mean().item(), error, draws)


def enumerated_nats(model: LanguageModel, batch: Batch) -> Tensor:
    """The exact bound of each position, [B, L], from all 2^n - 1 ways to mask n scored tokens: for small n.

    The any-order bound: every count k from 1 to n is equally likely, every set of k too, and -log p at its positions
    weighs 1 / k. Of block diffusion the same in every block, given those before it. For models without time
    conditioning.
    """
    length, segments = batch.tokens.shape[1], batch.segments
    size = model.block_size or length
    blocks = block_numbers(length, size, segments, batch.tokens.device).expand(len(batch.tokens), -1)
    most = int(torch.zeros_like(blocks).scatter_add_(1, blocks, batch.scored.long()).max())
    if most > MOST_ENUMERATED:
        raise ConfigError(
            f"the exact bound of {most} tokens per row takes {2**most - 1:,} passes for each",
            fix=f"score at most {MOST_ENUMERATED} tokens, or estimate it",
            subject="tokens",
        )
    out = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.tokens.device)
    with model.inference_weights():
        for row, block in _each_block(batch.scored, blocks):
            n = len(block)
            for masked in _subsets(block, length):
                clean = batch.tokens[row].expand_as(masked)
                x_t = clean.masked_fill(masked, model.vocabulary.mask_id)
                here = None if segments is None else segments[row].expand_as(x_t)
                hidden = model.features(x_t, segments=here, output_mask=masked, clean=clean).final
                each = nll(model.logits, model.vocabulary.size, hidden, clean[masked]).double()
                k = masked.sum(-1, keepdim=True)
                sets = torch.tensor([math.comb(n, int(count)) for count in k], device=k.device)[:, None]
                out[row] += (torch.zeros(masked.shape).to(out).masked_scatter(masked, each) / (k * sets)).sum(0)
    return out


def _each_block(scored: Tensor, blocks: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The row of every block that has scored positions [B, L], and these positions."""
    for row, numbers in enumerate(blocks):
        for number in numbers[scored[row]].unique().tolist():
            yield row, (scored[row] & (numbers == number)).nonzero()[:, 0]


def _subsets(positions: Tensor, length: int, most: int = 256) -> Iterator[Tensor]:
    """Every non-empty set of the positions, as rows of bools [<= most, length]."""
    everything = (set_ for k in range(1, len(positions) + 1) for set_ in combinations(positions.tolist(), k))
    rows: list[Tensor] = []
    for chosen in everything:
        row = torch.zeros(length, dtype=torch.bool, device=positions.device)
        row[list(chosen)] = True
        rows.append(row)
        if len(rows) == most:
            yield torch.stack(rows)
            rows = []
    if rows:
        yield torch.stack(rows)
