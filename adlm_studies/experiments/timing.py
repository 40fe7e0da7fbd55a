"""What steps of training and texts take: seconds, operations, bytes.

All that is compared runs in turn, round after round, in one process: machines are not quiet, and what disturbs one
disturbs its neighbors in the round.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from adlm.data.loader import LoaderConfig
from adlm.distributed import DistributedContext, device_for
from adlm.errors import ConfigError
from adlm.models.costs import forward_work
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.objectives.bound import mean_of
from adlm.objectives.objective import CrossEntropy
from adlm.randomness import Noise
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.canvas import Canvas
from adlm.samplers.first_hitting import FirstHitting
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import Sample
from adlm.text_model import TextModel
from adlm.train.plan import summary
from adlm.train.run import Run
from adlm.train.trainer import Trainer
from adlm.types import Batch
from adlm_studies.experiments.study import StepContext, StudyWork
from adlm_studies.experiments.tensor_memory import peak_bytes
from adlm_studies.reference import (
    ReferenceAnelbo,
    reference_ancestral,
    reference_left_to_right,
    reference_pass_work,
    reference_step_work,
)


def in_turn(work: Mapping[str, Callable[[int], object]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """The seconds of each function in every round. Each receives the number of the round."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds):
        for name, call in work.items():
            _wait(device)
            began = time.perf_counter()
            call(number)
            _wait(device)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class TimeTraining(StudyWork):
    """Steps of several runs on the same rows, each as `fit` takes them.

    Args:
        runs: by the name in the report; all of one corpus.
    """

    alone: ClassVar[bool] = True

    runs: Mapping[str, Run]
    rounds: int = 12

    def execute(self, context: StepContext) -> dict[str, Any]:
        first = next(iter(self.runs.values()))
        if any(run.data != first.data for run in self.runs.values()):
            raise ConfigError("runs that are timed in turn must read the same corpus", subject="runs")
        device = device_for("auto")
        data = first.data.prepare(cache=context.cache, verify=False)
        vocabulary = Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)
        rows = first.train.rows(data.train.length)
        loader = LoaderConfig(rows, first.train.seed).build(data.train)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            here = DistributedContext(device=device)
            trainers = {name: Trainer(run, data, context.folder / name, here) for name, run in self.runs.items()}
            # The first step warms up; those that are timed are step 1 again and again.
            losses = {name: trainer.train_step(loader.batch(0)).loss for name, trainer in trainers.items()}
            for trainer in trainers.values():
                trainer.progress.step = 1
            bytes_ = {name: peak_bytes(_Step(trainer, loader.batch(1))) for name, trainer in trainers.items()}
            seconds = in_turn(
                {name: _Step(trainer, loader.batch(2)) for name, trainer in trainers.items()}, self.rounds, device
            )
        return {
            "threads": torch.get_num_threads(),
            "device": device.type,
            "tokens": rows * data.train.length,
            "models": {
                name: {
                    "parameters": summary(run, vocabulary=vocabulary).parameters.total,
                    "work": step_work(run, vocabulary),
                    "seconds": seconds[name],
                    "bytes": bytes_[name],
                    "loss": losses[name],
                }
                for name, run in self.runs.items()
            },
        }


class _Step:
    """A step of a run on a batch."""

    def __init__(self, trainer: Trainer, batch: Batch) -> None:
        self.trainer, self.batch = trainer, batch

    def __call__(self, number: int = 0) -> object:
        return self.trainer.train_step(self.batch)


def step_work(run: Run, vocabulary: Vocabulary) -> int:
    """Floating-point operations of a step, of a reference one too."""
    known = summary(run, vocabulary=vocabulary)
    if not isinstance(run.objective, ReferenceAnelbo):
        return known.work
    return reference_step_work(run.network, vocabulary, length=known.length, rows=known.rows)


@dataclass(frozen=True)
class TimeSampling(StudyWork):
    """Texts of models that other steps trained, by several samplers each.

    Args:
        models: the steps, by the name in the report.
        judge: the left-to-right model among them that says how likely it finds the texts.
        steps: of ancestral sampling.
        stale: passes that an anchor stage serves, at the most steps.
        texts: written at a time.
    """

    alone: ClassVar[bool] = True

    models: Mapping[str, str]
    judge: str
    steps: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    stale: tuple[int, ...] = (4, 8)
    texts: int = 16
    rounds: int = 5
    seed: int = 0

    def execute(self, context: StepContext) -> dict[str, Any]:
        models = {name: TextModel.from_pretrained(context.folder_of(step)) for name, step in self.models.items()}
        device = device_for("auto")
        for model in models.values():
            model.network.to(device).eval()
        methods = [method for name, model in models.items() for method in self._methods(name, model)]
        written: dict[int, list[Sample]] = {i: [] for i in range(len(methods))}

        def write(i: int, number: int) -> None:
            model = models[methods[i].model]
            canvas = Canvas.blank(self.texts, model.config.packing.length, model.config.vocabulary.mask_id).to(device)
            noise = Noise(self.seed).fork("efficiency", number)
            written[i].append(methods[i].write(model.network, canvas, noise))

        peaks = [peak_bytes(lambda i=i: write(i, -1)) for i in range(len(methods))]  # type: ignore[misc] # and warms up
        calls = {str(i): (lambda number, i=i: write(i, number)) for i in range(len(methods))}
        seconds = in_turn(calls, self.rounds, device)
        judge = models[self.judge].network
        return {
            "threads": torch.get_num_threads(),
            "device": device.type,
            "texts": self.texts,
            "length": models[self.judge].config.packing.length,
            "methods": [
                {
                    **method.labels(),
                    "seconds": seconds[str(i)],
                    "bytes": peaks[i],
                    **_of_samples(models[method.model], method, written[i][1:], self.texts),
                    **judged(judge, [sample.tokens for sample in written[i]]),
                }
                for i, method in enumerate(methods)
            ],
        }

    def _methods(self, name: str, model: TextModel) -> list["_Method"]:
        if model.network.causal:
            fast: Sampler = LeftToRight()
            length = model.config.packing.length
            return [
                _Method(name, "left to right", length, _by(fast)),
                _Method(
                    name,
                    "left to right",
                    length,
                    lambda m, c, n: reference_left_to_right(m, c, noise=n),
                    reference=True,
                ),
            ]
        found = []
        for steps in self.steps:
            found += [
                _Method(name, "ancestral", steps, _by(Ancestral(steps=steps))),
                _Method(name, "ancestral", steps, _by_reference(steps), reference=True),
            ]
        found.append(_Method(name, "first hitting", model.config.packing.length, _by(FirstHitting())))
        if model.network.stages == 2:
            most = max(self.steps)
            for stale in self.stale:
                sampler = Ancestral(steps=most, stale_anchors=stale)
                found.append(_Method(name, "ancestral", most, _by(sampler), stale=stale))
        return found


Write = Callable[[LanguageModel, Canvas, Noise], Sample]


class _Method(NamedTuple):
    """A way to write texts."""

    model: str
    sampler: str
    steps: int
    write: Write
    stale: int = 1
    reference: bool = False

    def labels(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if name != "write"}


def _by(sampler: Sampler) -> Write:
    return lambda model, canvas, noise: sampler.sample(model, canvas, noise=noise)


def _by_reference(steps: int) -> Write:
    return lambda model, canvas, noise: reference_ancestral(model, canvas, steps=steps, noise=noise)


def _of_samples(model: TextModel, method: _Method, samples: Sequence[Sample], texts: int) -> dict[str, float]:
    """Of a text, in the mean: rows through the network and its anchor stage, and floating-point operations."""
    network, vocabulary, length = model.config.network, model.config.vocabulary, model.config.packing.length
    count = texts * len(samples)
    calls = sum(sample.network_calls for sample in samples) / count
    anchor_calls = sum(sample.anchor_calls for sample in samples) / count
    if method.reference:
        work = calls * reference_pass_work(network, vocabulary, length)
    else:
        cached = method.sampler == "left to right"
        passes = 1 if cached else calls  # with a cache every position goes through once
        work = text_work(network, vocabulary, length, passes=passes, anchor_passes=1 if cached else anchor_calls)
    return {"calls": calls, "anchor_calls": anchor_calls, "work": work}


def text_work(
    network: NetworkConfig, vocabulary: Vocabulary, length: int, *, passes: float, anchor_passes: float
) -> float:
    """The operations of one text of `length` tokens, with each logit made once and derived weights left out.

    Args:
        passes: of the row through the network, its last stage where there are two.
        anchor_passes: of the row through the first stage of two.
    """
    work = forward_work(network, vocabulary, length)
    last = work.token
    first = 0
    if network.stages == 2:
        alone = forward_work(OneStageConfig(network.stacks[0]), vocabulary, length)
        first = alone.token + alone.output
        last -= first
    return length * (passes * last + anchor_passes * first + work.output + work.logits)


@torch.no_grad()
def judged(judge: LanguageModel, texts: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Nats per token that a left-to-right model finds in texts, with the error over texts, and their token entropy."""
    tokens = torch.cat(list(texts))
    rows = torch.arange(len(tokens), device=tokens.device)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), rows, rows)
    with judge.inference_weights():
        nats = CrossEntropy().nats(judge, batch, torch.zeros(len(tokens)), Noise(0)).double().mean(-1)
    estimate = mean_of(nats, 0)
    fractions = [row.unique(return_counts=True)[1].double() / tokens.shape[1] for row in tokens]
    entropy = torch.stack([-(fraction * fraction.log()).sum() for fraction in fractions]).mean().item()
    return {"nats": {"mean": estimate.mean, "error": estimate.error}, "entropy": entropy}
