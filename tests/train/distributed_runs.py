"""Runs that are trained by one process and by two; as a program, one of the two: RANK FOLDER NAME ..."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from adlm.data.synthetic import Synthetic
from adlm.diffusion.corruption import CountMasking, UniformMasking
from adlm.diffusion.times import Antithetic
from adlm.errors import AdlmError
from adlm.models.hand_over import Continued
from adlm.models.language_model import LanguageModel
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.randomness import Noise
from adlm.train.callbacks import Callback
from adlm.train.fit import fit
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import CheckpointConfig, FitOptions, Run, TrainConfig, ValidationConfig
from adlm.train.trainer import Trainer, TrainResult
from adlm.types import Batch, LossTerms

STACK = StackConfig(width=32, heads=2, layers=2, dropout=0.1, condition=16)
# Four micro-batches of two rows: four on one process, two on each of two.
TRAIN = TrainConfig(steps=6, tokens_per_step=8 * 16, micro_batch_size=2, ema_decay=0.9, optimizer=AdamW(lr=2e-3))
DATA = Synthetic(vocabulary=60, length=16, count=64)


@dataclass(frozen=True)
class Poisoned(Nelbo):
    """Not finite for one sample, and only there."""

    sample: int = -1

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        terms = super().__call__(model, batch, progress=progress, noise=noise)
        return terms._replace(loss_sum=terms.loss_sum / (1 - (batch.index == self.sample).any().float()))


def _run(name: str, network, objective, train=TRAIN) -> Run:
    settings = ValidationConfig(every=3, num_rows=11, draws=2, micro_batch_size=2)
    return Run(name, DATA, network, objective, train, settings, CheckpointConfig(every=3))


RUNS = {
    "published": _run("published", TwoStageConfig(STACK, 1), Anelbo(UniformMasking(times=Antithetic(8)), gamma=0.05)),
    "tied": _run(
        "tied",
        TwoStageConfig(STACK, 1, Continued(), tied=True),
        Anelbo(CountMasking(), gamma=0.05),
        replace(TRAIN, optimizer=Muon()),
    ),
    "gamma0": _run("gamma0", TwoStageConfig(STACK, 1, Continued()), Anelbo(CountMasking(), gamma=0.0)),
    "ar": _run("ar", OneStageConfig(replace(STACK, attention="causal", condition=0)), CrossEntropy()),
    "frozen": _run(
        "frozen", TwoStageConfig(STACK, 1), Anelbo(CountMasking(), gamma=0.05), replace(TRAIN, freeze=("anchor",))
    ),
    "poisoned": _run("poisoned", OneStageConfig(STACK), Poisoned(CountMasking(), sample=7)),
}


class Largest(Callback):
    """Something that takes several passes: the largest logit."""

    def samples(self, trainer: Trainer) -> list[str]:
        model, tokens = trainer.model, torch.arange(4)[None] % trainer.config.vocabulary.size
        with model.inference_weights():
            return [f"{model.logits(model.features(tokens).final[0]).max().item():.5f}" for _ in range(2)]


def trained(name: str, folder: Path, *, shard: bool = False) -> TrainResult:
    return fit(RUNS[name], folder, device="cpu", options=FitOptions(shard=shard), callbacks=[Largest()])


if __name__ == "__main__":
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    for i, name in enumerate(sys.argv[3:]):
        os.environ["MASTER_PORT"] = str(port + i)
        which, _, way = name.partition("/")
        try:
            trained(which, folder / which / way, shard=way == "fsdp")
        except AdlmError as error:
            (folder / which / f"{way}-error-{os.environ['RANK']}").write_text(str(error))
