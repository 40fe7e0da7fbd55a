"""Published samplers as functions of their options: a rule or an order with its pace, by the names of the registry.

Parameters are the options that users give by name; `common` has the filters and `stale_anchors`.
"""

from typing import Any, Protocol

from adlm.errors import ConfigError
from adlm.samplers.ancestral import Remasking
from adlm.samplers.ordered import Ordered
from adlm.samplers.orders import AnchorConfidence, AnyOrder, Confidence, LeastEntropy, Margin, Order
from adlm.samplers.paces import Above, EntropyBound, InSteps, Pace, PerStep
from adlm.samplers.remasking import ByConfidence, Cap, FlowCorrector, ForwardBackward, Loop, Rescale


def remdm_cap(*, steps: int = 256, eta: float = Cap.eta, **common: Any) -> Remasking:
    """Samples as ancestral, but may remask a few tokens per step, each with a probability of at most `eta`."""
    return Remasking(rule=Cap(eta), steps=steps, **common)


def remdm_rescale(*, steps: int = 256, eta: float = Rescale.eta, **common: Any) -> Remasking:
    """Samples as ancestral, remasking with the fraction `eta` of the largest possible probability."""
    return Remasking(rule=Rescale(eta), steps=steps, **common)


def remdm_conf(*, steps: int = 256, **common: Any) -> Remasking:
    """Samples as ancestral, remasking the tokens that the model was least certain of."""
    return Remasking(rule=ByConfidence(), steps=steps, **common)


def remdm_loop(
    *,
    steps: int = 256,
    eta: float = Loop.eta,
    t_on: float = Loop.t_on,
    t_off: float = Loop.t_off,
    alpha_on: float = Loop.alpha_on,
    **common: Any,
) -> Remasking:
    """Writes, then revises for a while at a constant noise level, then finishes."""
    return Remasking(rule=Loop(eta, t_on, t_off, alpha_on), steps=steps, **common)


def forward_backward(*, steps: int = 256, **common: Any) -> Remasking:
    """Remasks as many tokens in each step as the noise would have masked."""
    return Remasking(rule=ForwardBackward(), steps=steps, **common)


def dfm(*, steps: int = 256, **common: Any) -> Remasking:
    """Discrete flow matching's corrector: remasks tokens while it reveals others."""
    return Remasking(rule=FlowCorrector(), steps=steps, **common)


def _pace(
    *,
    steps: int | None = None,
    tokens_per_step: int | None = None,
    threshold: float | None = None,
    gamma: float | None = None,
) -> Pace:
    paces = {
        "steps": None if steps is None else InSteps(steps),
        "tokens_per_step": None if tokens_per_step is None else PerStep(tokens_per_step),
        "threshold": None if threshold is None else Above(threshold),
        "gamma": None if gamma is None else EntropyBound(gamma),
    }
    given = {name: pace for name, pace in paces.items() if pace is not None}
    if len(given) > 1:
        raise ConfigError(
            f"use only one of {' and '.join(given)}: each says how much a step writes",
            subject=" and ".join(given),
        )
    return next(iter(given.values()), InSteps())


class PacedPreset(Protocol):
    """A function that makes a sampler with an order of its own, at the pace that one of four options sets."""

    def __call__(
        self,
        *,
        steps: int | None = None,
        tokens_per_step: int | None = None,
        threshold: float | None = None,
        gamma: float | None = None,
        **common: Any,
    ) -> Ordered: ...


def _paced(order: Order, summary: str, *, agreeing: bool = False) -> PacedPreset:
    def preset(
        *,
        steps: int | None = None,
        tokens_per_step: int | None = None,
        threshold: float | None = None,
        gamma: float | None = None,
        **common: Any,
    ) -> Ordered:
        pace = _pace(steps=steps, tokens_per_step=tokens_per_step, threshold=threshold, gamma=gamma)
        return Ordered(order=order, pace=pace, agreeing=agreeing, **common)

    preset.__doc__ = summary
    return preset


confidence = _paced(Confidence(), "Writes the drawn tokens first that the model is most certain of (MaskGIT, LLaDA).")
margin = _paced(Margin(), "Writes first where the most likely token is furthest ahead of the second.")
anchor_first = _paced(AnchorConfidence(), "Writes first where the anchor stage is most certain.")
agreeing = _paced(
    Confidence(),
    "Writes as confidence does, and at once wherever the anchor stage and the denoiser agree.",
    agreeing=True,
)


def entropy(
    *, steps: int | None = None, tokens_per_step: int | None = None, gamma: float | None = None, **common: Any
) -> Ordered:
    """Writes first where the model's distribution has the least entropy (Dream)."""
    pace = _pace(steps=steps, tokens_per_step=tokens_per_step, gamma=gamma)
    return Ordered(order=LeastEntropy(), pace=pace, **common)


def entropy_bounded(*, gamma: float = EntropyBound.gamma, **common: Any) -> Ordered:
    """Writes as many tokens per step as `gamma` nats of joint uncertainty allow (EB-Sampler)."""
    return Ordered(order=LeastEntropy(), pace=EntropyBound(gamma), **common)


def threshold(*, threshold: float = Above.score, **common: Any) -> Ordered:
    """Writes in each step all tokens whose probability is above a threshold (Fast-dLLM)."""
    return Ordered(order=Confidence(), pace=Above(threshold), **common)


def random(*, steps: int | None = None, tokens_per_step: int | None = None, **common: Any) -> Ordered:
    """Writes in random order, equally many tokens per step."""
    return Ordered(order=AnyOrder(), pace=_pace(steps=steps, tokens_per_step=tokens_per_step), **common)
