import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import adlm
from adlm.cli import main
from adlm.config import to_json
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import characters
from adlm.evaluate.likelihoods import own_objective
from adlm.evaluate.result import read_result
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives import likelihood
from adlm.objectives.d3pm import D3pm
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.text_model import TextModel

TOKENIZER = characters()
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
STACK = StackConfig(width=16, heads=2, layers=1)
TEXT = "the quick brown fox jumps over the lazy dog and goes home\n"


def save(folder, *, causal=False, stages=1, rows=None, fresh=False):
    torch.manual_seed(len(folder.name))
    stack = replace(STACK, attention="causal" if causal else "full")
    config = OneStageConfig(stack) if stages == 1 else TwoStageConfig(stack, denoiser_layers=1)
    network = config.build(VOCABULARY).eval()
    if not fresh:
        torch.nn.init.normal_(network.head.weight, std=0.3)
    model = TextModel(network, ModelConfig(config, VOCABULARY, rows or Wrapped(16)), TOKENIZER)
    model.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models") / "masked")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"text": TEXT[: 12 + 7 * i]}) + "\n" for i in range(7)))
    return str(path)


def run(*words):
    return main(["evaluate", *map(str, words)])


@pytest.mark.parametrize(("causal", "stages"), [(False, 2), (True, 1)])
@pytest.mark.parametrize("extra", [[], ["--documents", "--stride", "5"]], ids=str)
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(causal, stages, extra, text, tmp_path, capsys):
    model = save(tmp_path / "fresh", causal=causal, stages=stages, fresh=True)
    assert run("perplexity", model, text, *extra, "--out", tmp_path / "r.json", "--draws", "3") == 0
    result = read_result(tmp_path / "r.json")
    assert result.figures["perplexity"].value == pytest.approx(VOCABULARY.size - 1, rel=1e-6)
    bits = math.log2(VOCABULARY.size - 1) * result.data["tokens"] / result.data["characters"]
    assert result.figures["bits_per_character"].value == pytest.approx(bits, rel=1e-6)
    assert sum(result.items["tokens"]) == result.data["tokens"]
    shown = capsys.readouterr().out
    assert str(result.figures["perplexity"]) in shown
    assert "end tokens are scored and count as tokens, not as text" in shown
    assert ("exact likelihood" if causal else "a bound, from 3 stratified draws") in shown


def test_documents_hold_all_of_the_text_and_rows_what_fills_them(folder, text, tmp_path, capsys):
    texts = [json.loads(line)["text"] for line in Path(text).read_text().splitlines()]
    assert run("perplexity", folder, text, "--documents", "--out", tmp_path / "d.json") == 0
    documents = read_result(tmp_path / "d.json")
    assert documents.items["characters"] == [len(each) for each in texts]
    assert documents.items["tokens"] == [len(each) + 1 for each in texts]
    assert documents.protocol["items"] == "documents"
    assert run("perplexity", folder, text, "--limit", "3", "--out", tmp_path / "r.json") == 0
    rows = read_result(tmp_path / "r.json")
    assert rows.items["tokens"] == [16, 16, 16]
    assert rows.data["key"] == documents.data["key"]
    assert "the first 3" in capsys.readouterr().out


def test_all_estimators_stand_side_by_side_and_agree(folder, text, tmp_path, capsys):
    assert run("perplexity", folder, text, "--estimator", "all", "--draws", "16", "--out", tmp_path / "r.json") == 0
    figures = read_result(tmp_path / "r.json").figures
    assert {
        "nats_per_token",
        "nats_per_token times",
        "nats_per_token importance",
        "z times",
        "z importance",
    } <= figures.keys()
    assert abs(figures["z times"].value) < 4
    assert abs(figures["z importance"].value) < 4
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("counts", "times", "importance", "off the first"))


def test_an_interrupted_measurement_goes_on_and_leaves_nothing_behind(folder, text, tmp_path, capsys, monkeypatch):
    words = ["perplexity", folder, text, "--documents", "--batch", "2", "--out"]
    assert run(*words, tmp_path / "whole.json") == 0
    calls, plain = [], likelihood.position_nats

    def interrupted(model, batch, **options):
        calls.append(batch.index.tolist())
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(model, batch, **options)

    monkeypatch.setattr(likelihood, "position_nats", interrupted)
    assert run(*words, tmp_path / "r.json") == 130
    assert run(*words, tmp_path / "r.json") == 0
    assert calls[3] == calls[2]
    assert read_result(tmp_path / "r.json") == read_result(tmp_path / "whole.json")
    assert sorted(each.name for each in tmp_path.glob("*.json*")) == ["r.json", "test.jsonl", "whole.json"]


@pytest.mark.slow
def test_processes_of_torchrun_find_the_same_figures(folder, text, tmp_path):
    words = ["evaluate", "perplexity", folder, text, "--documents", "--batch", "2", "--device", "cpu", "--out"]
    assert main([*words, str(tmp_path / "one.json")]) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "adlm"]
    done = subprocess.run(
        [*command, *words, str(tmp_path / "two.json")],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    one, two = (read_result(tmp_path / f"{name}.json") for name in ("one", "two"))
    assert one == two
    assert done.stdout.count("written to") == 1


def test_logits_that_are_not_numbers_are_refused(folder, text, tmp_path, capsys):
    model = TextModel.from_pretrained(folder)
    with torch.no_grad():
        model.network.head.weight[3], model.network.head.weight[4] = 3e38, -3e38  # finite, and too much for any sum
    model.save(tmp_path / "astray")
    assert run("perplexity", tmp_path / "astray", text, "--out", tmp_path / "r.json") == 2
    assert "logits are not numbers" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (["--stride", "4"], "stride"),
        (["--documents", "--stride", "17"], "stride must be"),
        (["--limit", "0"], "limit must be"),
        (["--draws", "0"], "draws must be"),
        (["--split", "dev"], "split 'dev'"),
        (["--field", "body"], "'body'"),
        (["--estimator", "exact"], "'exact'"),
        (["--protocol", "text8"], "'text8'"),
        (["--protocol", "text9"], "'text8'"),
        (["--protocol", "text8", "--documents"], "documents"),
    ],
)
def test_mistakes_are_answered(folder, text, tmp_path, words, subject, capsys):
    assert run("perplexity", folder, text, *words, "--out", tmp_path / "r.json") == 2
    assert subject in capsys.readouterr().err


@pytest.mark.parametrize("packing", [Wrapped(16), Padded(16, crop=True), Padded(16)], ids=str)
@pytest.mark.parametrize("name", ["ptb.txt", "ptb.train.txt", "valid.txt"])
def test_a_file_is_scored_as_a_whole_whatever_its_name(packing, name, tmp_path, capsys):
    """One long document: a model of single rows continues on the next row, and what was scored is said."""
    model = save(tmp_path / "model", rows=packing)
    (tmp_path / name).write_text(TEXT * 20)
    assert run("perplexity", model, tmp_path / name, "--draws", "1", "--out", tmp_path / "r.json") == 0
    data = read_result(tmp_path / "r.json").data
    assert (data["documents"], data["split"]) == (1, "test")
    assert data["characters"] >= len(TEXT) * 20 - 16
    assert data["tokens"] + data["tokens left out"] >= len(TEXT) * 20
    assert data["fraction scored"] == pytest.approx(data["characters"] / (20 * len(TEXT)))
    shown = capsys.readouterr().out
    assert "1 documents" in shown
    assert "of the text" in shown


def test_a_folder_without_splits_is_scored_as_a_whole_and_cut_as_for_training_if_a_split_is_asked_for(folder, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in "abc":
        (tmp_path / "texts" / f"{name}.txt").write_text(TEXT)
    found = adlm.evaluate.perplexity(folder, tmp_path / "texts", documents=True, draws=1)
    assert found.data["characters"] == 3 * len(TEXT)
    part = adlm.evaluate.perplexity(folder, tmp_path / "texts", documents=True, draws=1, split="test")
    assert part.data["characters"] == len(TEXT)


def test_columns_of_a_csv_file_without_a_header_have_numbers(folder, tmp_path, capsys):
    path = tmp_path / "test.csv"
    path.write_text('"3","a title","some lines of news"\n' * 9)
    assert run("perplexity", folder, path, "--out", tmp_path / "r.json") == 2
    assert "'text'" in capsys.readouterr().err
    assert run("perplexity", folder, path, "--field", "2,3", "--documents", "--out", tmp_path / "r.json") == 0
    assert read_result(tmp_path / "r.json").items["characters"] == [len("a title some lines of news")] * 9


def test_advice_can_be_followed_and_names_no_class(folder, tmp_path, capsys):
    path = tmp_path / "test.txt"
    path.write_bytes(b"caf\xe9 " * 50)
    assert run("perplexity", folder, path) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "--" not in error
    assert run("perplexity", folder, "stories", "--field", "text") == 2
    error = capsys.readouterr().err
    assert "field" in error
    assert "Stories" not in error


def test_the_library_finds_what_the_command_finds_and_writes_nothing_unasked(folder, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    found = adlm.evaluate.perplexity(adlm.load(folder), text, documents=True)
    assert sorted(tmp_path.iterdir()) == before
    assert run("perplexity", folder, text, "--documents", "--out", tmp_path / "r.json") == 0
    stored = adlm.evaluate.read_result(tmp_path / "r.json")
    assert (found.figures, found.items) == (stored.figures, stored.items)
    assert found.model["weights"] == stored.model["weights"]
    assert "bits_per_byte" in str(found)


def test_missing_and_empty_files_are_answered(folder, tmp_path, capsys):
    assert run("perplexity", folder, tmp_path / "none.txt") == 2
    assert "none.txt" in capsys.readouterr().err
    (tmp_path / "test.txt").write_text(" \n")
    assert run("perplexity", folder, tmp_path / "test.txt") == 2
    assert "not one document" in capsys.readouterr().err
    assert run("perplexity", tmp_path / "model", tmp_path / "test.txt") == 2
    assert "model" in capsys.readouterr().err


def test_a_protocol_says_what_it_is_and_where_it_departs(tmp_path, capsys):
    model = save(tmp_path / "text8-model", rows=Wrapped(256, separated=False), fresh=True)
    (tmp_path / "text8").write_text(TEXT.strip() * 700)
    assert run("perplexity", model, tmp_path, "--protocol", "text8", "--out", tmp_path / "r.json") == 0
    result = read_result(tmp_path / "r.json")
    assert result.figures["bits_per_character"].value == pytest.approx(math.log2(VOCABULARY.size - 1), rel=1e-6)
    assert result.protocol["name"] == "text8"
    assert "a cut of our own" in capsys.readouterr().out


def test_the_bound_is_that_of_the_objective_a_model_was_trained_with(folder):
    model = TextModel.from_pretrained(folder)
    assert isinstance(own_objective(model), Nelbo)
    for objective, expected in ((D3pm(), D3pm), (Nelbo(), Nelbo)):
        config = replace(model.config, run={"objective": to_json(objective)})
        assert type(own_objective(TextModel(model.network, config, model.tokenizer))) is expected
    causal = OneStageConfig(replace(STACK, attention="causal"))
    left = TextModel(causal.build(VOCABULARY), ModelConfig(causal, VOCABULARY, Padded(16)), TOKENIZER)
    assert isinstance(own_objective(left), CrossEntropy)


@pytest.fixture
def sets(tmp_path):
    """PTB and AG News as their publishers lay them out."""
    (tmp_path / "sets" / "ptb").mkdir(parents=True)
    (tmp_path / "sets" / "ptb" / "ptb.test.txt").write_text(" the <unk> rose N to $ N million \n" * 9)
    (tmp_path / "sets" / "ag_news").mkdir()
    (tmp_path / "sets" / "ag_news" / "test.csv").write_text('"3","a title","some lines of news"\n' * 9)
    return tmp_path / "sets"


def test_zero_shot_sets_stand_in_one_table(folder, sets, tmp_path, capsys):
    words = ["zero-shot", folder, "--data-dir", sets, "--out", tmp_path / "z.json"]
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert all(f"{name}: " in error for name in ("lambada", "wikitext", "lm1b", "pubmed", "arxiv"))
    assert "ptb: " not in error
    assert run(*words, "--skip-missing", "--published") == 0
    shown = capsys.readouterr().out
    assert "left out: lambada, wikitext, lm1b, pubmed, arxiv" in shown
    assert "95.37" in shown
    assert "for reference" in shown
    assert "ptb: the split test; published figures are on valid" in shown
    result = read_result(tmp_path / "z.json")
    assert result.data["sets"]["ptb"]["detokenizer"] == "ptb"
    assert {"perplexity ptb", "perplexity ag_news"} <= result.figures.keys()
    assert len(result.items["nats ptb"]) == result.data["sets"]["ptb"]["rows"]
    assert run(*words, "--sets", "ag_news") == 0
    assert "95.37" not in capsys.readouterr().out
    alone = read_result(tmp_path / "z.json")
    assert alone.items["nats ag_news"] == result.items["nats ag_news"]
    assert alone.data["key"] != result.data["key"]


def test_nothing_to_score_is_an_error_even_when_missing_sets_are_left_out(folder, tmp_path, capsys):
    assert run("zero-shot", folder, "--data-dir", tmp_path, "--sets", "ptb,lambada", "--skip-missing") == 2
    assert "ptb: " in capsys.readouterr().err
    assert run("zero-shot", folder, "--sets", "pbt") == 2
    assert "'ptb'" in capsys.readouterr().err


def test_two_results_are_compared_item_by_item(folder, text, tmp_path, capsys):
    other = save(tmp_path / "left", causal=True)
    for name, model in (("a", folder), ("b", other)):
        assert run("perplexity", model, text, "--documents", "--out", tmp_path / f"{name}.json") == 0
    capsys.readouterr()
    assert run("compare", tmp_path / "a.json", tmp_path / "b.json", "--out", tmp_path / "c.json") == 0
    shown = capsys.readouterr().out
    one, two, found = (read_result(tmp_path / f"{name}.json") for name in "abc")
    means = [np.sum(each.items["nats"]) / np.sum(each.items["tokens"]) for each in (one, two)]
    assert found.figures["difference"].value == pytest.approx(means[0] - means[1])
    assert "| nats per token |" in shown
    assert "one side is a bound" in shown
    assert "7 items: with fewer than 30" in shown
    assert run("perplexity", other, text, "--out", tmp_path / "b.json") == 0
    assert run("compare", tmp_path / "a.json", tmp_path / "b.json") == 2
    assert "protocol.items: documents and rows" in capsys.readouterr().err
    assert run("compare", tmp_path / "a.json", tmp_path / "none.json") == 2
    assert "no such file" in capsys.readouterr().err


def test_the_measurements_are_listed(capsys):
    assert run() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("perplexity", "zero-shot", "compare"))
    assert run("perplexty") == 2
    assert "did you mean 'perplexity'" in capsys.readouterr().err
