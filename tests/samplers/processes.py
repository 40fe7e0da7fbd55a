"""Processes small enough to enumerate, their exact laws, and small networks.

A state of L positions is a number in base 4, the first position its highest digit; the digit 3 is the mask. What a
sampler does in one step is a matrix over the 4^L states, so that its law is a product of matrices.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adlm.models.hand_over import Hidden, Logits
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.conftest import TableModel

MASK = 3
VOCABULARY = Vocabulary(4, MASK)


def chi_square_limit(freedom: int) -> float:
    """Above this with probability about 1e-5 (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.3 * math.sqrt(2 / (9 * freedom))) ** 3


def assert_drawn_from(law: Tensor, drawn: Tensor) -> None:
    """The frequencies of cells drawn [n] pass a chi-square test against the law [K]; rare cells count as one."""
    counts, expected = torch.bincount(drawn, minlength=len(law)).double(), len(drawn) * law.double()
    assert not counts[law == 0].any()
    rare = expected < 5
    if rare.any():
        counts, expected = (torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts, expected))
        counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi_square_limit(len(expected) - 1), statistic


@functools.cache
def states(length: int) -> Tensor:
    """[4^L, L], in the order of their numbers."""
    return torch.tensor(list(itertools.product(range(4), repeat=length)))


def number(tokens: Tensor) -> Tensor:
    """[..., L] -> [...]."""
    return (tokens * 4 ** torch.arange(tokens.shape[-1] - 1, -1, -1)).sum(-1)


@dataclass(frozen=True)
class Process:
    """logits [4^L, L, 4] in float64: what a model says at each position of each state."""

    logits: Tensor

    @property
    def length(self) -> int:
        return self.logits.shape[1]

    @property
    def model(self) -> TableModel:
        return TableModel(VOCABULARY, lambda tokens: self.logits[number(tokens)])

    @functools.cached_property
    def p(self) -> Tensor:
        return self.logits[..., :MASK].softmax(-1)

    @functools.cached_property
    def blank(self) -> Tensor:
        """[4^L, L] bool."""
        return states(self.length) == MASK

    def step(self, reveal: float | Tensor, sigma: float | Tensor = 0.0) -> Tensor:
        """[4^L, 4^L]: chance of y after x, where every blank is revealed and every token masked independently.

        reveal and sigma: one number, or one for each position of each state [4^L, L].
        """
        each = self.logits.new_zeros(4**self.length, self.length, 4)
        reveal, sigma = torch.as_tensor(reveal), torch.as_tensor(sigma)
        each[..., :MASK] = torch.where(
            self.blank[..., None],
            reveal[..., None] * self.p,
            (1 - sigma[..., None]) * torch.nn.functional.one_hot(states(self.length), 4)[..., :MASK],
        )
        each[..., MASK] = torch.where(self.blank, 1 - reveal, sigma)
        y = states(self.length)
        return torch.stack([each[:, position, y[:, position]] for position in range(self.length)]).prod(0)

    def one_at(self, probabilities: Tensor) -> Tensor:
        """[4^L, 4^L]: one blank is revealed, each with its chance [4^L, L]; full states stay as they are."""
        full = ~self.blank.any(-1)
        steps = torch.diag(full.double())
        for position in range(self.length):
            here = torch.zeros_like(self.blank)
            here[:, position] = True
            steps += probabilities[:, position, None] * self.step((here & self.blank).double())
        return steps

    def law(self, *steps: Tensor) -> Tensor:
        """[4^L] after these steps from nothing but blanks."""
        law = torch.zeros(4**self.length, dtype=torch.float64)
        law[-1] = 1
        for step in steps:
            law = law @ step
        return law

    def in_any_order(self) -> Tensor:
        """[4^L]: one blank after another, by lot."""
        return self.law(*[self.one_at(self.blank / self.blank.sum(-1, keepdim=True).clamp_min(1))] * self.length)


@functools.cache
def consistent(length: int = 3) -> tuple[Tensor, Process]:
    """A joint law [4^L] (0 at states with masks) and its exact conditionals: no order is better than another."""
    joint = torch.zeros([4] * length, dtype=torch.float64)
    inner = joint[(slice(MASK),) * length]
    inner[:] = torch.rand(inner.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 2 + 0.05
    joint /= joint.sum()
    logits = torch.full((4**length, length, 4), -math.inf, dtype=torch.float64)
    for state in states(length).tolist():
        seen: list[int | slice] = [slice(None) if token == MASK else token for token in state]
        for position, token in itertools.product(range(length), range(MASK)):
            here = (*seen[:position], token, *seen[position + 1 :])
            logits[(int(number(torch.tensor(state))), position, token)] = joint[here].sum().log()
    return joint.flatten(), Process(logits)


@functools.cache
def inconsistent(length: int = 3) -> Process:
    """Conditionals that come from no joint law: what is written depends on the order of writing."""
    generator = torch.Generator().manual_seed(1)
    return Process(1.5 * torch.randn(4**length, length, 4, generator=generator, dtype=torch.float64))


def networks(*kinds: str, vocabulary: Vocabulary = VOCABULARY) -> dict[str, LanguageModel]:
    """Small real networks with random weights, by kind; all of them by default."""
    stack = StackConfig(width=16, heads=2, layers=1)
    causal = replace(stack, attention="causal")
    configs = {
        "ar": OneStageConfig(causal),
        "mdlm": OneStageConfig(stack),
        "adlm": TwoStageConfig(stack, denoiser_layers=1, hand_over=Logits()),
        "adlm-hidden": TwoStageConfig(stack, denoiser_layers=1, hand_over=Hidden()),
        "adlm-timed": TwoStageConfig(replace(stack, condition=8, timed=True), denoiser_layers=1),
        "a2r": TwoStageConfig(causal, denoiser_layers=1),
    }
    models = {kind: configs[kind].build(vocabulary).eval() for kind in kinds or configs}
    generator = torch.Generator().manual_seed(0)
    for model in models.values():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return models
