"""What a run is computed with is chosen by what is faster, stored with the run, and kept when it is resumed."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import adlm.train.execution as module
from adlm.config import from_json, to_json
from adlm.data.synthetic import Synthetic
from adlm.errors import OutOfRange
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Nelbo
from adlm.train.execution import EXECUTION, Execution, choose, measure, resumed, stored
from adlm.train.fit import fit
from adlm.train.lr_schedules import Constant
from adlm.train.plan import plan
from adlm.train.run import CheckpointConfig, FitOptions, Run, TrainConfig, ValidationConfig
from tests.errors import raises

CPU, WORDS = torch.device("cpu"), Vocabulary(20, 19)
NETWORK = OneStageConfig(StackConfig(8, 2, 3, input_reinjection=1))
RUN = Run(
    "small",
    Synthetic(20, 8, count=64),
    NETWORK,
    Nelbo(),
    TrainConfig(4, 32, 4, lr_schedule=Constant(1)),
    ValidationConfig(every=0, num_rows=1, draws=1),
    CheckpointConfig(2),
)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A cache of its own, and nothing remembered from other tests."""
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    module._measured.cache_clear()
    yield tmp_path / "cache"
    module._measured.cache_clear()


def measures(monkeypatch, float32, bfloat16):
    """A CPU that has bfloat16 instructions and takes this long; returns the shapes that were measured."""
    asked = []

    def measured(network, vocabulary, length):
        asked.append((network, vocabulary, length))
        return {"float32": float32, "bfloat16": bfloat16}

    monkeypatch.setattr(module, "cpu_multiplies_bf16", lambda: True)
    monkeypatch.setattr(module, "measure", measured)
    return asked


@pytest.mark.parametrize(("float32", "bfloat16", "expected"), [(1.0, 1.5, "float32"), (3.0, 1.5, "bfloat16")])
def test_auto_takes_what_was_measured_as_faster_and_measures_once(monkeypatch, cache, float32, bfloat16, expected):
    asked = measures(monkeypatch, float32, bfloat16)
    found = choose("auto", NETWORK, WORDS, 8, CPU, alone=False)
    assert found.precision == expected
    assert found.bf16 == (expected == "bfloat16")
    assert "measured" in found.why
    module._measured.cache_clear()  # as another process would, it reads the file
    assert choose("auto", NETWORK, WORDS, 8, CPU, alone=False) == found
    assert len(asked) == 1
    assert asked[0][0].layers == (1,)
    for file in cache.rglob("*.json"):
        file.write_text("damaged")
    module._measured.cache_clear()
    choose("auto", NETWORK, WORDS, 8, CPU, alone=False)
    choose("auto", NETWORK, WORDS, 16, CPU, alone=False)
    assert [length for _, _, length in asked] == [8, 8, 16]


def test_without_instructions_nothing_is_measured(monkeypatch):
    asked = measures(monkeypatch, 2.0, 1.0)
    monkeypatch.setattr(module, "cpu_multiplies_bf16", lambda: False)
    assert choose("auto", NETWORK, WORDS, 8, CPU, alone=False).precision == "float32"
    assert not asked


def test_what_is_asked_for_is_taken(monkeypatch):
    asked = measures(monkeypatch, 1.0, 2.0)
    assert choose("bfloat16", NETWORK, WORDS, 8, CPU, alone=False).bf16
    assert not asked
    with raises(OutOfRange, subject="train.precision"):
        TrainConfig(precision="float16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "network",
    [
        NETWORK.variant(layers=(1,), input_reinjection=0),
        OneStageConfig(StackConfig(8, 2, 1, attention="causal")),
        OneStageConfig(StackConfig(8, 2, 1, condition=4, timed=True)),
        TwoStageConfig(StackConfig(8, 2, 1, convolution=3), 1),
    ],
    ids=["masked", "causal", "timed", "two stages"],
)
def test_measuring_takes_time_in_both_and_leaves_random_numbers_alone(network):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert min(measure(network, WORDS, 8).values()) > 0
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("gain", "threads"), [(1.6, 4), (1.0, 1), (0.1, 1)])
def test_several_threads_are_used_if_they_are_faster(monkeypatch, gain, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(module, "thread_gain", lambda count: gain)
    assert choose("float32", NETWORK, WORDS, 8, CPU, alone=True).threads == threads
    assert choose("float32", NETWORK, WORDS, 8, CPU, alone=False).threads == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert choose("float32", NETWORK, WORDS, 8, CPU, alone=True).threads == 4


def test_measuring_threads_leaves_their_number_alone():
    before = torch.get_num_threads()
    assert module.thread_gain(2) > 0
    assert torch.get_num_threads() == before
    with Execution("cpu", "float32", "", 2, "").applied():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_a_resumed_run_keeps_what_was_chosen(monkeypatch, tmp_path, cache):
    measures(monkeypatch, 2.0, 1.0)
    out = tmp_path / "run"
    half = replace(RUN, train=replace(RUN.train, steps=2))
    fit(half, out, device="cpu", callbacks=[])
    begun = stored(out)
    assert begun is not None
    assert begun.bf16
    assert begun.threads == torch.get_num_threads()
    measures(monkeypatch, 1.0, 2.0)
    module._measured.cache_clear()
    shutil.rmtree(cache)
    assert plan(RUN, vocabulary=WORDS, folder=out).execution == begun
    assert not plan(RUN, vocabulary=WORDS).execution.bf16
    fit(RUN, out, device="cpu", callbacks=[], options=FitOptions(allow_change=True))
    assert stored(out) == begun
    module._measured.cache_clear()
    shutil.rmtree(cache)
    fit(RUN, out, device="cpu", callbacks=[], options=FitOptions(resume="never"))
    again = stored(out)
    assert again is not None
    assert not again.bf16


def test_what_is_asked_for_later_holds(monkeypatch):
    before = Execution("cpu", "bfloat16", "measured", 3, "measured")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert resumed(before, "auto", CPU) == before
    assert resumed(before, "auto", torch.device("cuda")) is None
    changed = resumed(before, "float32", CPU)
    assert changed is not None
    assert (changed.precision, changed.threads) == ("float32", 3)
    assert resumed(changed, "auto", CPU) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kept = resumed(before, "auto", CPU)
    assert kept is not None
    assert kept.threads == torch.get_num_threads()


def test_a_damaged_record_is_as_none(tmp_path):
    for content in ("", "[]", json.dumps({"device": "cpu"})):
        (tmp_path / EXECUTION).write_text(content)
        assert stored(tmp_path) is None


@pytest.mark.parametrize(("old", "new"), [(True, "auto"), (False, "float32")])
def test_the_setting_of_older_files_is_read(old, new):
    data = {**to_json(TrainConfig()), "bf16": old}
    del data["precision"]
    assert from_json(TrainConfig, data).precision == new


def test_a_run_keeps_its_library_unless_that_would_round(monkeypatch):
    before = Execution("cpu", "float32", "measured", 1, "measured", "onednn", "faster")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(module, "keeps_float32", lambda library: True)
    kept = resumed(before, "auto", CPU)
    assert kept is not None
    assert kept.library == "onednn"
    monkeypatch.setattr(module, "keeps_float32", lambda library: False)
    kept = resumed(before, "auto", CPU)
    assert kept is not None
    assert kept.library == "default"


def test_a_run_of_an_older_version_keeps_the_library_it_had(tmp_path):
    older = {"device": "cpu", "precision": "float32", "why": "", "threads": 1, "why_threads": ""}
    (tmp_path / EXECUTION).write_text(json.dumps(older))
    found = stored(tmp_path)
    assert found is not None
    assert found.library == "default"
