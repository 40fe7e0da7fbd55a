"""Runs that begin from a model: finetuned whole, in parts, with adapters, on prompts and responses."""

import json
from dataclasses import replace

import pytest
import torch

import adlm
from adlm.data.config import Corpus
from adlm.data.documents import Lines
from adlm.data.packing import Padded
from adlm.data.prompts import Prompts
from adlm.data.tokenizer import characters
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ModelError
from adlm.models.hand_over import Continued
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.train.fit import fit
from adlm.train.init import AnchorFrom, Finetune
from adlm.train.lora import Lora
from adlm.train.lr_schedules import Constant, StableDecay
from adlm.train.metrics import read_metrics
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import FitOptions, Run, TrainConfig, ValidationConfig
from tests.errors import raises

STACK = StackConfig(width=32, heads=2, layers=2)
TRAIN = TrainConfig(
    steps=40, tokens_per_step=16 * 16, micro_batch_size=16, optimizer=Muon(lr=5e-3), lr_schedule=Constant(5)
)


def fitted(run, folder, cache, **options):
    return fit(run, folder, device="cpu", options=FitOptions(cache=cache, **options), callbacks=[])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A one-stage model of the letters in order, its data, and a cache."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "text").mkdir()
    for split, count in (("train", 300), ("valid", 40)):
        lines = ("".join(chr(97 + (i + j) % 8) for j in range(12)) for i in range(count))
        (folder / "text" / f"{split}.txt").write_text("\n".join(lines))
    data = Corpus(str(folder / "text"), "characters", Padded(16, crop=True), documents=Lines())
    run = Run(
        "base", data, OneStageConfig(STACK, tied=True), Nelbo(CountMasking()), TRAIN, ValidationConfig(num_rows=32)
    )
    fitted(run, folder / "model", folder / "cache")
    return folder, run


def bounds(folder):
    return [r["validation"]["nats"]["mean"] for r in read_metrics(folder / "metrics.jsonl") if "validation" in r]


def test_a_two_stage_model_begins_where_the_one_stage_model_stopped(base, tmp_path):
    folder, run = base
    run = replace(
        run,
        network=TwoStageConfig(STACK, 1, Continued(), tied=True),
        objective=Anelbo(CountMasking(), gamma=0.05),
        train=replace(TRAIN, steps=1, optimizer=AdamW(lr=1e-9)),
        init=AnchorFrom(str(folder / "model")),
    )
    result = fitted(run, tmp_path, folder / "cache")
    one = adlm.load(folder / "model").network
    tokens = torch.randint(0, 8, (2, 16), generator=torch.Generator().manual_seed(0))
    tokens[:, ::2] = one.vocabulary.mask_id
    expected, found = (model.logits(model.features(tokens).final.flatten(0, 1)) for model in (one, result.model))
    assert torch.allclose(expected, found, atol=1e-4)


def test_a_frozen_stage_stays_to_the_bit_and_the_other_learns(base, tmp_path):
    folder, run = base
    run = replace(
        run,
        network=TwoStageConfig(STACK, 1, Continued(), tied=True),
        objective=Anelbo(CountMasking(), gamma=0.05),
        train=replace(TRAIN, steps=5, freeze=("anchor",), ema_decay=0.5),
        init=AnchorFrom(str(folder / "model")),
    )
    model = fitted(run, tmp_path, folder / "cache").model
    one = adlm.load(folder / "model").network
    assert torch.equal(model.embedding.tokens.weight, one.embedding.tokens.weight)
    for name, parameter in one.stack.named_parameters():
        assert torch.equal(parameter, dict(model.anchor.named_parameters())[name]), name
    assert model.denoiser.blocks[0].out.weight.abs().max() > 0


def test_a_finetuned_model_begins_with_the_bound_of_the_first(base, tmp_path):
    folder, run = base
    again = replace(run, train=replace(TRAIN, steps=1, optimizer=AdamW(lr=1e-9)), init=Finetune(str(folder / "model")))
    before = bounds(folder / "model")[-1]
    assert fitted(again, tmp_path, folder / "cache").nats.mean == pytest.approx(before, abs=1e-4)


def test_a_model_of_another_shape_is_refused(base, tmp_path):
    folder, run = base
    other = replace(
        run, network=OneStageConfig(replace(STACK, layers=3), tied=True), init=Finetune(str(folder / "model"))
    )
    with raises(ModelError, subject="network.stack.layers"):
        fitted(other, tmp_path, folder / "cache")


@pytest.fixture
def prompts(base, tmp_path):
    """The answer to letters is the next four of them."""
    folder, _ = base
    for split, count in (("train", 64), ("valid", 16)):
        rows = []
        for i in range(count):
            text = "".join(chr(97 + (i + j) % 8) for j in range(8))
            rows.append(json.dumps({"prompt": text[:4], "response": text[4:]}))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return Prompts(
        str(tmp_path / "train.jsonl"), str(folder / "model"), 16, valid=str(tmp_path / "valid.jsonl"), padding=True
    )


def test_supervised_finetuning_teaches_the_response_and_never_noises_the_prompt(base, prompts, tmp_path):
    folder, run = base
    seen = []

    class Spy(Nelbo):
        def __call__(self, model, batch, *, progress, noise):
            corrupted = self.corruption(batch, model.vocabulary.mask_id, noise)
            seen.append(bool((corrupted.x_t != batch.tokens)[batch.frozen].any()))
            return super().__call__(model, batch, progress=progress, noise=noise)

    # In float32 and with the learning rate decayed to zero, so that processors agree on what was learned.
    train = replace(TRAIN, steps=200, precision="float32", lr_schedule=StableDecay(5))
    run = replace(run, data=prompts, objective=Spy(CountMasking()), train=train, init=Finetune(str(folder / "model")))
    result = fitted(run, tmp_path / "run", folder / "cache")
    assert len(seen) == 200
    assert not any(seen)
    model = adlm.TextModel(result.model, result.config, result.tokenizer)
    assert model.generate("cdef", n=8, seed=1).count("cdefghab") >= 6
    # Letters, end and predicted padding: the response follows from the prompt, so nothing is left to pay.
    assert result.nats.mean < 0.2


def test_the_tokenizer_of_the_base_model_is_asked_for(base, prompts, tmp_path):
    folder, run = base
    characters("abcdefgh").save(tmp_path / "other")
    data = replace(prompts, tokenizer=str(tmp_path / "other"))
    run = replace(run, data=data, init=Finetune(str(folder / "model")))
    with raises(ModelError, subject="data.tokenizer"):
        fitted(run, tmp_path / "run", folder / "cache")


def test_adapters_learn_alone_and_the_result_is_a_plain_model(base, prompts, tmp_path):
    pytest.importorskip("peft")
    folder, run = base
    train = replace(TRAIN, steps=30, ema_decay=0.5)
    settings = ValidationConfig(every=10, num_rows=16)
    start = Finetune(str(folder / "model"))
    run = replace(run, data=prompts, train=train, validation=settings, init=start, adapters=Lora(rank=4))
    fitted(run, tmp_path / "run", folder / "cache")
    found = [
        r["validation"]["nats"]["mean"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "validation" in r
    ]
    assert found[-1] < found[0]
    before, after = (adlm.load(path).network for path in (folder / "model", tmp_path / "run"))
    assert [name for name, _ in before.named_parameters()] == [name for name, _ in after.named_parameters()]
    same = {
        name for (name, a), b in zip(before.named_parameters(), after.parameters(), strict=True) if torch.equal(a, b)
    }
    changed = {name for name, _ in before.named_parameters()} - same
    assert changed == {f"stack.blocks.{i}.{map_}.weight" for i in range(2) for map_ in ("qkv", "up")}


def test_a_run_with_adapters_goes_on_to_the_bit(base, prompts, tmp_path):
    pytest.importorskip("peft")
    folder, run = base
    start = Finetune(str(folder / "model"))
    run = replace(run, data=prompts, train=replace(TRAIN, steps=6), init=start, adapters=Lora(rank=4, dropout=0.1))
    whole = fitted(run, tmp_path / "whole", folder / "cache").model
    fitted(replace(run, train=replace(run.train, steps=3)), tmp_path / "two", folder / "cache")
    second = fitted(run, tmp_path / "two", folder / "cache", allow_change=True).model
    for ours, theirs in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)
