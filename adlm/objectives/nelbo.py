"""The bounds of masked diffusion: plain (MDLM, arXiv 2406.07524) and anchored (ADLM, arXiv 2505.18456)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import Nats, nll, sliced, weighted_nll
from adlm.objectives.objective import CrossEntropy, LossContext, LossInputs, MaskedObjective, Objective, costs
from adlm.randomness import Noise
from adlm.types import Batch, Features


@dataclass(frozen=True)
class Nelbo(MaskedObjective):
    """The masked diffusion bound: sum over masked positions of weight * -log p(x_0 | x_t).

    Time is continuous or in steps, depending on the corruption. If token types vanish at rates of their own, the
    terms that MD4 adds for them are included (`AnchoredMasking`).
    """

    def for_validation(self) -> Objective:
        """The bound with the least variance; in blocks of the last size of several."""
        if isinstance(self.corruption, BlockMasking):
            return Nelbo(BlockMasking(self.corruption.sizes[-1:]))
        return Nelbo(CountMasking())

    def bound(self, context: LossContext) -> Nats:
        model, hidden = context.model, context.features.final
        rates = context.corrupted.rates
        if rates is None:
            return costs(model, hidden, context.tokens, context.weight)
        if len(rates) != model.vocabulary.size:
            raise ConfigError(
                f"the rule knows {len(rates)} types, but the vocabulary has {model.vocabulary.size}",
                fix="build its table with the model's tokenizer",
                subject="rule",
            )

        def part(h: Tensor, y: Tensor) -> Tensor:
            log_p = model.logits(h).log_softmax(-1)
            expected = log_p.exp() @ rates.to(log_p.dtype)
            return expected - rates[y] * (1 + log_p.gather(-1, y[:, None])[:, 0])

        each = sliced(part, model.vocabulary.size, hidden, context.tokens) * context.weight
        return Nats(each.sum(), each.detach())


@dataclass(frozen=True)
class Anelbo(Nelbo):
    """The anchored bound: Nelbo + gamma * weight * -log p_anchor(x_0 | x_t) at anchor positions.

    The second term trains the anchor stage and is never reported.

    Args:
        gamma: weight of the anchor term after the ramp; it grows as min(gamma, progress).
        masked_only: the theorem's positions; the official code takes visible anchors too.
        fraction: of each row's anchor positions, drawn at random and weighted up: the same term in expectation, for
            less work.
        stale: the anchor stage reads a row as it was up to this much time earlier than the denoiser, at random, as it
            will in sampling with stale anchors (K steps of T are K / T of time). The loss then bounds the likelihood
            of the model with stale anchors; validation measures the fresh one.
        zero_at: the fraction of the run at which the weight has fallen to 0, linearly from the start; 0: it stays.
    """

    rule: AnchorRule = field(default_factory=RareInSequence)
    gamma: float = 3e-3
    masked_only: bool = False
    fraction: float = 1.0
    stale: float = 0.0
    zero_at: float = 0.0

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)
        if not 0 <= self.stale <= 1:
            raise OutOfRange("stale", self.stale, "a fraction of the time, from 0 to 1")
        if not 0 <= self.zero_at <= 1:
            raise OutOfRange("zero_at", self.zero_at, "a fraction of the run, from 0 to 1")

    @property
    def trains_anchor(self) -> bool:
        return self.gamma > 0

    def anchor_weight(self, progress: float) -> float:
        """gamma after this fraction of the run."""
        left = max(0.0, 1 - progress / self.zero_at) if self.zero_at else 1.0
        return min(self.gamma, progress) * left

    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        """The cost with fresh anchors."""
        return Nelbo(self.corruption).nats(model, batch, level, noise)

    def read(self, inputs: LossInputs) -> Features:
        if not self.stale:
            return super().read(inputs)
        if inputs.model.reads_blocks:
            raise ConfigError("stale anchors are trained with full attention: set stale=0", subject="stale")
        model, corrupted, segments = inputs.model, inputs.corrupted, inputs.batch.segments
        stage = model.anchor_stage(earlier(inputs, self.stale), corrupted.t, segments=segments)
        final = model.denoise(stage, corrupted.x_t, corrupted.t, segments=segments, output_mask=corrupted.masked)
        return Features(final, stage.anchor)

    def extra(self, context: LossContext) -> Tensor | None:
        among = context.corrupted.masked if self.masked_only else context.batch.scored
        return _anchor_term(self, context, among, context.corrupted.weight)


@dataclass(frozen=True)
class AnchoredCrossEntropy(CrossEntropy):
    """A2R's loss: next-token cross-entropy + gamma * that of the first stage at anchor tokens, which is not reported.

    Args:
        gamma, fraction: as in `Anelbo`.
    """

    rule: AnchorRule = field(default_factory=RareInSequence)
    gamma: float = 3e-3
    fraction: float = 1.0

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    @property
    def trains_anchor(self) -> bool:
        return self.gamma > 0

    def anchor_weight(self, progress: float) -> float:
        """gamma after this fraction of the run."""
        return min(self.gamma, progress)

    def extra(self, context: LossContext) -> Tensor | None:
        return _anchor_term(self, context, context.batch.scored, context.corrupted.weight)


def earlier(inputs: LossInputs, stale: float) -> Tensor:
    """x_t [B, L] as it was a random time before t, at most `stale`: with more of it masked.

    With 1 - alpha = t, a token visible at t was still masked at t + d with probability d / (1 - t).
    """
    batch, corrupted = inputs.batch, inputs.corrupted
    u = inputs.noise.fork("stale").uniform(batch.sample_id, 1 + corrupted.x_t.shape[1])
    visible_fraction = (1 - corrupted.t.double()).clamp_min(1e-9)[:, None]
    probability = stale * u[:, :1] / visible_fraction
    return corrupted.x_t.masked_fill(batch.scored & (u[:, 1:] < probability), inputs.model.vocabulary.mask_id)


def drawn(chosen: Tensor, fraction: float, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
    """A random fraction of the chosen positions [B, L], by each row's own noise, and their weight [B, 1].

    A fixed number of each row: a random number of an eighth of them would add half as much noise again.
    """
    if fraction == 1:
        return chosen, torch.ones(len(chosen), 1, device=chosen.device)
    n = chosen.sum(-1, keepdim=True)
    k = (n * fraction).ceil()
    u = noise.fork("anchors").uniform(batch.sample_id, chosen.shape[1]).masked_fill(~chosen, 2.0)
    return chosen & (u.argsort(-1).argsort(-1) < k), (n / k.clamp_min(1)).float()


def _anchor_term(
    objective: Anelbo | AnchoredCrossEntropy, context: LossContext, among: Tensor, weight: Tensor
) -> Tensor | None:
    """gamma * `weight` [B, 1] or [B, L] * the first stage's cross-entropy at the anchors `among` [B, L], summed."""
    if not objective.gamma:
        return None
    model, batch, anchor = context.model, context.batch, context.features.anchor
    if anchor is None:
        raise ConfigError(
            f"the anchor term needs a two-stage model, and {type(model).__name__} has one stage",
            subject="stages",
        )
    objective.rule.check_vocabulary(model.vocabulary.size)
    # Zero at the very first step, and computed all the same: every step reaches the same parameters.
    gamma = objective.anchor_weight(context.progress)
    chosen, up = drawn(objective.rule.mark(batch) & among, objective.fraction, batch, context.noise)
    index = chosen.flatten().nonzero()[:, 0]
    hidden, tokens, weights = (
        x.index_select(0, index)
        for x in (anchor.flatten(0, 1), batch.tokens.flatten(), (gamma * weight * up).expand(chosen.shape).flatten())
    )
    if model.anchor_head is not None:
        return weighted_nll(model.anchor_head, hidden, tokens, weights, with_mask=True).total
    return (nll(model.anchor_logits, model.vocabulary.size, hidden, tokens) * weights).sum()


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise OutOfRange("fraction", fraction, "above 0 and at most 1")
