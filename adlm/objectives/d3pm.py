"""D3PM with an absorbing state (arXiv 2107.03006): discrete time, and a network that may also predict the mask."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.diffusion.corruption import Corruption, UniformMasking
from adlm.errors import ConfigError
from adlm.models.embedding import widened
from adlm.objectives.linear_cross_entropy import Nats, sliced
from adlm.objectives.objective import LossContext, MaskedObjective


@dataclass(frozen=True)
class D3pm(MaskedObjective):
    """The bound of `corruption.steps` reverse steps, KL(q(x_s | x_t, x_0) || p(x_s | x_t)) at masked positions.

    With predictions mu over V tokens, mask m among them, and n_t = 1 - alpha_t + alpha_t mu_m, the reverse step is
    p(x_s = v) = (alpha_s - alpha_t) mu_v / n_t and p(x_s = m) = n_s / n_t. Masked diffusion (SUBS) is mu_m = 0.
    """

    corruption: Corruption = field(default_factory=lambda: UniformMasking(steps=1000))

    def __post_init__(self) -> None:
        self._masking()

    def _masking(self) -> UniformMasking:
        if not (isinstance(self.corruption, UniformMasking) and self.corruption.steps):
            raise ConfigError(
                f"D3PM needs a corruption with a number of steps, got {self.corruption}",
                fix="use UniformMasking(steps=1000)",
                subject="corruption",
            )
        return self.corruption

    def bound(self, context: LossContext) -> Nats:
        model, masking = context.model, self._masking()
        head = model.head
        if head is None:
            raise ConfigError(f"D3PM needs a linear head, which {type(model).__name__} does not have", subject="head")
        t = context.corrupted.t.double()[:, None]
        alpha_t = context.select(masking.schedule.alpha(t))
        alpha_s = context.select(masking.schedule.alpha((t - 1 / masking.steps).clamp_min(0)))

        def part(h: Tensor, y: Tensor, alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
            log_mu = widened(head.raw(h)).log_softmax(-1)
            mu_mask = log_mu[:, head.mask_id].exp()
            reveal = ((alpha_s - alpha_t) / (1 - alpha_t)).to(log_mu.dtype)
            # log n_t / (1 - alpha_t), and n_s likewise; at s = 0 the second is never used, its weight being 0.
            first = torch.log1p(mu_mask * (alpha_t / (1 - alpha_t)).to(log_mu.dtype))
            second = torch.log1p(mu_mask * (alpha_s / (1 - alpha_s).clamp_min(1e-9)).to(log_mu.dtype))
            return first - reveal * log_mu.gather(-1, y[:, None])[:, 0] - (1 - reveal) * second

        inputs = (context.features.final, context.tokens, alpha_s, alpha_t)
        each = masking.steps * sliced(part, model.vocabulary.size, *inputs)
        return Nats(each.sum(), each.detach())
