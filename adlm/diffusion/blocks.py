"""The forward process of block diffusion (BD3-LM, arXiv 2503.09573): each block has a noise level of its own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.diffusion.corruption import Corruption
from adlm.diffusion.holes import in_holes
from adlm.errors import ConfigError, OutOfRange
from adlm.models.layers import starts_of
from adlm.models.two_copies import block_numbers
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted


@dataclass(frozen=True)
class BlockMasking(Corruption):
    """Masking per block: draw k uniformly from 1..n of a block's n scored tokens, mask a random k, weight n / k.

    With a model that sees earlier blocks clean, this is the bound of the likelihood block by block: with blocks of one
    token the left-to-right likelihood itself, with one block the bound of `CountMasking`. The levels of a row's blocks
    are stratified: one in each of as many equal parts, in random order.

    Where a text ends within a block, the padding up to the end of the block is predicted too, since nothing tells a
    model that writes a block where the text will end. What that costs is part of the bound.

    Args:
        sizes: tokens per block; 0 is the whole row. Several sizes are drawn per row, each as often as it is listed, so
            that one network learns to read all of them.
        progressive: take several sizes one after another, each for the same part of the run, instead of drawing them.
        together: consecutive rows of the run that draw one size. With a micro-batch of as many rows, all of its rows
            have the same, so that blocks of 1 and whole rows are read in one copy instead of two.
        holes: the fraction of whole rows in which only tokens in holes are masked (`in_holes`): the bound of the holes
            given the rest of the text, which is what infilling needs. The loss is then no bound of the text.
    """

    sizes: tuple[int, ...] = (16,)
    progressive: bool = False
    together: int = 1
    holes: float = 0.0

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ConfigError("BlockMasking needs at least one block size", subject="sizes")
        if min(self.sizes) < 0:
            raise OutOfRange("sizes", min(self.sizes), "at least 1, or 0 for whole rows")
        if self.together < 1:
            raise OutOfRange("together", self.together, "at least 1")
        if not 0 <= self.holes <= 1:
            raise OutOfRange("holes", self.holes, "from 0 to 1")
        if self.holes and 0 not in self.sizes:
            raise ConfigError("holes are cut into whole rows: put 0 among the sizes", subject="holes")
        if not self.times.uniform:
            raise ConfigError(
                "the levels of blocks are spread evenly: BlockMasking needs uniform times", subject="times"
            )

    @property
    def bounds(self) -> bool:
        return not self.holes

    def __call__(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        level = self.times.levels(batch.sample_id, noise.fork("time"))
        return self._at(level, self._sizes(batch, noise, progress), batch, mask_id, noise)

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        """Mask k = floor(level * n) + 1 tokens in the first of a row's blocks, in random order, and so on."""
        return self._at(level, self._sizes(batch, noise, 1.0), batch, mask_id, noise)

    def _sizes(self, batch: Batch, noise: Noise, progress: float) -> int | Tensor:
        """Block size of all rows, or of each [B]."""
        whole = batch.tokens.shape[1]
        sizes = [size or whole for size in self.sizes]
        if self.progressive:
            return sizes[min(int(progress * len(sizes)), len(sizes) - 1)]
        if len(set(sizes)) == 1:
            return sizes[0]
        u = noise.fork("size").uniform(batch.sample_id // self.together, 1)[:, 0]
        drawn = [sizes[int(each)] for each in (u * len(sizes)).tolist()]
        return drawn[0] if len(set(drawn)) == 1 else torch.tensor(drawn, device=batch.tokens.device)

    def everything(self, batch: Batch, mask_id: int) -> Corrupted:
        corrupted, scored, _ = self._unmasked(self._sizes(batch, Noise(0), 1.0), batch)
        x_t = batch.tokens.masked_fill(scored, mask_id)
        return corrupted._replace(x_t=x_t, masked=scored, t=torch.ones_like(corrupted.t))

    def _unmasked(self, size: int | Tensor, batch: Batch) -> tuple[Corrupted, Tensor, int]:
        """The batch in blocks, nothing masked; what is scored [B, L], with padding that blocks predict; most blocks."""
        tokens, scored, segments = batch.tokens, batch.scored, None
        rows, length = tokens.shape
        if batch.documents is not None:
            raise ConfigError(
                "documents that share a row cannot be read in blocks: where one ends would show in its last block",
                fix="use rows that hold one document each, or Wrapped rows in which documents see each other",
                subject="packing",
            )
        blocks = block_numbers(length, size, None, tokens.device).expand(rows, -1)
        count = length if isinstance(size, Tensor) else -(-length // size)
        if batch.padded:
            texts = torch.zeros(rows, count, device=tokens.device).scatter_add_(1, blocks, batch.valid.float()) > 0
            # Whole rows are read only where the length of the text is known.
            filled = batch.valid | (texts.gather(1, blocks) & (blocks[:, -1:] > 0))
            scored, segments = scored | (filled & ~batch.valid), filled.long() - 1
        uniform = size if isinstance(size, int) else None
        ones, nothing = torch.ones(rows, 1, device=tokens.device), torch.zeros_like(scored)
        corrupted = Corrupted(
            tokens, tokens, ones[:, 0] - 1, nothing, ones, blocks=blocks, block_size=uniform, segments=segments
        )
        return corrupted, scored, count

    def _at(self, level: Tensor, size: int | Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        corrupted, scored, count = self._unmasked(size, batch)
        assert corrupted.blocks is not None
        tokens, blocks = batch.tokens, corrupted.blocks
        rows, length = tokens.shape
        if self.holes:
            chosen = noise.fork("chosen").uniform(batch.sample_id, 1).to(tokens.device) < self.holes
            holes = in_holes(scored, batch.sample_id, noise)
            scored = torch.where(chosen & (blocks[:, -1:] == 0), holes, scored)
        n = torch.zeros(rows, count, dtype=torch.long, device=tokens.device).scatter_add_(1, blocks, scored.long())
        k = (self._levels(level, blocks[:, -1:] + 1, count, batch, noise) * n).long().minimum(n - 1) + 1
        # Ranks of random numbers within each block, unscored positions last.
        u = noise.fork("mask").uniform(batch.sample_id, length).masked_fill(~scored, 1.0)
        order = (blocks + u / 2).argsort(-1).argsort(-1)
        columns = torch.arange(length, device=tokens.device)
        first = (columns * starts_of(blocks)).cummax(-1).values
        masked = (order - first < k.gather(1, blocks)) & scored
        weight = (n / k.clamp_min(1)).float().gather(1, blocks)
        x_t = tokens.masked_fill(masked, mask_id)
        return corrupted._replace(x_t=x_t, t=level.float(), masked=masked, weight=weight)

    def _levels(self, level: Tensor, blocks: Tensor, count: int, batch: Batch, noise: Noise) -> Tensor:
        """[B, count]: the level of each block, spread evenly from `level` [B] on over each row's `blocks` [B, 1]."""
        device = blocks.device
        u = noise.fork("block").uniform(batch.sample_id, count).to(device)
        u = u.masked_fill(torch.arange(count, device=device) >= blocks, 2.0)
        return (level.to(device)[:, None] + u.argsort(-1).argsort(-1) / blocks) % 1.0
