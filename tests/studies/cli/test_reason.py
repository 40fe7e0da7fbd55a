import json
from pathlib import Path

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
    assert str(tmp_path) in capsys.readouterr().err


def test_a_run_is_scored_and_trained_again_by_the_commands_for_any_run(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "test.txt").write_text("3 + 4 = 7\n\n5 - 2 = 3\n\n" * 4)
    out = tmp_path / "result.json"
    assert main(["evaluate", "perplexity", run, str(tmp_path / "test.txt"), "--out", str(out), "--device", "cpu"]) == 0
    assert read_result(out).figures["nats_per_token"].value > 0
    assert main(["train", f"{run}/config.json", "--out", str(tmp_path / "again"), "--device", "cpu"]) == 0
    assert main(["train", str(tmp_path / "again"), "--device", "cpu"]) == 0
    first, again = (json.loads((Path(folder) / "config.json").read_text()) for folder in (run, tmp_path / "again"))
    assert first == again


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
        (["train", "--task", "prosqua"], "'prosqa'"),
        (["train", "--task", "graph", "--method", "anchord"], "'anchored'"),
        (["train", "--task", "graph", "--base", "addlm"], "'adlm'"),
        (["train", "--task", "graph", "--base", "mdlm", "--method", "coconut"], "coconut"),
        (["train", "--task", "graph", "--data", "elsewhere"], "folder"),
        (["evaluate", "nowhere"], "nowhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_means_nothing_is_answered_with_what_would(words, said, capsys):
    assert main(["reason", *words]) == 2
    assert said in capsys.readouterr().err


def test_numbers_that_there_are_not_and_models_that_do_not_reason_are_refused(run, tmp_path, capsys):
    assert main(["reason", "show", run, "--number", "500"]) == 2
    assert "--number" in capsys.readouterr().err
    assert main(["reason", "evaluate", run, "--plain", "--problems", "1"]) == 2
    assert "--plain" in capsys.readouterr().err
    tokenizer, network = train_words(["no reason"]), OneStageConfig(StackConfig(width=8, heads=2, layers=1))
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(8))
    save_model(tmp_path, config.build(), config, tokenizer)
    assert main(["reason", "evaluate", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_help_lists_the_three_commands(capsys):
    assert main(["reason", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("train", "evaluate", "show"))


def test_a_run_that_reasons_is_a_run_like_others(run, tmp_path, capsys):
    out = tmp_path / "result.json"
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{i} + {i} = {2 * i}" for i in range(40)))
    words = ["evaluate", "perplexity", run, str(text), "--out", str(out), "--device", "cpu"]
    assert main(words) == 0, capsys.readouterr().err
    assert read_result(out).figures
    assert main(["train", run, "--out", str(tmp_path / "again"), "--device", "cpu"]) == 0, capsys.readouterr().err
    assert (tmp_path / "again" / "model.safetensors").is_file()
