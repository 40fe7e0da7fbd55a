"""`adlm report` as a user types it."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adlm.cli import main
from adlm.config import to_json
from adlm.data.packing import Padded
from adlm.data.synthetic import Synthetic
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import CrossEntropy
from adlm.text_model import TextModel
from adlm.train.metrics import MetricsFile, StepMetrics, ValidationMetrics
from adlm.train.run import Run, TrainConfig
from adlm.types import Estimate
from adlm_studies.report.compare import compare_runs, read_trained
from tests.errors import raises

TOKENIZER = train_words(["the cat sat on the mat. the dog sat on the log."])
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
SMALL = StackConfig(width=16, heads=2, layers=1)
NETWORKS = {"adlm": TwoStageConfig(SMALL, denoiser_layers=1), "ar": OneStageConfig(replace(SMALL, attention="causal"))}


class Words(HTMLParser):
    """What a reader sees, and the names of sections."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.sections: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "section":
            self.sections.append(dict(attrs)["id"])

    def handle_data(self, data):
        if not self.cdata_elem:
            self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())


def read(path) -> Words:
    return Words(path.read_text(encoding="utf-8"))


def trained(folder, name: str, rows: int) -> None:
    """The folder of a run as training leaves it."""
    data, train = Synthetic(vocabulary=40, length=16, count=rows), TrainConfig(steps=4, tokens_per_step=128)
    objective = Anelbo() if name == "adlm" else CrossEntropy()
    run = Run(name, data, NETWORKS[name], objective, train)
    packing = Padded(16, begin=False, predict_padding=True)
    model = TextModel(
        NETWORKS[name].build(VOCABULARY).eval(), ModelConfig(run.network, VOCABULARY, packing, to_json(run)), TOKENIZER
    )
    for each in (folder, folder / "best"):
        model.save(each)
    with MetricsFile(folder / "metrics.jsonl") as metrics:
        for step in range(1, 5):
            metrics.on_step(StepMetrics(step, 4, 5 / step, 4 / step, 1, 1e-3, 128 * step, 2.0 * step, 64, 1, 0))
            if step % 2 == 0:
                draws = 4 if name == "adlm" else 0
                metrics.on_validation(ValidationMetrics(step, Estimate(4 / step, 0.1, draws), 3, True, 1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: adlm and ar on the same data, other on less of it."""
    home = tmp_path_factory.mktemp("runs")
    for name, kind, rows in (("adlm", "adlm", 64), ("ar", "ar", 64), ("other", "ar", 32)):
        trained(home / name, kind, rows)
    return home


def test_runs_on_the_same_data_are_compared_with_curves_samples_and_a_player(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    words = ["--out", str(out), "--samples", "1", "--seed", "3", "--device", "cpu"]
    assert main(["report", str(runs / "ar"), str(runs / "adlm"), *words]) == 0
    assert str(out) in capsys.readouterr().out.replace("\n", "")
    page = read(out)
    assert page.sections == [
        "the-runs",
        "a-text-as-adlm-writes-it",
        "validation",
        "training",
        "samples",
        "where-their-settings-differ",
        "to-train-them-again",
    ]
    assert "has the lowest cost of held-out text" in page.text
    assert f"adlm train {runs / 'ar'}/config.json --out {runs / 'ar'}-again" in page.text
    assert "TwoStageConfig" in page.text
    assert "Not comparable" not in page.text
    assert 'class="figure best"' in out.read_text(encoding="utf-8")


def test_runs_on_different_data_are_marked_and_nothing_is_best(runs, tmp_path):
    out = tmp_path / "page.html"
    assert main(["report", *(str(runs / name) for name in ("ar", "other")), "--out", str(out), "--samples", "0"]) == 0
    page = read(out)
    assert "trained on different data" in page.text
    assert "Not comparable" in page.text
    assert "samples" not in page.sections
    assert 'class="figure best"' not in out.read_text(encoding="utf-8")


def test_where_the_data_lies_does_not_make_it_other_data(runs, tmp_path):
    shutil.copytree(runs / "ar", tmp_path / "moved")
    config = json.loads((tmp_path / "moved" / "config.json").read_text())
    config["run"]["data"]["folder"] = "elsewhere"
    (tmp_path / "moved" / "config.json").write_text(json.dumps(config))
    assert read_trained(tmp_path / "moved", "x").data == read_trained(runs / "ar", "x").data


def test_an_unfinished_run_has_its_curves_and_its_best_model_so_far(runs, tmp_path):
    shutil.copytree(runs / "adlm", tmp_path / "begun")
    (tmp_path / "begun" / "model.safetensors").unlink()
    out, words = tmp_path / "page.html", ["--samples", "1", "--device", "cpu"]
    assert main(["report", str(tmp_path / "begun"), "--out", str(out), *words]) == 0
    assert "best so far" in read(out).text
    shutil.rmtree(tmp_path / "begun" / "best")
    lines = (tmp_path / "begun" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "begun" / "metrics.jsonl").write_text("".join(lines[:1]) + lines[1][:20])  # killed while it wrote
    assert main(["report", str(tmp_path / "begun"), "--out", str(out), *words]) == 0
    page = read(out)
    assert page.sections == ["the-runs", "validation", "training", "to-train-them-again"]
    assert "1 of 4" in page.text
    assert "None has been validated yet" in page.text


def test_seconds_of_all_sittings_are_added_up(runs, tmp_path):
    shutil.copytree(runs / "ar", tmp_path / "run")
    steps = [{"step": i, "steps": 4, "tokens": i, "bound": None, "machine": {"seconds": s}}
             for i, s in enumerate([30.0, 60.0, 5.0, 10.0], start=1)]  # fmt: skip
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps))
    assert read_trained(tmp_path / "run", "x").seconds == 70.0


def test_folders_of_one_name_are_told_apart(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs / "ar", tmp_path / "b" / "ar")
    assert main(["report", str(runs / "ar"), "b/ar", "--samples", "0"]) == 0
    text = read(tmp_path / "report.html").text
    assert "b/ar" in text
    assert "they are the same run" in text


@pytest.mark.parametrize(
    ("folders", "subject"),
    [
        ([], "runs"),
        (["nowhere"], "nowhere"),
        (["file"], "file"),
        (["empty"], "empty"),
        (["fresh"], "fresh"),
        (["RUN", "RUN/../ar"], "RUN/../ar"),
    ],
)
def test_folders_without_a_run_or_named_twice_are_refused(runs, tmp_path, monkeypatch, folders, subject):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "fresh").mkdir()
    shutil.copy(runs / "ar" / "config.json", tmp_path / "fresh")
    run = str(runs / "ar")
    with raises(ConfigError, subject=subject.replace("RUN", run)):
        compare_runs([Path(folder.replace("RUN", run)) for folder in folders], samples=0)


def test_a_command_that_cannot_be_carried_out_exits_with_2_and_names_the_reason(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    page = str(tmp_path / "file" / "page.html")
    for words, named in ((["--samples", "-1"], "samples"), (["--samples", "0", "--out", page], page)):
        assert main(["report", str(runs / "ar"), *words]) == 2
        assert named in capsys.readouterr().err.replace("\n", "")
