"""The whole way: source, data, run, report."""

import json
from dataclasses import replace

import pytest

import adlm
from adlm.adapt import AdaptOptions, Target, adapt, open_left_to_right, planned_run
from adlm.adapt.measures import _judged as judged
from adlm.data.config import Prompts
from adlm.data.packing import Wrapped
from adlm.data.together import Together
from adlm.errors import ConfigError, ModelError, OutOfRange
from adlm.models.one_stage import OneStageConfig
from adlm.train.fit import fit
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import FitOptions
from tests.adapt.models import ONE, STACK, corpus, left_to_right
from tests.convert.test_llama2c import files as llama2c  # noqa: F401
from tests.errors import raises

QUICK = AdaptOptions(steps=3, rows=4)


def adapted(tmp_path, to="block:4", data=("self:60",), options=QUICK, **more):
    source = tmp_path / "ar"
    if not source.exists():
        left_to_right().save(source)
    cached = FitOptions(cache=tmp_path / "cache")
    return adapt(
        source, to, data, tmp_path / "out", options=options, device="cpu", fit_options=cached, callbacks=(), **more
    )


def test_a_model_is_adapted_measured_and_says_what_it_came_from(tmp_path):
    report = adapted(tmp_path, data=("self:60", corpus(tmp_path)))
    model = adlm.load(tmp_path / "out")
    assert model.block_sizes == (1, 2, 4)
    assert isinstance(planned_run(tmp_path / "ar", "block:4", ["self:60", corpus(tmp_path)], QUICK)[0].data, Together)
    assert [each.data.startswith("self:") for each in report.held_out] == [True, False]
    for each in report.held_out:
        assert list(each.after) == [1, 2, 4]
        # Read from left to right, the weights are the source at first.
        assert each.before[1].mean == pytest.approx(each.source.mean, rel=1e-5)
        assert each.before[1].draws == each.source.draws == 0
        assert each.after[4].draws > 0
        assert each.after[1].mean != each.source.mean
    assert [each.name for each in report.decodings][:3] == [
        "source, left to right", "left to right", "blocks of 2, 1 per pass",
    ]  # fmt: skip
    assert all(each.tokens_per_second > 0 for each in report.decodings)
    stored = json.loads((tmp_path / "out" / "adapt.json").read_text())
    assert stored["held_out"][0]["after"]["4"]["mean"] == report.held_out[0].after[4].mean
    assert stored["to"] == "block:4"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"`{tmp_path / 'ar'}`" in card
    assert "`block:4`" in card
    assert adlm.load(tmp_path / "out" / "source").network.causal
    # By default it writes the faster one of the two ways that follow the left-to-right distribution.
    exact = {each.options["sampler"]: each for each in report.decodings if each.name != "source, left to right"}
    exact = {name: exact[name] for name in ("left-to-right", "draft-and-verify")}
    fastest = max(exact, key=lambda name: exact[name].tokens_per_second)
    assert report.default_decoding == exact[fastest]
    assert model.config.sampling == exact[fastest].options
    assert model.generate(n=2, seed=1) == model.generate(n=2, seed=1, **exact[fastest].options)
    # Whoever asks again gets the same, without training.
    again = adapted(tmp_path, data=("self:60", corpus(tmp_path)))
    assert again.held_out == report.held_out


def test_a_text_that_is_longer_when_it_is_read_again_is_judged_by_its_beginning():
    judge = left_to_right()
    shown = "abcd efg"
    assert judged(judge, [shown * 5]) == pytest.approx(judged(judge, [shown * 2]))
    assert judged(judge, [shown * 5, ""]) == pytest.approx(judged(judge, [shown * 5]))


def test_an_interrupted_adaptation_resumes_to_the_same_weights(tmp_path, monkeypatch):
    class Stopped(Exception):
        pass

    def stop(*arguments, **named):
        raise Stopped

    monkeypatch.setattr("adlm.adapt.adaptation.fit", stop)
    with pytest.raises(Stopped):
        adapted(tmp_path)
    before = (tmp_path / "out" / "before.json").read_text()
    monkeypatch.setattr("adlm.adapt.adaptation.fit", fit)
    resumed = adapted(tmp_path)
    assert (tmp_path / "out" / "before.json").read_text() == before
    (tmp_path / "out").rename(tmp_path / "other")
    assert adapted(tmp_path).held_out == resumed.held_out


@pytest.mark.parametrize("to", ["masked", "anchored", "anchored-block:4", "towers:4"])
def test_other_targets_are_trained_and_measured(tmp_path, to):
    freeze = ("anchor",) if to == "towers:4" else ()
    report = adapted(tmp_path, to, data=(corpus(tmp_path),), options=replace(QUICK, freeze=freeze))
    model = adlm.load(tmp_path / "out")
    assert model.network.stages == (1 if to == "masked" else 2)
    (text,) = report.held_out
    assert list(text.after) == ([1, 2, 4] if ":4" in to else [0])
    assert model.infill("ab [MASK]") if 0 in text.after else model.generate("ab", block_size=4)
    if to == "towers:4":
        source = adlm.load(tmp_path / "out" / "source").network.state_dict()
        theirs = {name.removeprefix("stack."): x for name, x in source.items() if name.startswith("stack.")}
        for name, weight in model.network.anchor.state_dict().items():
            assert weight.equal(theirs[name])


def test_adapters_and_a_pruned_vocabulary(tmp_path):
    pytest.importorskip("peft")
    path = tmp_path / "few.jsonl"
    path.write_text('{"text": "abab"}\n' * 100)
    report = adapted(tmp_path, data=(str(path),), options=replace(QUICK, prune=True, lora=2))
    model = adlm.load(tmp_path / "out")
    assert model.config.vocabulary.size < left_to_right().config.vocabulary.size
    assert model.config.run["adapters"]["rank"] == 2
    assert report.held_out[0].after[4].mean > 0


def test_defaults_follow_size_and_data(tmp_path):
    left_to_right().save(tmp_path / "small")
    large = OneStageConfig(replace(STACK, width=320, heads=4, layers=5), tied=True, shift=True)
    left_to_right(large).save(tmp_path / "large")
    small, vocabulary = planned_run(tmp_path / "small", "block:4", ["self:6000"])
    assert small.train.optimizer == Muon()
    assert small.train.steps == 750
    assert vocabulary == left_to_right().config.vocabulary
    assert isinstance(small.data, Prompts)
    run, _ = planned_run(tmp_path / "large", "block:4", ["self:60"])
    assert run.train.optimizer == AdamW(lr=1e-4)
    assert run.train.steps == 300
    run, _ = planned_run(tmp_path / "small", "block:4", ["self:60"], AdaptOptions(lr=3e-4, rows=8, length=12))
    assert run.train.optimizer == Muon(lr=3e-4, matrix_lr=pytest.approx(2e-3))
    assert run.train.tokens_per_step == 96


def test_rows_that_hold_several_texts_become_one_each_for_sampled_texts(tmp_path):
    left_to_right(packing=Wrapped(16)).save(tmp_path / "ar")
    assert planned_run(tmp_path / "ar", "block:4", ["self:60"], QUICK)[0].data.length == 16
    run, _ = planned_run(tmp_path / "ar", "block:4", [corpus(tmp_path)], QUICK)
    assert run.data.packing == Wrapped(16)


def test_a_model_of_llama2c_is_a_source(llama2c):  # noqa: F811
    folder, _ = llama2c
    run, vocabulary = planned_run(folder, "anchored-block:4", ["self:60"], QUICK)
    model = open_left_to_right(folder / "model.bin")
    assert model.network.causal
    assert vocabulary == model.config.vocabulary
    assert run.network.start == model.config.network.start


def test_smollm2_is_a_source_by_name(llama2c, monkeypatch):  # noqa: F811
    monkeypatch.setattr("adlm.convert.conversion.smollm2_file", lambda: llama2c[0])
    assert open_left_to_right("smollm2").network.causal


def test_what_cannot_be_adapted_is_refused(tmp_path):
    left_to_right(ONE.variant(attention="full")).save(tmp_path / "masked")
    with raises(ModelError, subject=str(tmp_path / "masked")):
        open_left_to_right(tmp_path / "masked")
    with raises(ModelError, subject="nothing here"):
        open_left_to_right("nothing here")
    for data in ([], ["self"], ["self:20", "self:30"]):
        with raises(ConfigError, subject="data"):
            planned_run(tmp_path / "ar" if (tmp_path / "ar").exists() else _saved(tmp_path), "block:4", data)
    for name, value in (("steps", 0), ("rows", 0), ("lr", -1.0), ("lora", -1)):
        with raises(OutOfRange, subject=name):
            AdaptOptions(**{name: value})
    adapted(tmp_path)
    for subject, more in (("data", {"data": ("self:80",)}), ("seed", {"options": replace(QUICK, seed=1)})):
        with raises(ConfigError, subject=subject):
            adapted(tmp_path, **more)


def _saved(tmp_path):
    left_to_right().save(tmp_path / "ar")
    return tmp_path / "ar"


def test_adapters_can_be_trained_further(tmp_path):
    options = replace(QUICK, adapter_rank=2)
    left_to_right().save(tmp_path / "ar")
    cached = FitOptions(cache=tmp_path / "cache")

    def trained(source, out, **changed):
        return adapt(
            source, Target.parse("anchored-block:2", (2, 0)), ("self:60",), out, options=replace(options, **changed),
            device="cpu", fit_options=cached, callbacks=(),
        )  # fmt: skip

    trained(tmp_path / "ar", tmp_path / "once")
    report = trained(tmp_path / "once", tmp_path / "twice", holes=0.5)
    (own,) = report.held_out
    once, twice = (adlm.load(tmp_path / name) for name in ("once", "twice"))
    assert once.score("abab", block_size=1) == twice.score("abab", block_size=1)
    adapters = [name for name in once.network.state_dict() if "adapters" in name]
    assert any(not once.network.state_dict()[name].equal(twice.network.state_dict()[name]) for name in adapters)
    assert own.before[0] != own.after[0]
    assert twice.config.run["objective"]["corruption"]["holes"] == 0.5


def test_holes_need_whole_rows(tmp_path):
    left_to_right().save(tmp_path / "ar")
    with raises(ConfigError, subject="holes"):
        planned_run(tmp_path / "ar", "block:4", ["self:60"], replace(QUICK, holes=0.5))
