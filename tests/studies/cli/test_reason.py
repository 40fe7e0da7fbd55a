import json

import pytest

from adlm.cli import main
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import train_words
from adlm.evaluate.result import read_result
from adlm.models.io import ModelConfig, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig

COMMON = ["--problems", "40", "--held-out", "8", "--batch-size", "8", "--device", "cpu"]


def small(stack: str) -> list[str]:
    """Options for the least network there is."""
    sizes = ("input_reinjection=0", "width=8", "heads=2", "layers=1")
    return [*COMMON, *(word for size in sizes for word in ("--set", f"network.{stack}.{size}"))]


@pytest.fixture(scope="module", autouse=True)
def no_curves():
    """They take longer to draw than the models to train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adlm.train.curves.draw_curves", lambda *_, **__: None)
        yield


ANCHORED = ["--task", "arithmetic", "--set", "method.most=1", "--scale", "0.05", *small("stack")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("reason") / "anchored"
    assert main(["reason", "train", *ANCHORED, "--out", str(folder)]) == 0
    return str(folder)


def test_a_trained_model_is_measured_with_an_interval_and_a_figure_for_each_problem(run, tmp_path, capsys):
    out, texts = tmp_path / "result.json", tmp_path / "texts.jsonl"
    options = ["--problems", "6", "--limit", "9", "--out", str(out), "--texts", str(texts), "--device", "cpu"]
    assert main(["reason", "evaluate", run, *options]) == 0
    result = read_result(out)
    assert (result.task, result.data["name"]) == ("reasoning", "arithmetic test")
    assert [len(values) for values in result.items.values()] == [6, 6]
    accuracy, low, high = (result.figures[f"accuracy{end}"].value for end in ("", "_low", "_high"))
    assert low <= accuracy <= high
    assert accuracy == sum(result.items["right"]) / 6
    records = [json.loads(line) for line in texts.read_text().splitlines()]
    assert [record["tokens"] for record in records] == result.items["tokens"]
    assert [len(record["thoughts"]) for record in records] == [1] * 6
    shown = capsys.readouterr().out
    assert "of 6 (95 % interval" in shown
    assert f"arithmetic test ({result.data['origin']})" in shown
    assert main(["reason", "evaluate", run, "--out", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err


def test_a_problem_is_shown_with_what_its_thought_predicted_and_a_verdict(run, capsys):
    assert main(["reason", "show", run, "--number", "2", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "arithmetic test 2" in shown
    assert "important" in shown
    assert shown.count("%") == 3
    assert "wrong: " in shown or "right: " in shown


def test_the_same_command_again_trains_nothing_and_a_dry_run_says_what_it_would_do(run, tmp_path, capsys):
    assert main(["reason", "train", *ANCHORED, "--out", run]) == 0
    assert "validation" not in capsys.readouterr().out
    words = ["--task", "graph", "--method", "coconut", "--out", str(tmp_path / "x"), "--dry-run", *small("stack")]
    assert main(["reason", "train", *words]) == 0
    shown = capsys.readouterr().out
    assert "graph-coconut-0: 25 steps" in shown
    assert not (tmp_path / "x").exists()


def test_a_diffusion_model_reasons_with_its_anchors_first_or_in_any_order(tmp_path, capsys):
    folder = str(tmp_path / "diffusion")
    words = ["--task", "arithmetic", "--base", "adlm", "--scale", "0.02", "--out", folder, *small("anchor")]
    assert main(["reason", "train", *words, "--set", "network.denoiser_layers=1"]) == 0
    for options in ([], ["--plain"]):
        out = tmp_path / "result.json"
        assert main(["reason", "evaluate", folder, "--problems", "2", "--out", str(out), *options]) == 0
        assert read_result(out).protocol["decoding"] == ("plain" if options else "anchors first")
    assert main(["reason", "show", folder]) == 0
    shown = capsys.readouterr().out
    assert "thoughts" in shown
    assert "placed" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--task", "prosqua"], "did you mean 'prosqa'"),
        (["train", "--task", "graph", "--method", "anchord"], "did you mean 'anchored'"),
        (["train", "--task", "graph", "--base", "addlm"], "did you mean 'adlm'"),
        (["train", "--task", "graph", "--base", "mdlm", "--method", "coconut"], "use the method anchored or chain"),
        (["train", "--task", "graph", "--data", "elsewhere"], "no folder"),
        (["evaluate", "nowhere"], "no folder of that name"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_means_nothing_is_answered_with_what_would(words, said, capsys):
    assert main(["reason", *words]) == 2
    assert said in capsys.readouterr().err


def test_numbers_that_there_are_not_and_models_that_do_not_reason_are_refused(run, tmp_path, capsys):
    assert main(["reason", "show", run, "--number", "500"]) == 2
    assert "give 0 to 499" in capsys.readouterr().err
    assert main(["reason", "evaluate", run, "--plain", "--problems", "1"]) == 2
    assert "writes left to right" in capsys.readouterr().err
    tokenizer, network = train_words(["no reason"]), OneStageConfig(StackConfig(width=8, heads=2, layers=1))
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(8))
    save_model(tmp_path, config.build(), config, tokenizer)
    assert main(["reason", "evaluate", str(tmp_path)]) == 2
    assert "name a folder that `adlm reason train` wrote" in capsys.readouterr().err


def test_help_lists_the_three_commands(capsys):
    assert main(["reason", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("train", "evaluate", "show"))
