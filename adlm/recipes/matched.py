"""One-stage models that match an anchored one, in parameters or in the work of a step. Nobody has published any.

A published ADLM has one and a half times the layers of the MDLM it is compared with, and three more matrices as large
as the vocabulary; so has A2R beside AR. What two stages and anchors are worth, a network without them but of the same
size can say.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from adlm.errors import ConfigError
from adlm.models.costs import count_parameters, shape_of, training_work
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.train.plan import fractions, known_vocabulary, row_length, summary
from adlm.train.run import Run

# Layers are whole. Where depth alone leaves more than this, the width gives way too.
TOLERANCE = 0.02
_GIVE = 1 / 8  # of the width, at most

# By kind, the kind that it matches.
MATCHED_BASELINES = {
    "mdlm-same-parameters": "adlm",
    "mdlm-same-cost": "adlm",
    "ar-same-parameters": "a2r",
    "ar-same-cost": "a2r",
}


def same_parameters(network: TwoStageConfig, vocabulary: Vocabulary) -> OneStageConfig:
    """The one-stage network with nearly as many parameters."""

    def line(one: OneStageConfig) -> tuple[int, int]:
        first, second = (count_parameters(_deep(one, layers), vocabulary).total for layers in (1, 2))
        return first, second - first

    return _nearest(network, count_parameters(network, vocabulary).total, line)


def same_cost(
    network: TwoStageConfig,
    vocabulary: Vocabulary,
    *,
    length: int,
    rows: int,
    scored: float = 0.5,
    anchors: float = 0.0,
) -> OneStageConfig:
    """The one-stage network with nearly as much work in a training step.

    Args:
        rows: of a micro-batch, since a hand-over may have work to do for each.
        scored, anchors: as in `training_work`.
    """

    def line(one: OneStageConfig) -> tuple[int, int]:
        works = (
            training_work(_deep(one, layers), vocabulary, length=length, rows=rows, scored=scored) for layers in (1, 2)
        )
        first, second = works
        return first, second - first

    work = training_work(network, vocabulary, length=length, rows=rows, scored=scored, anchors=anchors)
    return _nearest(network, work, line)


def _nearest(network: TwoStageConfig, target: int, line: Callable[[OneStageConfig], tuple[int, int]]) -> OneStageConfig:
    """The first width, going outwards from the network's own, at which some depth comes near enough; else the best.

    Args:
        line: what one layer comes to at a width, and what each further layer adds.
    """
    best: tuple[float, OneStageConfig] | None = None
    for one in _widths(network):
        first, each = line(one)
        layers = max(1, round((target - first) / each) + 1)
        off = abs((first + (layers - 1) * each) / target - 1)
        if best is None or off < best[0]:
            best = off, _deep(one, layers)
        if off <= TOLERANCE:
            break
    assert best is not None
    return best[1]


def _widths(network: TwoStageConfig) -> Iterator[OneStageConfig]:
    stack = network.anchor
    step = 2 * stack.heads
    near = sorted(range(step, 2 * stack.width, step), key=lambda width: abs(width - stack.width))
    for width in near:
        if abs(width - stack.width) <= _GIVE * stack.width:
            yield OneStageConfig(replace(stack, width=width), tied=network.tied, positions=network.positions)


def _deep(one: OneStageConfig, layers: int) -> OneStageConfig:
    return replace(one, stack=replace(one.stack, layers=layers))


def matched_baseline(run: Run, kind: str, *, name: str) -> Run:
    """The MDLM or AR run that differs from an ADLM or A2R run in its network and the anchor term alone.

    Args:
        kind: one of `MATCHED_BASELINES`.
    """
    network, objective = run.network, run.objective
    if not isinstance(network, TwoStageConfig) or not isinstance(objective, Anelbo | AnchoredCrossEntropy):
        raise ConfigError(
            f"asked for the twin of {run.name}",
            f"{type(objective).__name__} in one stage",
            "ask for an ADLM's or A2R's",
        )
    vocabulary = known_vocabulary(run.data)
    if kind.endswith("-same-parameters"):
        one = same_parameters(network, vocabulary)
    else:
        length, fraction = row_length(run.data), fractions(run)
        one = same_cost(
            network,
            vocabulary,
            length=length,
            rows=max(1, round(min(run.train.micro_batch_size, run.train.rows(length)) * fraction.computed)),
            scored=fraction.scored / fraction.computed,
            anchors=fraction.anchors / fraction.computed,
        )
    plain = Nelbo(objective.corruption) if isinstance(objective, Anelbo) else CrossEntropy()
    return replace(run, name=name, network=one, objective=plain)


class Mismatch(NamedTuple):
    """How much more a run has than the one it is to match: 0.01 is one percent."""

    parameters: float
    work: float
    width: int


def mismatch(run: Run, matched: Run) -> Mismatch:
    """What whole layers leave between a twin and what it matches."""
    a, b = summary(run), summary(matched)
    return Mismatch(
        a.parameters.total / b.parameters.total - 1,
        a.work / b.work - 1,
        shape_of(run.network).stack.width - shape_of(matched.network).stack.width,
    )
