"""The commands, on models so small that everything takes a moment."""

import json

import pytest
import torch

import adlm
from adlm.cli import main
from adlm.data.catalog import open_source
from adlm.data.packing import Padded
from adlm.data.tokenizer import train_words
from adlm.evaluate.judge import judge_texts, open_judge
from adlm.evaluate.mauve import mauve
from adlm.evaluate.result import read_result
from adlm.evaluate.texts import draw_references
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel

STORY = "the cat sat on the mat. the dog sat on the log."
TOKENIZER = train_words([STORY])


def saved(folder, *, causal):
    torch.manual_seed(0)
    vocabulary = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
    config = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full"))
    network = config.build(vocabulary).eval()
    torch.nn.init.normal_(network.head.weight)
    TextModel(network, ModelConfig(config, vocabulary, Padded(12)), TOKENIZER).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models and real texts."""
    folder = tmp_path_factory.mktemp("models")
    saved(folder / "masked", causal=False)
    saved(folder / "ar", causal=True)
    words = STORY.replace(".", "").split()
    lines = ["the " + " ".join(words[(i + j) % len(words)] for j in range(2 + i % 8)) for i in range(60)]
    (folder / "real").mkdir()
    for split in ("train", "test"):
        (folder / "real" / f"{split}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return folder


def run(folder, *words):
    return main(["evaluate", *words, "--judge", str(folder / "ar"), "--device", "cpu"])


def test_a_model_is_measured_beside_the_references(folder, tmp_path, capsys):
    out, real = tmp_path / "result.json", str(folder / "real")
    words = ["--n", "40", "--steps", "4", "--seed", "3", "--references", real, "--training", real, "--out", str(out)]
    assert run(folder, "generation", str(folder / "masked"), *words) == 0
    result = read_result(out)
    assert {"perplexity", "entropy", "mauve", "copied_8", "tokens_per_second"} <= result.figures.keys()
    assert result.figures["references copied_8"].value == 1
    assert "references perplexity" in result.figures
    assert len(result.items["nats"]) == 40
    assert result.protocol["sampler"]["steps"] == 4
    assert "first token is scored" in result.protocol["first_token"]
    shown = capsys.readouterr().out
    assert "references" in shown
    assert "texts are cut after" in shown
    texts = [json.loads(line)["text"] for line in (tmp_path / "result.samples.jsonl").read_text().splitlines()]
    judge = open_judge(str(folder / "ar"))
    judged = judge_texts(judge, texts)
    assert result.items["nats"] == pytest.approx(judged.nats.tolist(), abs=1e-4)
    assert not list(tmp_path.glob("*.partial"))


def test_the_texts_of_a_file_are_measured_as_the_model_s_own(folder, tmp_path):
    words = ["--references", str(folder / "real"), "--seed", "3"]
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    assert run(folder, "generation", str(folder / "masked"), "--n", "30", *words, "--out", str(one)) == 0
    samples = str(tmp_path / "one.samples.jsonl")
    assert run(folder, "generation", "--texts", samples, *words, "--out", str(other)) == 0
    found, again = read_result(one).figures, read_result(other).figures
    assert again == {name: figure for name, figure in found.items() if name != "tokens_per_second"}


def test_a_finished_measurement_writes_nothing_again(folder, tmp_path, monkeypatch):
    words = ["generation", str(folder / "masked"), "--n", "20", "--no-mauve", "--out", str(tmp_path / "result.json")]
    assert run(folder, *words) == 0
    first = read_result(tmp_path / "result.json")
    monkeypatch.setattr(TextModel, "generate", lambda *_, **__: pytest.fail("written again"))
    assert run(folder, *words) == 0
    assert read_result(tmp_path / "result.json").figures == first.figures
    assert "mauve" not in first.figures


def test_the_frontier_has_every_setting_and_the_ar_model(folder, tmp_path, capsys):
    out = tmp_path / "frontier.json"
    words = ["--steps", "2..4", "--samplers", "ancestral,confidence", "--ar", str(folder / "ar"), "--n", "20"]
    real = str(folder / "real")
    assert run(folder, "frontier", str(folder / "masked"), *words, "--references", real, "--out", str(out)) == 0
    result = read_result(out)
    settings = ("ancestral 2", "ancestral 4", "confidence 2", "confidence 4", "AR", "references")
    assert all(f"{setting} perplexity" in result.figures for setting in settings)
    assert all(f"{setting} mauve" in result.figures for setting in settings[:-1])
    assert result.protocol["samplers"]["ancestral 2"] != result.protocol["samplers"]["ancestral 4"]
    assert "AR" in (tmp_path / "frontier.svg").read_text()
    assert (tmp_path / "frontier.png").is_file()
    texts = [json.loads(line)["text"] for line in (tmp_path / "frontier-AR.samples.jsonl").read_text().splitlines()]
    judge = open_judge(str(folder / "ar"))
    drawn = draw_references(open_source(real).documents("test"), 20)
    area = mauve(judge_texts(judge, drawn).features, judge_texts(judge, texts).features)
    assert result.figures["AR mauve"].value == pytest.approx(area.mean, abs=0.02)
    assert not list(tmp_path.glob("*.partial"))


def test_few_texts_have_a_wide_interval_of_mauve_and_a_warning(folder, tmp_path, capsys):
    out = tmp_path / "out.json"
    words = ["generation", str(folder / "masked"), "--n", "24", "--references", str(folder / "real"), "--out", str(out)]
    assert run(folder, *words) == 0
    figure = read_result(out).figures["mauve"]
    assert figure.interval[0] <= figure.value <= figure.interval[1]
    assert figure.interval[1] - figure.interval[0] > 0.02
    assert "MAUVE of 24 texts" in capsys.readouterr().out


def test_one_text_is_refused_with_mauve_before_it_is_written(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.json"
    words = ["generation", str(folder / "masked"), "--n", "1", "--references", str(folder / "real"), "--out", str(out)]
    assert run(folder, *words, "--no-mauve") == 0
    assert read_result(out).figures["perplexity"].value > 1
    monkeypatch.setattr(TextModel, "generate", lambda *_, **__: pytest.fail("written"))
    assert run(folder, *words) == 2
    assert "at least 2" in capsys.readouterr().err


def test_the_library_finds_what_the_command_finds_and_writes_nothing_unasked(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, judge = adlm.load(folder / "masked"), open_judge(str(folder / "ar"))
    found = adlm.evaluate.generation(model, references=folder / "real", n=20, judge=judge, steps=4, mauve=False)
    assert not list(tmp_path.iterdir())
    words = ["--n", "20", "--steps", "4", "--references", str(folder / "real"), "--no-mauve", "--out", "r.json"]
    assert run(folder, "generation", str(folder / "masked"), *words) == 0
    for name, figure in read_result(tmp_path / "r.json").figures.items():
        assert name == "tokens_per_second" or found.figures[name] == figure
    texts = adlm.evaluate.generation(texts=["the cat sat", "the dog sat on the log"], judge=judge)
    assert len(texts.items["nats"]) == 2


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (["generation"], "texts"),
        (["generation", "MODEL", "--texts", "a.txt"], "texts"),
        (["generation", "--texts", "a.txt", "--steps", "4"], "sampler"),
        (["generation", "--texts", "no/such/file"], "no/such/file"),
        (["generation", "MODEL", "--n", "0"], "n must be"),
        (["generation", "MODEL", "--length", "99"], "length must be"),
        (["generation", "MODEL", "--references", "REAL", "--split", "dev"], "split 'dev'"),
        (["generation", "MODEL", "--references", "REAL", "--n", "100"], "references"),
        (["generation", "MODEL", "--references", "REAL", "--n", "20", "--clusters", "41"], "clusters must be"),
        (["generation", "MODEL", "--sampler", "ancestal"], "'ancestral'"),
        (["frontier", "MODEL", "--steps", "many"], "steps"),
        (["frontier", "MODEL", "--samplers", ","], "samplers"),
        (["frontier", "MODEL", "--samplers", "first-hitting"], "steps"),
    ],
)
def test_mistakes_are_answered(folder, tmp_path, words, subject, capsys):
    paths = {"MODEL": str(folder / "masked"), "REAL": str(folder / "real")}
    assert run(folder, *(paths.get(word, word) for word in words), "--out", str(tmp_path / "out.json")) == 2
    assert subject in capsys.readouterr().err
