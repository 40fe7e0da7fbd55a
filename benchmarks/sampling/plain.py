"""The peer of the sampling benchmarks: ancestral sampling written plainly, on `PlainAdlm`.

As one would write it from the paper and as published samplers are: p(x_0 | x_t) for every position and token, memoised
while the whole batch stands still; the reverse-step distribution q(x_s | x_t) as another full tensor; a categorical
draw at every position by exponential noise, in float64 since float32 is biased; and visible tokens carried over.
"""

import torch
from torch import Tensor

from benchmarks.core.plain import PlainAdlm, plain_sampling_forward


class PlainAncestral:
    """Steps of t -> s with the log-linear schedule of eps 1e-3, where alpha = 1 - (1 - eps) t."""

    def __init__(self, model: PlainAdlm, generator: torch.Generator) -> None:
        self.model, self.generator = model, generator
        self.memo: Tensor | None = None

    @torch.no_grad()
    def step(self, x_t: Tensor, t: float, s: float) -> Tensor:
        masked_t, masked_s = (1 - 1e-3) * t, (1 - 1e-3) * s
        if self.memo is None:
            self.memo = plain_sampling_forward(self.model, x_t)
        q = self.memo.double()
        q *= masked_t - masked_s
        q[:, :, self.model.mask_id] = masked_s
        noise = torch.empty_like(q).exponential_(generator=self.generator)
        x_s = torch.where(x_t == self.model.mask_id, (q / noise).argmax(-1), x_t)
        if not torch.equal(x_s, x_t):
            self.memo = None
        return x_s

    def sample(self, x_t: Tensor, steps: int) -> Tensor:
        for step in range(steps):
            x_t = self.step(x_t, 1 - step / steps, 1 - (step + 1) / steps)
        return x_t
