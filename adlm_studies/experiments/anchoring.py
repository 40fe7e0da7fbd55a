"""Does anchoring help? AR, MDLM, MDLMs that match, ADLM with and without its anchor loss and with every hand-over; and
left to right, A2R beside ARs that match it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from adlm.models.hand_over import Continued, HandOver, Hidden, Logits, Probabilities
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.samples import RecordSample, texts_of
from adlm_studies.experiments.statistics import exponential, interval_note, over_runs, paired, significant
from adlm_studies.experiments.study import StepOutcome, Study, StudyStep, check_names
from adlm_studies.experiments.tables import curves, gap_closed, nats_of, seed_difference, select, shared_seeds
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Cell, Interval, ReportPage, ReportTable, Section


def _handing_over(hand_over: HandOver) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        name = f"{run.name}-{type(hand_over).__name__.lower()}"
        return replace(run, name=name, network=run.network.variant(hand_over=hand_over))

    return change


def _read_once(run: Run) -> Run:
    """Tokens enter at the bottom alone, as published."""
    return replace(run, name=f"{run.name}-read-once", network=run.network.variant(input_reinjection=0))


# By the name in tables: the kind of run, and what is changed in it.
ARMS: dict[str, tuple[str, Callable[[Run], Run] | None]] = {
    "AR": ("ar-same-parameters", None),  # as many as A2R, and about as many as ADLM
    "MDLM": ("mdlm", None),
    "MDLM, same parameters": ("mdlm-same-parameters", None),
    "MDLM, same cost": ("mdlm-same-cost", None),
    "MDLM, same cost, tokens read once": ("mdlm-same-cost", _read_once),
    "ADLM, γ = 0": ("adlm-gamma0", None),
    "ADLM": ("adlm", None),
    "ADLM, logits": ("adlm", _handing_over(Logits())),
    "ADLM, probabilities": ("adlm", _handing_over(Probabilities())),
    "ADLM, hidden": ("adlm", _handing_over(Hidden())),
    "ADLM, continued": ("adlm", _handing_over(Continued())),
    "AR, same cost": ("ar-same-cost", None),  # as A2R
    "A2R": ("a2r", None),
}
LEFT_TO_RIGHT = ("AR", "AR, same cost", "A2R")  # baselines of A2R, and A2R
MAIN = ("AR", "MDLM, same cost", "ADLM")
# As many lines as there are colors.
DRAWN = ("AR", "MDLM", "MDLM, same parameters", "MDLM, same cost", "ADLM, γ = 0", "ADLM", "ADLM, logits")
AGAINST = ("MDLM, same cost", "MDLM, same parameters", "MDLM")


@dataclass(frozen=True)
class Anchoring(Study):
    """The study of whether anchoring helps at equal parameters and at equal cost.

    Args:
        corpora: by their names at the scale; by default all of real text. The first gets all arms, others the main.
        arms: of the first corpus, by name; all by default.
        training_steps: the scale's own by default.
        rows: held-out rows to score on.
    """

    name: ClassVar[str] = "anchoring"
    question: ClassVar[str] = "Does anchoring help at equal parameters and at equal cost, and which part of it does?"

    corpora: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    training_steps: int = 0
    rows: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("arm of the study", self.arms, ARMS)
        check_names(f"corpus at {self.scale} scale", self.corpora, settings.corpora(self.scale))

    def steps(self) -> Sequence[StudyStep]:
        names = self.corpora or tuple(name for name in settings.corpora(self.scale) if name != "stories")
        trained = [
            step
            for seed in range(self.seeds)
            for corpus in names
            for step in self._trained(corpus, (self.arms or tuple(ARMS)) if corpus == names[0] else MAIN, seed)
        ]
        shown = next((step.name for step in trained if step.labels["model"] == "ADLM"), None)
        return [*trained, *([StudyStep("player", RecordSample(shown), needs=(shown,))] if shown else [])]

    def _trained(self, corpus: str, arms: Sequence[str], seed: int) -> list[StudyStep]:
        """A step for each arm; two arms that come to the same run, as the recipe's own hand-over, are one."""
        found: dict[str, Run] = {}
        for arm in arms:
            run = self._run(corpus, arm, seed)
            if not any(replace(run, name=other.name) == other for other in found.values()):
                found[arm] = run
        return [
            StudyStep(
                f"{corpus}/{run.name}/seed-{seed}",
                TrainAndScore(run, rows=self.rows),
                {"corpus": corpus, "model": arm, "seed": seed},
            )
            for arm, run in found.items()
        ]

    def _run(self, corpus: str, arm: str, seed: int) -> Run:
        kind, change = ARMS[arm]
        run = settings.study_run(self.scale, corpus, kind, seed=seed, steps=self.training_steps or None)
        return run if change is None else change(run)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        sections: list[Section] = []
        for corpus in dict.fromkeys(outcome.labels["corpus"] for outcome in outcomes if "corpus" in outcome.labels):
            here = select(outcomes, corpus=corpus)
            known = {outcome.labels["model"] for outcome in here}
            by_diffusion = [each for each in ARMS if each in known and (each == "AR" or each not in LEFT_TO_RIGHT)]
            sections.append(_table(f"Held-out perplexity on {corpus}", corpus, here, by_diffusion, AGAINST))
            if "A2R" in known:
                title = f"Anchors left to right, on {corpus}"
                sections.append(_table(title, corpus, here, [each for each in LEFT_TO_RIGHT if each in known], ("AR",)))
            sections.append(curves(corpus, [each for each in here if each.labels["model"] in DRAWN]))
        lead = " ".join(filter(None, (self.question, _found(outcomes))))
        return ReportPage("Does anchoring help?", lead, [*sections, *texts_of(outcomes)])


def _found(outcomes: Sequence[StepOutcome]) -> str:
    """How ADLM stands to the MDLM of equal cost on every corpus that has both, and on how many significantly."""
    gaps: dict[str, Interval] = {}
    for corpus in dict.fromkeys(outcome.labels.get("corpus") for outcome in outcomes):
        nats = {arm: nats_of(select(outcomes, corpus=corpus, model=arm)) for arm in ("ADLM", AGAINST[0])}
        shared = shared_seeds(nats, *nats)
        if corpus and shared:
            gaps[corpus] = paired(*([nats[arm][seed] for seed in shared] for arm in nats))
    if not gaps:
        return ""
    each = ", ".join(f"{gap} on {corpus}" for corpus, gap in gaps.items())
    better, worse = (sum(significant(gap) and gap.value * sign > 0 for gap in gaps.values()) for sign in (-1, 1))
    told = f"significantly lower on {better or 'none'}, significantly higher on {worse or 'none'} of {len(gaps)}"
    return f"At equal cost, ADLM's bound minus MDLM's is {each} (nats per token): {told}."


def _table(
    title: str, corpus: str, outcomes: Sequence[StepOutcome], arms: Sequence[str], against: Sequence[str]
) -> ReportTable:
    """Every arm with its intervals over seeds, how it stands to the first of `against` that there is, and to AR."""
    nats = {arm: nats_of(select(outcomes, model=arm)) for arm in arms}
    base = next((arm for arm in against if arm in arms), None)
    rows: list[list[Cell]] = []
    for arm in arms:
        first = select(outcomes, model=arm)[0].result
        bound = first["scores"][next(iter(first["scores"]))]["nats_per_token"]["draws"] > 0
        mean = over_runs(list(nats[arm].values()), bound=bound)
        rows.append([
            arm,
            f"{first['parameters'] / 1e6:.2f} M",
            f"{first['work'] / 1e12:,.3g}",
            mean,
            exponential(mean),
            seed_difference(nats, arm, base),
            *([] if base == "AR" else [gap_closed(nats, arm, base)]),
        ])  # fmt: skip
    columns = ["model", "parameters", "training work, TFLOP", "nats per token", "perplexity", f"nats against {base}"]
    columns += [] if base == "AR" else ["of the gap to AR closed, %"]
    seeds = max(len(each) for each in nats.values())
    note = (
        f"Held-out text of {corpus}, the same rows for all models. {interval_note(seeds)}; differences are within "
        "a seed. ≤ marks a bound."
    )
    return ReportTable(title, note, columns, rows, ("", "", "", "low", "low", "low", "high")[: len(columns)])
