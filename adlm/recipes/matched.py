"""One-stage baselines that match an anchored model, in parameters or in the work of a step.

A published ADLM has one and a half times the layers of the MDLM it is compared with, and three more matrices of the
size of the vocabulary; so has A2R compared with AR, and anchored block diffusion with BD3-LM. A network without stages
and anchors but of the same size shows what they are worth. No such baselines have been published.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from adlm.errors import ConfigError
from adlm.models.costs import count_parameters, training_work
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.train.plan import summary
from adlm.train.run import Run
from adlm.train.workload import block_sizes, fractions, known_vocabulary, row_length

# Depth is a whole number. If depth alone leaves a larger relative difference than this, the width changes too.
TOLERANCE = 0.02
_WIDTH_RANGE = 1 / 8  # of the width, at most

# By kind, the kind that it matches.
MATCHED_BASELINES = {
    "mdlm-same-parameters": "adlm",
    "mdlm-same-cost": "adlm",
    "ar-same-parameters": "a2r",
    "ar-same-cost": "a2r",
    "block-same-parameters": "adlm-block",
    "block-same-cost": "adlm-block",
}
# The same for the published block sizes: block4-same-cost of adlm-block4 and so on.
BLOCK_SIZES = (4, 8, 16)
MATCHED_BASELINES |= {
    f"block{size}-same-{what}": f"adlm-block{size}" for size in BLOCK_SIZES for what in ("parameters", "cost")
}


def same_parameters(network: NetworkConfig, vocabulary: Vocabulary) -> NetworkConfig:
    """The one-stage network with nearly as many parameters."""

    def parameters(one: NetworkConfig) -> int:
        return count_parameters(one, vocabulary).total

    return _nearest(network, parameters(network), parameters)


def same_cost(
    network: NetworkConfig,
    vocabulary: Vocabulary,
    *,
    length: int,
    rows: int,
    scored: float = 0.5,
    anchors: float = 0.0,
    block_sizes: tuple[int, ...] = (),
) -> NetworkConfig:
    """The one-stage network with nearly as much work in a training step.

    Args:
        rows: rows of a micro-batch, since a hand-over may have work to do for each micro-batch.
        scored, anchors, block_sizes: as in `training_work`.
    """

    def work(network: NetworkConfig, anchors: float = 0.0) -> int:
        return training_work(
            network, vocabulary, length=length, rows=rows, scored=scored, anchors=anchors, block_sizes=block_sizes
        )

    return _nearest(network, work(network, anchors), work)


def _nearest(network: NetworkConfig, target: int, size: Callable[[NetworkConfig], int]) -> NetworkConfig:
    """The width closest to the network's own at which some depth comes near enough to `target`; else the best.

    Args:
        size: of a one-stage network; linear in its depth.
    """
    best: tuple[float, NetworkConfig] | None = None
    for one in _widths(network):
        first, second = (size(one.variant(layers=(layers,))) for layers in (1, 2))
        each = second - first
        layers = max(1, round((target - first) / each) + 1)
        off = abs((first + (layers - 1) * each) / target - 1)
        if best is None or off < best[0]:
            best = off, one.variant(layers=(layers,))
        if off <= TOLERANCE:
            break
    assert best is not None
    return best[1]


def _widths(network: NetworkConfig) -> Iterator[NetworkConfig]:
    """One-stage networks, the network's own width first."""
    own, step = network.width, 2 * network.stacks[0].heads
    for width in sorted(range(step, 2 * own, step), key=lambda width: abs(width - own)):
        if abs(width - own) <= _WIDTH_RANGE * own:
            yield network.one_stage().variant(width=width)


def matched_baseline(run: Run, kind: str, *, name: str) -> Run:
    """The run of one stage that differs from an anchored one only in its network and the anchor term.

    MDLM for ADLM, AR for A2R, block diffusion for anchored block diffusion.

    Args:
        kind: one of `MATCHED_BASELINES`.
    """
    network, objective = run.network, run.objective
    if network.stages < 2 or not isinstance(objective, Anelbo | AnchoredCrossEntropy):
        raise ConfigError(
            f"{run.name} has no matched baseline: it trains {type(objective).__name__} in {network.stages} stages",
            fix="name a run of ADLM, A2R or anchored block diffusion",
            subject=run.name,
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
            block_sizes=block_sizes(run),
        )
    plain = Nelbo(objective.corruption) if isinstance(objective, Anelbo) else CrossEntropy()
    return replace(run, name=name, network=one, objective=plain)


class Mismatch(NamedTuple):
    """By how much a baseline exceeds the run it matches: 0.01 is one percent."""

    parameters: float
    work: float
    width: int


def mismatch(run: Run, matched: Run) -> Mismatch:
    """The difference that whole layers leave between a matched baseline and the run it matches."""
    a, b = summary(run), summary(matched)
    return Mismatch(
        a.parameters.total / b.parameters.total - 1,
        a.work / b.work - 1,
        run.network.width - matched.network.width,
    )
