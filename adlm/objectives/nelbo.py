"""The bounds of masked diffusion: plain (MDLM, arXiv 2406.07524) and anchored (ADLM, arXiv 2505.18456)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.models.two_stage import TwoStage
from adlm.objectives.linear_cross_entropy import Nats, nll, sliced, weighted_nll
from adlm.objectives.objective import CrossEntropy, MaskedObjective, costs, weight_at
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted, Features


@dataclass(frozen=True)
class Nelbo(MaskedObjective):
    """The masked diffusion bound: sum over masked positions of weight * -log p(x_0 | x_t).

    Time is continuous or in steps, as the corruption has it. Where token types vanish at rates of their own, the
    terms that MD4 adds for them are in it (`AnchoredMasking`).
    """

    def _clean(self, model: LanguageModel, hidden: Tensor, corrupted: Corrupted) -> Nats:
        tokens, weight = corrupted.x_0[corrupted.masked], weight_at(corrupted, corrupted.masked)
        rates = corrupted.rates
        if rates is None:
            return costs(model, hidden, tokens, weight)
        if len(rates) != model.vocabulary.size:
            raise ConfigError(
                f"asked for anchored masking of a vocabulary of {model.vocabulary.size}",
                f"the rule knows {len(rates)} types",
                "build its table with the model's tokenizer",
            )

        def part(h: Tensor, y: Tensor) -> Tensor:
            log_p = model.logits(h).log_softmax(-1)
            expected = log_p.exp() @ rates.to(log_p.dtype)
            return expected - rates[y] * (1 + log_p.gather(-1, y[:, None])[:, 0])

        each = sliced(part, model.vocabulary.size, hidden, tokens) * weight
        return Nats(each.sum(), each.detach())


@dataclass(frozen=True)
class Anelbo(Nelbo):
    """The anchored bound: Nelbo + gamma * weight * -log p_anchor(x_0 | x_t) at anchor positions.

    The second term trains the anchor stage and is never reported.

    Args:
        gamma: weight of the anchor term after the ramp; it grows as min(gamma, progress).
        masked_only: the theorem's positions; the official code takes visible anchors too.
        share: of each row's anchor positions, drawn at random and weighted up: the same term in expectation, for
            less work.
        stale: the anchor stage reads a row as it was up to this much time before the denoiser does, by lot, as it
            will in sampling with stale anchors (K steps of T are K / T of time). Bounds the likelihood of the model
            that is stale by lot; validation has the fresh one.
    """

    rule: AnchorRule = field(default_factory=RareInSequence)
    gamma: float = 3e-3
    masked_only: bool = False
    fraction: float = 1.0
    stale: float = 0.0

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)
        if not 0 <= self.stale <= 1:
            raise ConfigError(f"asked for anchors stale by {self.stale}", "time goes from 0 to 1", "give a part of it")

    @property
    def trains_anchor(self) -> bool:
        return self.gamma > 0

    def _features(self, model: LanguageModel, batch: Batch, corrupted: Corrupted, noise: Noise) -> Features:
        if not self.stale:
            return super()._features(model, batch, corrupted, noise)
        if not isinstance(model, TwoStage):
            raise ConfigError(f"asked for stale anchors with {type(model).__name__}", "it has one stage", "use an ADLM")
        t, segments = corrupted.t, batch.segments
        before = earlier(batch, corrupted, self.stale, model.vocabulary.mask_id, noise)
        stage = model.anchor_stage(before, t, segments=segments)
        final = model.denoise(stage, corrupted.x_t, t, segments=segments, output_mask=corrupted.masked)
        return Features(final, stage.anchor)

    def _extra(
        self,
        model: LanguageModel,
        features: Features,
        batch: Batch,
        corrupted: Corrupted,
        progress: float,
        noise: Noise,
    ) -> Tensor | None:
        if not self.gamma:
            return None
        # Zero at the very first step, and taken all the same: every step reaches the same parameters.
        gamma = min(self.gamma, progress)
        among = corrupted.masked if self.masked_only else batch.scored
        chosen, up = drawn(self.rule.mark(batch) & among, self.fraction, batch, noise)
        return _anchor_cost(model, features, batch, chosen, gamma * corrupted.weight * up)


@dataclass(frozen=True)
class AnchoredCrossEntropy(CrossEntropy):
    """A2R's: next-token cross-entropy + gamma * that of the first stage at anchor tokens, which is not reported.

    Args:
        gamma, share: as in `Anelbo`.
    """

    rule: AnchorRule = field(default_factory=RareInSequence)
    gamma: float = 3e-3
    fraction: float = 1.0

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    @property
    def trains_anchor(self) -> bool:
        return self.gamma > 0

    def _extra(
        self, model: LanguageModel, features: Features, batch: Batch, progress: float, noise: Noise
    ) -> Tensor | None:
        if not self.gamma:
            return None
        # Zero at the very first step, and taken all the same: every step reaches the same parameters.
        gamma = min(self.gamma, progress)
        chosen, up = drawn(self.rule.mark(batch) & batch.scored, self.fraction, batch, noise)
        return _anchor_cost(model, features, batch, chosen, gamma * up)


def earlier(batch: Batch, corrupted: Corrupted, stale: float, mask_id: int, noise: Noise) -> Tensor:
    """x_t [B, L] as it was a random time before t, at most `stale`: with more of it masked.

    With 1 - alpha = t, a token visible at t was still masked at t + d with probability d / (1 - t).
    """
    u = noise.fork("stale").uniform(batch.sample_id, 1 + corrupted.x_t.shape[1])
    visible_fraction = (1 - corrupted.t.double()).clamp_min(1e-9)[:, None]
    probability = stale * u[:, :1] / visible_fraction
    return corrupted.x_t.masked_fill(batch.scored & (u[:, 1:] < probability), mask_id)


def drawn(chosen: Tensor, fraction: float, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
    """A random fraction of the chosen positions [B, L], by each row's own noise, and what they weigh [B, 1].

    A fixed number of each row: left to chance too, an eighth of them would add half as much noise again.
    """
    if fraction == 1:
        return chosen, torch.ones(len(chosen), 1, device=chosen.device)
    n = chosen.sum(-1, keepdim=True)
    k = (n * fraction).ceil()
    u = noise.fork("anchors").uniform(batch.sample_id, chosen.shape[1]).masked_fill(~chosen, 2.0)
    return chosen & (u.argsort(-1).argsort(-1) < k), (n / k.clamp_min(1)).float()


def _anchor_cost(model: LanguageModel, features: Features, batch: Batch, chosen: Tensor, weight: Tensor) -> Tensor:
    """`weight` [B, 1] or [B, L] times the first stage's cross-entropy at the chosen positions, summed."""
    if features.anchor is None:
        raise ConfigError(
            f"asked for the anchor term with {type(model).__name__}", "it has one stage", "use a two-stage model"
        )
    hidden, tokens, weight = features.anchor[chosen], batch.tokens[chosen], weight.expand(chosen.shape)[chosen]
    if model.anchor_head is not None:
        return weighted_nll(model.anchor_head, hidden, tokens, weight, with_mask=True).total
    return (nll(model.anchor_logits, model.vocabulary.size, hidden, tokens) * weight).sum()


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ConfigError(f"asked for a fraction of {fraction} of the anchors", "not in (0, 1]", "1 takes them all")
