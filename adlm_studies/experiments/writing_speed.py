"""How fast models write: tokens per second, one text at a time, all models in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from adlm.distributed import device_for
from adlm.text_model import TextModel
from adlm_studies.experiments.study import StepContext, StudyWork
from adlm_studies.experiments.timing import in_turn


@dataclass(frozen=True)
class TimeWriting(StudyWork):
    """Texts of models that other steps trained, each with the model's own sampler.

    Tokens are those of the texts and one end token each, not what a sampler writes behind the end. A figure is the
    median over rounds, since another program slows down some of them.

    Args:
        models: names of the steps.
        texts: written at a time.
    """

    alone: ClassVar[bool] = True

    models: tuple[str, ...]
    texts: int = 1
    rounds: int = 8
    seed: int = 0

    def execute(self, context: StepContext) -> dict[str, Any]:
        device = device_for("auto")
        models = {name: TextModel.from_pretrained(context.folder_of(name)) for name in self.models}
        for model in models.values():
            model.network.to(device).eval()
        tokens: dict[str, list[int]] = {name: [] for name in models}

        def writer(name: str) -> Callable[[int], None]:
            def write(number: int) -> None:
                texts = models[name].generate(n=self.texts, seed=self.seed + number)
                tokens[name].append(sum(len(models[name].tokenizer.encode(text)) + 1 for text in texts))

            return write

        calls = {name: writer(name) for name in models}
        for name, call in calls.items():
            call(0)  # warms up
            tokens[name].clear()
        seconds = in_turn(calls, self.rounds, device)
        return {
            "threads": torch.get_num_threads(),
            "texts": self.texts,
            "tokens_per_second": {name: median_rate(tokens[name], seconds[name]) for name in models},
        }


def median_rate(tokens: list[int], seconds: list[float]) -> float:
    """The median over rounds of tokens per second."""
    return torch.tensor([n / s for n, s in zip(tokens, seconds, strict=True)]).median().item()
