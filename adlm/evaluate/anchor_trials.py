"""The denoiser's input with the anchors' prediction replaced at masked positions: by the truth, noise, or frequencies.

A trial has to stay among the inputs that the denoiser knows, or it only shows that strange inputs harm. So confidence,
scale and normalizer are the network's own. What that means depends on the hand-over:

- `Logits`, `Probabilities`: a distribution is handed over, and can be replaced by another. Truth: the position's own,
  with the true token and the likeliest swapped. Unigram: the fractions of tokens in the data, as logits with the row's
  mean normalizer and mean logit of the mask.
- All others hand over features. Truth: those of the anchor stage on the clean text. Unigram: the mean over masked
  positions of other rows at the same noise level. Noise and mean also lose what features tell about positions.

Noise is the same for all: every masked position gets the input of another masked position of its row.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from adlm.models.hand_over import AnchorState, Logits, Probabilities
from adlm.models.two_stage import TwoStage
from adlm.objectives.linear_cross_entropy import SLICE_LOGITS
from adlm.types import Batch

TRIALS = ("as it is", "truth", "noise", "unigram")


class Trials:
    """The trials of one model.

    Args:
        log_fraction: [V] of token types in the data, -inf at the mask.
        examples: residual stream and anchor features [N, D] at masked tokens, for the number of a noise level.
    """

    def __init__(self, model: TwoStage, log_fraction: Tensor, examples: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self.model, self.log_fraction, self.examples = model, log_fraction, examples
        self.kind = model.config.hand_over
        self.by_distribution = isinstance(self.kind, Logits | Probabilities)
        self._means: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def words(self) -> dict[str, str]:
        """A description of each trial, for the protocol."""
        if self.by_distribution:
            what = "logits" if isinstance(self.kind, Logits) else "probabilities"
            return {
                "truth": f"its own {what}, with the true token and the likeliest swapped",
                "noise": f"the {what} of another masked position of the row",
                "unigram": f"the fractions of tokens in the data, as {what} with the network's own normaliser",
            }
        return {
            "truth": "features of the anchor stage on the clean text",
            "noise": "the features of another masked position of the row",
            "unigram": "the mean features of masked positions at this noise level",
        }

    def hand_overs(
        self, level: int, stage: AnchorState, batch: Batch, masked: Tensor, t: Tensor | None, order: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """The denoiser's input [B, L, D] under each trial.

        Args:
            level: number of the noise level.
            order: [B, L] random numbers, for the noise.
        """
        yield TRIALS[0], self._input(stage)
        yield "noise", self._input(_moved(stage, masked, order))
        if self.by_distribution:
            yield from self._distributions(stage, batch.tokens[masked], masked)
            return
        clean = self.model.anchor_stage(batch.tokens, t, segments=batch.segments)
        yield "truth", self._input(_exchanged(stage, masked, clean.residual, clean.anchor))
        if level not in self._means:
            residual, anchor = self.examples(level)
            self._means[level] = residual.mean(0), anchor.mean(0)
        yield "unigram", self._input(_exchanged(stage, masked, *self._means[level]))

    def _input(self, stage: AnchorState) -> Tensor:
        handed: Tensor = self.model.hand_over(stage, self.model.anchor_head)
        return handed

    def _distributions(self, stage: AnchorState, tokens: Tensor, masked: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Both handed-over kinds are v M + b with v [V] the logits or probabilities of a position."""
        handed, row = self._input(stage), masked.nonzero()[:, 0]
        hidden, head, mask_id = stage.anchor[masked], self.model.anchor_head, self.model.vocabulary.mask_id
        best, largest, normaliser, of_mask = self._read(hidden)
        is_logits = isinstance(self.kind, Logits)
        module: Any = self.model.hand_over
        matrix: Tensor = module.project.weight.mT if is_logits else module.table
        of_token = (hidden * head.weight[tokens]).sum(-1) + head.bias[tokens]
        gain = largest - of_token if is_logits else (largest - normaliser).exp() - (of_token - normaliser).exp()
        told = handed[masked] + gain[:, None] * (matrix[tokens] - matrix[best])
        yield "truth", handed.masked_scatter(masked[..., None], told.to(handed.dtype))
        if is_logits:
            fractions = self.log_fraction.clone()
            fractions[mask_id] = 0
            counted = torch.ones_like(fractions)
            counted[mask_id] = 0
            plain = fractions @ matrix + module.project.bias
            plain = plain + _row_mean(normaliser, row, len(masked))[row, None] * (counted @ matrix)
            plain = plain + _row_mean(of_mask, row, len(masked))[row, None] * matrix[mask_id]
        else:
            plain = (self.log_fraction.exp() @ matrix).expand(len(row), -1)
        yield "unigram", handed.masked_scatter(masked[..., None], plain.to(handed.dtype))

    def _read(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of N positions: the likeliest token, its logit, the normalizer, the mask's own logit; a slice at a time."""
        head, found = self.model.anchor_head, []
        for part in hidden.split(max(1, SLICE_LOGITS // self.model.vocabulary.size)):
            logits = head(part)
            top = logits.max(-1)
            of_mask = part @ head.weight[head.mask_id] + head.bias[head.mask_id]
            found.append((top.indices, top.values, logits.logsumexp(-1), of_mask.to(logits.dtype)))
        best, largest, normaliser, of_masks = (torch.cat(each) for each in zip(*found, strict=True))
        return best, largest, normaliser, of_masks


def _exchanged(stage: AnchorState, masked: Tensor, residual: Tensor, anchor: Tensor) -> AnchorState:
    chosen = masked[..., None]
    return AnchorState(
        stage.embedded, torch.where(chosen, residual, stage.residual), torch.where(chosen, anchor, stage.anchor)
    )


def _moved(stage: AnchorState, masked: Tensor, order: Tensor) -> AnchorState:
    """A row's masked positions in a random ring: each gets the features of the next."""
    ring = order.masked_fill(~masked, 2.0).argsort(-1)
    after = (ring.argsort(-1) + 1) % masked.sum(-1, keepdim=True).clamp_min(1)
    source = torch.where(masked, ring.gather(-1, after), torch.arange(masked.shape[1], device=masked.device))
    residual, anchor = (x.gather(1, source[..., None].expand_as(x)) for x in (stage.residual, stage.anchor))
    return AnchorState(stage.embedded, residual, anchor)


def _row_mean(values: Tensor, row: Tensor, rows: int) -> Tensor:
    total = torch.zeros(rows, device=values.device, dtype=values.dtype).index_add(0, row, values)
    return total / torch.bincount(row, minlength=rows).clamp_min(1)
