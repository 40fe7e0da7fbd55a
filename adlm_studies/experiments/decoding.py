"""How fast models that read blocks, whole rows or from left to right write, in tokens per second."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from adlm.distributed import device_for
from adlm.randomness import Noise
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.ordered import Ordered
from adlm.samplers.paces import PerStep
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel
from adlm_studies.experiments.study import StepContext, StudyWork
from adlm_studies.experiments.timing import in_turn
from adlm_studies.report.sections import Cell, ReportTable


@dataclass(frozen=True)
class TimeDecoding(StudyWork):
    """Write rows with models that other steps trained, several tokens per pass, in turn.

    Args:
        models: the steps, by the name in the report.
        per_pass: tokens that masked models write per pass of the network. Left-to-right ones always write one.
        texts: written at a time.
    """

    alone: ClassVar[bool] = True

    models: Mapping[str, str]
    per_pass: tuple[int, ...] = (1, 4)
    texts: int = 1
    rounds: int = 10
    seed: int = 0

    def execute(self, context: StepContext) -> dict[str, Any]:
        device = device_for("auto")
        models = {name: TextModel.from_pretrained(context.folder_of(step)) for name, step in self.models.items()}
        ways = [(name, count) for name, model in models.items() for count in self._paces(model)]

        def write(name: str, count: int, number: int) -> None:
            model = models[name]
            canvas = Canvas.blank(self.texts, model.config.packing.length, model.config.vocabulary.mask_id).to(device)
            network = model.network.to(device).eval()
            decoder_for(model, count).sample(network, canvas, noise=Noise(self.seed).fork("decoding", number))

        for name, count in ways:  # warms up
            write(name, count, -1)
        calls = {str(i): partial(write, *way) for i, way in enumerate(ways)}
        seconds = in_turn(calls, self.rounds, device)
        return {
            "threads": torch.get_num_threads(),
            "device": device.type,
            "texts": self.texts,
            "ways": [
                {
                    "model": name,
                    "per_pass": count,
                    "tokens": self.texts * models[name].config.packing.length,
                    "seconds": seconds[str(i)],
                }
                for i, (name, count) in enumerate(ways)
            ],
        }

    def _paces(self, model: TextModel) -> tuple[int, ...]:
        return (1,) if _block_size(model) == 1 else self.per_pass


def _block_size(model: TextModel) -> int:
    """Tokens of a block; 1 reads from left to right, 0 whole rows."""
    return 1 if model.network.causal else model.network.block_size


def decoder_for(model: TextModel, per_pass: int) -> Sampler:
    """The sampler that writes so many tokens per pass, the surest first, in the way that the model reads."""
    size = _block_size(model)
    if size == 1:
        return LeftToRight()
    inner = Ordered(pace=PerStep(per_pass))
    return Blocks(inner=inner, size=size) if size else inner


def decoding_table(result: Mapping[str, Any]) -> ReportTable:
    """Tokens per second of each model, at its fastest round, and beside AR's."""
    speeds = {(way["model"], way["per_pass"]): way["tokens"] / min(way["seconds"]) for way in result["ways"]}
    base = speeds.get(("AR", 1))
    rows: list[list[Cell]] = [
        [model, str(count), speed, speed / base if base else None] for (model, count), speed in speeds.items()
    ]
    length = result["ways"][0]["tokens"] // result["texts"]
    note = (
        f"Batches of {result['texts']}, rows of {length} tokens, seed 0, {result['threads']} threads on "
        f"{result['device']}; the fastest of {len(result['ways'][0]['seconds'])} rounds in turn. Blocks and AR cache "
        "keys and values. Blocks of b tokens write at most b per pass, the most certain first."
    )
    columns = ("model", "tokens per pass", "tokens per second", "times AR")
    return ReportTable("Decoding", note, columns, rows, ("", "", "high", "high"))
