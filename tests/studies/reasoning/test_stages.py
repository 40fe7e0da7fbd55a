from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.anchors.rules import Given
from adlm.config import from_json, to_json
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import train_bpe, train_words
from adlm.errors import ConfigError, DataError, ModelError, OutOfRange, UnknownName
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.transformers_causal import TransformersCausalConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.registry import register
from adlm.train.callbacks import Callback
from adlm.train.init import Finetune, Pretrained, RandomInit
from adlm.train.run import Run
from adlm_studies.reasoning.diffusion import DiffusionReasoningData
from adlm_studies.reasoning.methods import METHODS, Anchored, Chain, Coconut
from adlm_studies.reasoning.objective import ThoughtCrossEntropy
from adlm_studies.reasoning.problem import Problem, Task
from adlm_studies.reasoning.stages import (
    PUBLISHED,
    Curriculum,
    Epochs,
    curriculum_stages,
    diffusion_stage,
    method_for,
    starting_model,
    train_in_stages,
)
from adlm_studies.reasoning.tasks import TASKS
from adlm_studies.reasoning.vocabulary import FinetuneWithNewTokens
from tests.errors import raises


@register("reasoning_task")
@dataclass(frozen=True)
class Doubles(Task):
    name = "doubles"

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(f"twice {n}?", (f"<<{n}+{n}={2 * n}>>",), str(2 * n), (str(n), str(2 * n))) for n in range(8)]

    def origin(self, split: str) -> str:
        return "a test"

    def parse_answer(self, text: str) -> str | None:
        return text.partition("####")[2].strip() or None


NETWORK = OneStageConfig(StackConfig(width=8, heads=2, layers=1, attention="causal"))
CURRICULUM = Curriculum(Doubles(), Anchored(1), NETWORK, Epochs(1, 1, 3), batch_size=4, scale=0.5)


def test_published_epochs_are_those_of_the_paper():
    assert PUBLISHED["gsm8k"].epochs.of(method_for("gsm8k", "anchored").stages) == [1, 3, 21]
    assert PUBLISHED["prosqa"].epochs.of(method_for("prosqa", "anchored").stages) == [5] * 6 + [20]
    assert (method_for("gsm8k", "anchored"), method_for("prosqa", "anchored")) == (Anchored(2), Anchored(6, True))
    assert method_for("prontoqa", "anchored") == Anchored(6)
    assert PUBLISHED["gsm8k"].epochs.of(Chain().stages) == [25]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_epochs_and_every_method(task):
    for name in METHODS:
        assert method_for(task, name).name == name
        assert len(PUBLISHED[task].epochs.of(method_for(task, name).stages)) == method_for(task, name).stages


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 99), st.integers(1, 12))
def test_epochs_add_up_unless_stages_alone_take_longer(first, each, total, stages):
    epochs = Epochs(first, each, total).of(stages)
    assert len(epochs) == stages
    assert min(epochs) >= 1
    least = first + each * (stages - 1) if stages > 1 else each
    assert sum(epochs) == max(total, least)


def test_each_stage_starts_from_the_model_of_the_one_before(tmp_path):
    curriculum = replace(CURRICULUM, method=Coconut(1, 2))
    first, second, third = curriculum_stages(curriculum, tmp_path)
    assert [stage.folder for stage in (first, second, third)] == [
        tmp_path / "stages" / "0", tmp_path / "stages" / "1", tmp_path,
    ]  # fmt: skip
    assert [stage.run.init for stage in (first, second, third)] == [
        RandomInit(), Finetune(str(first.folder)), Finetune(str(second.folder)),
    ]  # fmt: skip
    assert [stage.run.objective for stage in (first, second, third)] == [ThoughtCrossEntropy(n) for n in (0, 2, 2)]
    assert [stage.run.train.steps for stage in (first, second, third)] == [1, 1, 1]
    for stage in (first, second, third):
        table = stage.run.data.prepare().train
        assert stage.run.train.rows(table.length) == 4
    best = curriculum_stages(replace(curriculum, best=True), tmp_path)
    assert best[1].run.init == Finetune(str(first.folder / "best"))
    assert best[1].run.validation.every == 2


class Attending:
    def __init__(self):
        self.trained = []

    @contextmanager
    def __call__(self, stage, number, count):
        self.trained.append((number, count))
        yield Callback()


def test_stages_that_are_done_are_not_trained_again(tmp_path):
    stages = curriculum_stages(CURRICULUM, tmp_path)
    seen = Attending()
    assert train_in_stages(stages, device="cpu", callbacks=seen, curves=False) == tmp_path
    assert seen.trained == [(0, 2), (1, 2)]
    _, config, tokenizer = load_model(tmp_path)
    assert from_json(Run, config.run) == stages[-1].run
    assert tokenizer.backend.token_to_id("<ant>") is not None
    again = Attending()
    train_in_stages(curriculum_stages(CURRICULUM, tmp_path), device="cpu", callbacks=again, curves=False)
    assert again.trained == []
    other = curriculum_stages(replace(CURRICULUM, anchor_weight=0.5), tmp_path)
    assert not any(stage.finished for stage in other)
    with raises(ConfigError, subject="objective.anchor_weight"):
        train_in_stages(other, device="cpu", callbacks=again, curves=False)
    with raises(ConfigError, subject="stages"):
        train_in_stages([])


def test_a_diffusion_model_has_one_run_as_long_as_all_stages_with_room_for_the_longest_trace(tmp_path):
    stage = diffusion_stage(replace(CURRICULUM, method=Anchored(2)), tmp_path, Nelbo())
    assert isinstance(stage.run.data, DiffusionReasoningData)
    assert (stage.run.data.most, stage.run.train.steps, stage.folder) == (2, 3, tmp_path)
    train = stage.run.data.prepare().train
    assert len(train) == 8
    assert diffusion_stage(replace(CURRICULUM, method=Chain()), tmp_path, Nelbo()).run.data.most == 0
    with raises(ConfigError, subject="method"):
        diffusion_stage(replace(CURRICULUM, method=Coconut(1)), tmp_path, Nelbo())
    with raises(ConfigError, subject="longest"):
        diffusion_stage(replace(CURRICULUM, method=Chain(), longest=99), tmp_path, Nelbo())


def test_kinds_by_name_are_fresh_and_see_what_their_kind_sees():
    ar, adlm = starting_model("ar"), starting_model("adlm")
    assert (ar.network.stack.causal, ar.objective, ar.init, ar.tokenizer) == (True, None, RandomInit(), "words")
    assert (adlm.network.anchor.causal, type(adlm.objective)) == (False, Anelbo)
    assert starting_model("a2r").network.anchor.causal
    with raises(UnknownName, kind="base"):
        starting_model("aldm")
    with raises(UnknownName, kind="size"):
        starting_model("ar", "nanno")


@pytest.mark.parametrize("causal", [True, False], ids=["left to right", "masked"])
def test_a_model_of_this_package_to_begin_with_keeps_its_network_and_tokenizer(tmp_path, causal):
    tokenizer = train_bpe(["twice what is 1 and"], 300)
    network = replace(NETWORK, stack=replace(NETWORK.stack, attention="causal" if causal else "full"))
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(8))
    torch.manual_seed(0)
    save_model(tmp_path / "old", config.build(), config, tokenizer)
    name = str(tmp_path / "old")
    base = starting_model(name)
    assert (base.network, base.init, base.tokenizer) == (network, FinetuneWithNewTokens(name), name)
    assert (base.objective is None) == causal
    if causal:
        curriculum = replace(CURRICULUM, init=base.init, tokenizer=name, method=Chain(), scale=0.1)
        out = train_in_stages(
            curriculum_stages(curriculum, tmp_path / "new"), device="cpu", callbacks=Attending(), curves=False
        )
        assert load_model(out)[2].backend.token_to_id("<ant>") == tokenizer.vocab_size + 1


def test_a_tokenizer_that_knows_little_of_the_task_is_refused(tmp_path):
    tokenizer = train_words(["something else"])
    config = ModelConfig(NETWORK, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(8))
    save_model(tmp_path, config.build(), config, tokenizer)
    base = starting_model(str(tmp_path))
    with raises(DataError, subject="tokenizer"):
        curriculum_stages(replace(CURRICULUM, init=base.init, tokenizer=base.tokenizer), tmp_path / "new")


def test_settings_of_diffusion_models_are_used_or_refused(tmp_path):
    objective = starting_model("adlm").objective
    curriculum = replace(CURRICULUM, network=starting_model("adlm").network)
    stage = diffusion_stage(replace(curriculum, gamma=0.3, rule=Given()), tmp_path, objective)
    assert (stage.run.objective.gamma, stage.run.objective.rule) == (0.3, Given())
    assert diffusion_stage(curriculum, tmp_path, objective).run.objective == objective
    with raises(ConfigError, subject="anchor_weight"):
        diffusion_stage(replace(curriculum, anchor_weight=7), tmp_path, objective)


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan")])
def test_a_scale_that_is_none_is_refused(scale):
    with raises(OutOfRange, subject="scale"):
        replace(CURRICULUM, scale=scale)


def test_the_model_in_the_box_can_be_begun_with():
    base = starting_model("box")
    assert base.objective is not None
    assert (Path(base.tokenizer) / "tokenizer.json").is_file()


def test_a_model_of_transformers_to_begin_with_is_known_by_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8}')
    base = starting_model(str(tmp_path))
    assert isinstance(base.network, TransformersCausalConfig)
    assert (base.init, base.tokenizer, base.objective) == (Pretrained(str(tmp_path)), str(tmp_path), None)
    (tmp_path / "config.json").write_text("nonsense")
    with raises(ModelError, subject="config.json"):
        starting_model(str(tmp_path))


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"batch_size": 0}, {"scale": float("nan")}], ids=str)
def test_settings_that_train_nothing_are_refused(wrong):
    with raises(OutOfRange, subject=next(iter(wrong))):
        replace(CURRICULUM, **wrong)
    with raises(OutOfRange, subject="epochs"):
        Epochs(0, 1, 1)


def test_a_curriculum_comes_back_from_json():
    assert from_json(Curriculum, to_json(CURRICULUM)) == CURRICULUM
