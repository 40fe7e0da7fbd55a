"""Runs from beginning to end, in this process. Killed ones and several processes are in files of their own."""

import json
import math
from dataclasses import replace

import pytest
import torch

import adlm
from adlm.config import from_json, to_json
from adlm.data.config import Corpus
from adlm.data.packing import Wrapped
from adlm.data.synthetic import Synthetic
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.models.hand_over import Continued, Logits
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.train.callbacks import Callback
from adlm.train.fit import fit
from adlm.train.lr_schedules import Constant, StableDecay
from adlm.train.metrics import read_metrics
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import CheckpointConfig, FitOptions, Run, TrainConfig, ValidationConfig
from adlm.train.run_folder import read_run
from tests.errors import raises
from tests.train.processes import Messages

STACK = StackConfig(width=32, heads=2, layers=2, convolution=3)
RUN = Run(
    "small",
    Synthetic(vocabulary=40, length=16, count=64),
    OneStageConfig(STACK, tied=True),
    Nelbo(CountMasking()),
    TrainConfig(
        steps=6, tokens_per_step=8 * 16, micro_batch_size=4, optimizer=Muon(lr=5e-3), lr_schedule=StableDecay(2)
    ),
    ValidationConfig(every=2, num_rows=6, draws=2, micro_batch_size=4),
    CheckpointConfig(every=2),
)


def fitted(run, folder, *callbacks, **options):
    return fit(run, folder, device="cpu", options=FitOptions(**options), callbacks=callbacks)


def losses(folder):
    return [record["loss"] for record in read_metrics(folder / "metrics.jsonl") if "loss" in record]


def validations(folder):
    return [record["validation"] for record in read_metrics(folder / "metrics.jsonl") if "validation" in record]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def with_train(run=RUN, **changes):
    return replace(run, train=replace(run.train, **changes))


@pytest.fixture(scope="module")
def alphabet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("abcdefgh" * 800)
    (folder / "valid.txt").write_text("abcdefgh" * 80)
    return Corpus(str(folder), "characters", Wrapped(16, separated=False))


@pytest.mark.parametrize(
    ("network", "objective"),
    [
        (OneStageConfig(replace(STACK, attention="causal"), tied=True), CrossEntropy()),
        (OneStageConfig(STACK, tied=True), Nelbo(CountMasking())),
        (TwoStageConfig(STACK, 1, Continued(), tied=True), Anelbo(CountMasking(), gamma=0.05)),
        (TwoStageConfig(STACK, 1, Logits()), Anelbo(CountMasking(), gamma=0.05)),
    ],
    ids=["AR", "MDLM", "ADLM continued", "ADLM logits"],
)
def test_every_model_learns_a_pattern(alphabet, network, objective, tmp_path):
    train = TrainConfig(120, 16 * 16, 16, Muon(lr=5e-3), StableDecay(5))
    run = Run("pattern", alphabet, network, objective, train, ValidationConfig(every=60, num_rows=32))
    result = fitted(run, tmp_path / "run", cache=tmp_path / "cache")
    found = [
        record["validation"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl") if "validation" in record
    ]
    # A row holds one of eight phases: log 8 / 16 = 0.13 nats per token is the least possible.
    assert result.nats.mean < 0.8 < found[0]["nats"]["mean"] + 0.8
    assert found[-1]["best"]


def test_a_finished_run_leaves_a_model_that_loads(tmp_path):
    result = fitted(RUN, tmp_path)
    for folder in (tmp_path, tmp_path / "best"):
        model = adlm.load(folder)
        assert model.config.run == to_json(RUN)
        assert model.generate(n=1, seed=0)
    assert torch.equal(weights(adlm.load(tmp_path).network), weights(result.model))
    assert (tmp_path / "checkpoints" / "step-000000006" / "state.json").exists()
    assert "by `adlm train`" in (tmp_path / "README.md").read_text()


def test_the_config_of_a_run_can_be_trained_again_and_gives_the_same_model(tmp_path):
    first = fitted(RUN, tmp_path / "first")
    again = read_run(tmp_path / "first" / "config.json")
    assert again == RUN
    second = fitted(again, tmp_path / "second")
    assert torch.equal(weights(first.model), weights(second.model))


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path):
    found = [weights(fitted(with_train(seed=seed), tmp_path / str(i)).model) for i, seed in enumerate((0, 0, 1))]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_run_leaves_the_callers_random_numbers_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    fitted(RUN, tmp_path)
    assert torch.equal(torch.rand(1), before)


def test_micro_batches_give_the_losses_of_one_large_batch(tmp_path):
    for name, rows in (("whole", 8), ("parts", 2), ("uneven", 3)):
        fitted(with_train(micro_batch_size=rows, optimizer=AdamW(lr=5e-3), precision="float32"), tmp_path / name)
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "parts"), abs=1e-6)
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "uneven"), abs=1e-6)


def test_in_bfloat16_a_run_loses_nearly_as_in_float32(tmp_path):
    for name in ("float32", "bfloat16"):
        fitted(with_train(precision=name), tmp_path / name)
    assert losses(tmp_path / "bfloat16") != losses(tmp_path / "float32")
    assert losses(tmp_path / "bfloat16") == pytest.approx(losses(tmp_path / "float32"), rel=5e-3)


def test_a_run_in_two_sittings_is_the_run_in_one_to_the_bit(tmp_path):
    run = replace(
        with_train(ema_decay=0.9, optimizer=AdamW(lr=1e-3)),
        network=OneStageConfig(replace(STACK, dropout=0.1), tied=True),
    )
    begun = with_train(run, steps=4, lr_schedule=Constant(2))
    run = with_train(run, lr_schedule=Constant(2))
    whole = fitted(run, tmp_path / "constant")
    fitted(begun, tmp_path / "two")
    said = Messages()
    second = fitted(run, tmp_path / "two", said, allow_change=True)
    assert any("resuming after step 4" in line for line in said.lines)
    assert losses(tmp_path / "two") == losses(tmp_path / "constant")
    assert torch.equal(weights(second.model), weights(whole.model))


def test_a_run_that_is_done_is_not_trained_again(tmp_path):
    first = fitted(RUN, tmp_path)
    stamp = (tmp_path / "checkpoints" / "step-000000006").stat().st_mtime_ns
    said = Messages()
    second = fitted(RUN, tmp_path, said)
    assert any("all 6 steps are done already" in line for line in said.lines)
    assert torch.equal(weights(first.model), weights(second.model))
    assert second.nats == first.nats
    assert (tmp_path / "checkpoints" / "step-000000006").stat().st_mtime_ns == stamp


def test_resume_never_starts_again(tmp_path):
    fitted(RUN, tmp_path)
    first = losses(tmp_path)
    fitted(RUN, tmp_path, resume="never")
    assert losses(tmp_path) == first
    fitted(with_train(seed=5), tmp_path, resume="never")
    assert losses(tmp_path) != first


def test_averaged_weights_are_kept_and_validated_when_asked(tmp_path):
    last = fitted(RUN, tmp_path / "last")
    mean = fitted(with_train(ema_decay=0.9), tmp_path / "mean")
    assert losses(tmp_path / "last") == losses(tmp_path / "mean")
    assert not torch.equal(weights(last.model), weights(mean.model))
    assert last.nats.mean != mean.nats.mean


def test_the_best_model_is_kept_beside_the_last(tmp_path):
    """With a rate so high that it gets worse in the end."""
    run = with_train(
        replace(RUN, validation=replace(RUN.validation, every=1)), optimizer=AdamW(lr=0.5), lr_schedule=Constant(0)
    )
    result = fitted(run, tmp_path)
    found = validations(tmp_path)
    means = [each["nats"]["mean"] for each in found]
    assert [each["best"] for each in found] == [mean == min(means[: i + 1]) for i, mean in enumerate(means)]
    best = adlm.load(tmp_path / "best")
    assert torch.equal(weights(best.network), weights(result.model)) == (means[-1] == min(means))
    assert f"{min(means):.6g}" in (tmp_path / "best" / "README.md").read_text()


def test_a_run_without_progress_stops_early_and_stays_stopped(tmp_path):
    settings = replace(RUN.validation, every=1, patience=2)
    run = with_train(replace(RUN, validation=settings), optimizer=AdamW(lr=1e-30), lr_schedule=Constant(0), steps=50)
    # Nothing moves, so the first validation stays the best.
    result = fitted(run, tmp_path)
    assert result.steps == 3
    assert fitted(run, tmp_path).steps == 3
    assert (tmp_path / "model.safetensors").exists()


def test_samples_of_a_callback_are_recorded(tmp_path):
    calls = []

    class Texts(Callback):
        def samples(self, trainer):
            step = trainer.progress.step
            calls.append((step, trainer.model.training, torch.is_grad_enabled()))
            return [f"text at {step}"]

    fitted(RUN, tmp_path, Texts())
    assert calls == [(step, False, False) for step in (2, 4, 6)]
    found = validations(tmp_path)
    assert found[0]["samples"] == ["text at 2"]


def test_a_corpus_without_held_out_text_is_trained_without_validation(tmp_path):
    (tmp_path / "train.txt").write_text("abcdefgh" * 400)
    data = Corpus(str(tmp_path / "*.txt"), "characters", Wrapped(16, separated=False))
    if data.prepare(cache=tmp_path / "cache").valid is not None:
        pytest.skip("the file was cut into splits")
    result = fitted(replace(RUN, data=data), tmp_path / "run", cache=tmp_path / "cache")
    assert result.nats is None
    assert not (tmp_path / "run" / "best").exists()


def test_the_loss_divides_by_the_tokens_of_the_global_batch(tmp_path):
    """Constant logits cost log(V - 1) a token, whatever the micro-batches."""
    run = replace(with_train(steps=1, optimizer=AdamW(lr=1e-30)), network=OneStageConfig(STACK))
    fitted(run, tmp_path)
    assert losses(tmp_path) == pytest.approx([math.log(39)], rel=1e-5)


def test_batches_that_cannot_be_are_refused(tmp_path):
    with raises(ConfigError, subject="train.tokens_per_step"):
        fitted(with_train(tokens_per_step=100), tmp_path)
    with raises(DataError, subject="synthetic-train"):
        fitted(with_train(tokens_per_step=16 * 128), tmp_path)


@pytest.mark.parametrize(
    ("make", "subject"),
    [
        (lambda: TrainConfig(steps=0), "train.steps"),
        (lambda: TrainConfig(micro_batch_size=0), "train.micro_batch_size"),
        (lambda: TrainConfig(grad_clip=0.0), "train.grad_clip"),
        (lambda: TrainConfig(ema_decay=1.0), "train.ema_decay"),
        (lambda: TrainConfig(seed=-1), "train.seed"),
        (lambda: ValidationConfig(draws=0), "validation.draws"),
        (lambda: ValidationConfig(patience=-1), "validation.patience"),
        (lambda: CheckpointConfig(every=0), "checkpoint.every"),
        (lambda: CheckpointConfig(keep=1), "checkpoint.keep"),
        (lambda: FitOptions(resume="always"), "resume"),
        (lambda: FitOptions(on_nonfinite="ignore"), "on_nonfinite"),
        (lambda: FitOptions(workers=-1), "workers"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, subject):
    with raises(OutOfRange, subject=subject):
        make()


def test_a_folder_with_a_model_of_other_origin_is_left_alone(tmp_path):
    result = fitted(RUN, tmp_path / "run")
    adlm.TextModel(result.model, replace(result.config, run=None), result.tokenizer).save(tmp_path / "mine")
    with raises(ConfigError, subject=str(tmp_path / "mine")):
        fitted(RUN, tmp_path / "mine")


def test_no_more_checkpoints_are_kept_than_asked_for(tmp_path):
    run = replace(RUN, checkpoint=CheckpointConfig(every=1, keep=3))
    fitted(run, tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        f"step-00000000{i}" for i in (4, 5, 6)
    ]


def test_recomputed_activations_change_no_loss(tmp_path):
    run = replace(RUN, network=OneStageConfig(replace(STACK, dropout=0.1), tied=True))
    fitted(run, tmp_path / "stored")
    fitted(with_train(run, activation_checkpointing=True), tmp_path / "again")
    assert losses(tmp_path / "stored") == losses(tmp_path / "again")


def test_every_run_survives_json():
    run = with_train(freeze=("embedding",), ema_decay=0.5)
    assert from_json(Run, json.loads(json.dumps(to_json(run)))) == run
