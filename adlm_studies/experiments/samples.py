"""Texts for a report: samples that runs left, and a recording of one being written."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adlm.text_model import TextModel
from adlm_studies.experiments.study import StepContext, StepOutcome, StudyWork
from adlm_studies.report.recording import record_generation
from adlm_studies.report.sections import Frame, Player, Section, Texts


@dataclass(frozen=True)
class RecordSample(StudyWork):
    """A text as the model of another step writes it, step by step."""

    step: str
    steps: int = 48
    seed: int = 0

    def execute(self, context: StepContext) -> dict[str, Any]:
        model = TextModel.from_pretrained(context.folder_of(self.step))
        return {
            "player": asdict(
                record_generation(model, title=f"{self.step}, as it writes", seed=self.seed, steps=self.steps)
            )
        }


def player_of(result: Mapping[str, Any]) -> Player:
    """The recording that `RecordSample` made."""
    data = dict(result["player"])
    frames = [Frame(**frame) for frame in data.pop("frames")]
    return Player(**data, frames=frames)


def texts_of(outcomes: Sequence[StepOutcome]) -> list[Section]:
    """Samples of every model's first seed, and the recordings."""
    texts = [
        (f"{outcome.labels['model']}, {outcome.labels['corpus']}", text)
        for outcome in outcomes
        if outcome.result.get("texts") and outcome.labels["seed"] == 0
        for text in outcome.result["texts"][:1]
    ]
    players: list[Section] = [player_of(outcome.result) for outcome in outcomes if "player" in outcome.result]
    return [*players, *([Texts("Samples", "The first that each model wrote with seed 0.", texts)] if texts else [])]
