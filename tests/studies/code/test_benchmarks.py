import gzip
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.cli import main
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import train_bpe
from adlm.errors import DataError, ModelError, OutOfRange, UnknownName
from adlm.evaluate.result import read_result
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel
from adlm_studies.code.benchmarks import (
    CodeProblem,
    count_lossy,
    encode_problem,
    pass_at,
    read_problems,
    read_solutions,
    run_tests,
    solution_nats,
)
from tests.errors import raises

TOKENIZER = train_bpe(["def f(x):\n    return x + 1\n" * 3], 300)
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
RECORDS = [
    {
        "task_id": f"T/{i}",
        "prompt": f"def f{i}(x):\n",
        "entry_point": f"f{i}",
        "canonical_solution": f"    return x + {i}\n",
        "test": f"def check(f):\n    assert f(1) == {i + 1}\n",
    }
    for i in range(4)
]


def network(*, causal=False):
    torch.manual_seed(0)
    config = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full"))
    built = config.build(VOCABULARY).eval()
    torch.nn.init.normal_(built.head.weight)
    return config, built


@pytest.fixture
def data(tmp_path):
    (tmp_path / "HumanEval.jsonl").write_text("\n".join(map(json.dumps, RECORDS)) + "\n")
    return tmp_path


@pytest.mark.parametrize(("name", "folder", "count"), [("humaneval", "humaneval", 24), ("mbpp-all", "mbpp", 24)])
def test_some_reference_solutions_of_the_real_sets_pass_and_spoilt_ones_do_not(shared, name, folder, count):
    problems = read_problems(name, shared / "data" / folder)
    some = [*problems[:: len(problems) // count]][:count]
    assert run_tests(some, [[problem.solution] for problem in some])(np.arange(count))[:, 0].tolist() == [1] * count
    assert run_tests(some, [["    return object()\n"]] * 4)(np.arange(4))[:, 0].tolist() == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "folder", "count"), [("humaneval", "humaneval", 164), ("mbpp-all", "mbpp", 974)])
def test_all_reference_solutions_of_the_real_sets_pass(shared, name, folder, count):
    problems = read_problems(name, shared / "data" / folder)
    assert len(problems) == count
    counts = run_tests(problems, [[problem.solution] for problem in problems])(np.arange(count))
    assert [problems[i].name for i in np.flatnonzero(counts[:, 0] == 0)] == []


def test_the_test_split_of_mbpp_has_500_problems(shared):
    problems = read_problems("mbpp", shared / "data" / "mbpp")
    assert [problems[0].name, problems[-1].name, len(problems)] == ["11", "510", 500]


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_one_that_passes(n, draw):
    passed, k = draw.draw(st.integers(0, n)), draw.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
    assert math.isclose(pass_at(n, passed, k), sum(map(any, draws)) / len(draws), abs_tol=1e-12)


def test_pass_at_more_than_there_are_is_refused():
    with raises(OutOfRange, subject="k", value=3):
        pass_at(2, 1, 3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 80), st.integers(6, 40), st.booleans())
def test_every_token_of_a_solution_is_scored_once_in_order_on_rows_that_fit(prompt, solution, length, begin):
    text = "".join(chr(97 + i % 26) for i in range(prompt + solution))
    problem = CodeProblem("p", text[:prompt], text[prompt:], "")
    packing = Padded(length, begin=begin)
    found = encode_problem(problem, TOKENIZER, packing)
    written = [token for row in found.rows for token in row.ids[row.given :]]
    assert written == [*TOKENIZER.encode(problem.solution), TOKENIZER.roles.eos_id]
    assert all(len(row.ids) <= length for row in found.rows)
    if found.windows or found.prompt_cut:
        assert all(len(row.ids) == length for row in found.rows)
    assert found.tokens == len(written)


def test_windows_see_what_came_before_them():
    problem = CodeProblem("p", "", "abcdefghijklmnopqrstuvwxyz", "")
    ids = [*TOKENIZER.encode(problem.solution).tolist(), TOKENIZER.roles.eos_id]
    at = 0
    for row in encode_problem(problem, TOKENIZER, Wrapped(8)).rows:
        new = len(row.ids) - row.given
        assert row.ids == ids[at - row.given : at + new]
        at += new
    assert at == len(ids)


@pytest.mark.parametrize("packing", [Padded(64), Padded(64, predict_padding=True), Wrapped(64)])
def test_the_cost_left_to_right_is_that_of_the_chain_rule(packing):
    _, model = network(causal=True)
    problem = CodeProblem("p", "def f(x):\n", "    return x\n", "")
    text = encode_problem(problem, TOKENIZER, packing)
    nats = solution_nats(model, [text], packing, pad_id=TOKENIZER.roles.pad_id)(np.array([0]))[0, 0]
    (row,) = text.rows
    ids = row.ids + [TOKENIZER.roles.pad_id] * (64 - len(row.ids)) * packing.padding_counts
    log_p = model.logits(model.features(torch.tensor([ids])).final)[0].log_softmax(-1)
    expected = -sum(log_p[i, ids[i]].item() for i in range(row.given, len(ids)))
    assert nats == pytest.approx(expected, rel=1e-5)


def test_a_bound_does_not_depend_on_the_problems_beside_it():
    _, model = network()
    packing = Padded(24)
    texts = [
        encode_problem(CodeProblem("p", "def " * i, f"return {i}" * (i + 1), ""), TOKENIZER, packing) for i in range(5)
    ]
    compute = solution_nats(model, texts, packing, pad_id=TOKENIZER.roles.pad_id, draws=3)
    alone = np.concatenate([compute(np.array([i])) for i in range(5)])
    assert np.allclose(compute(np.arange(5)), alone, rtol=1e-5)


def test_logits_that_are_not_finite_are_an_error():
    _, model = network()
    model.head.bias.data[:] = torch.nan
    packing = Padded(24)
    compute = solution_nats(
        model, [encode_problem(CodeProblem("p", "a", "b", ""), TOKENIZER, packing)], packing, pad_id=0
    )
    with raises(ModelError, subject="nats"):
        compute(np.array([0]))


def test_a_tokenizer_that_cannot_spell_a_solution_is_noticed():
    from adlm.data.tokenizer import train_words

    problems = [CodeProblem("p", "", "the cat", ""), CodeProblem("q", "", "return x", "")]
    assert count_lossy(problems, train_words(["the cat"])) >= 1
    assert count_lossy(problems, TOKENIZER) == 0


def test_problems_are_read_plain_and_zipped(data):
    plain = read_problems("humaneval", data)
    file = data / "HumanEval.jsonl"
    zipped = data / "zipped"
    zipped.mkdir()
    with gzip.open(zipped / "HumanEval.jsonl.gz", "wb") as out:
        out.write(file.read_bytes())
    assert plain == read_problems("humaneval", zipped) == read_problems("humaneval", file)
    assert plain[1] == CodeProblem("T/1", "def f1(x):\n", "    return x + 1\n", RECORDS[1]["test"] + "\ncheck(f1)\n")


def test_sets_that_are_not_there_or_not_whole_are_named(tmp_path):
    with raises(UnknownName, name="apps"):
        read_problems("apps", tmp_path)
    with raises(DataError, subject=str(tmp_path)):
        read_problems("humaneval", tmp_path)
    (tmp_path / "HumanEval.jsonl").write_text('{"task_id": "T/0"}\n')
    with raises(DataError, subject=f"{tmp_path}/HumanEval.jsonl, line 1"):
        read_problems("humaneval", tmp_path)
    (tmp_path / "HumanEval.jsonl").write_text("\n")
    with raises(DataError, subject=str(tmp_path / "HumanEval.jsonl")):
        read_problems("humaneval", tmp_path)


def test_solutions_that_leave_problems_out_are_refused(data, tmp_path):
    problems = read_problems("humaneval", data)
    file = tmp_path / "solutions.jsonl"
    file.write_text('{"task_id": "T/0", "completion": "x"}\n{"task_id": "U", "completion": "x"}\n')
    with raises(DataError, subject="T/1"):
        read_solutions(file, problems)
    file.write_text('{"task_id": "T/0"}\n')
    with raises(DataError, subject=f"{file}, line 1"):
        read_solutions(file, problems)


def test_solutions_of_others_are_run_only_when_asked_and_counted(data, tmp_path, capsys):
    file, out = tmp_path / "s.jsonl", tmp_path / "r.json"
    answers = [(r["task_id"], text) for r in RECORDS for text in (r["canonical_solution"], "    return None\n")]
    file.write_text("".join(json.dumps({"task_id": t, "completion": c}) + "\n" for t, c in answers))
    words = ["evaluate", "code", "--data", str(data), "--solutions", str(file), "--out", str(out), "--k", "1,2,5"]
    assert main(words) == 2
    assert "add --run" in capsys.readouterr().err
    assert main([*words, "--run"]) == 0
    assert "programs that a model wrote" in capsys.readouterr().err
    result = read_result(out)
    assert {name: figure.value for name, figure in result.figures.items()} == {"pass@1": 0.5, "pass@2": 1.0}
    assert result.items["passed"] == [1, 1, 1, 1]
    assert result.protocol["confined by"]


def test_a_model_is_scored_and_its_own_solutions_run(data, tmp_path, capsys):
    config, built = network()
    folder, out = tmp_path / "model", tmp_path / "r.json"
    TextModel(built, ModelConfig(config, VOCABULARY, Padded(48, predict_padding=True)), TOKENIZER).save(folder)
    words = ["evaluate", "code", str(folder), "--data", str(data), "--out", str(out), "--draws", "2", "--problems", "2"]
    assert main([*words, "--run", "--n", "2", "--option", "steps=2"]) == 0
    result = read_result(out)
    assert result.figures["pass@1"].value == 0
    assert result.figures["bits_per_byte"].kind == "bound"
    size = sum(len(r["canonical_solution"]) for r in RECORDS[:2])
    assert result.figures["bits_per_byte"].value == pytest.approx(sum(result.items["nats"]) / math.log(2) / size)
    written = [json.loads(line) for line in (tmp_path / "r.solutions.jsonl").read_text().splitlines()]
    assert [each["task_id"] for each in written] == ["T/0", "T/0", "T/1", "T/1"]
    assert not list(tmp_path.glob("*.partial"))


def test_code_without_a_model_or_solutions_is_refused(data, capsys):
    assert main(["evaluate", "code", "--data", str(data)]) == 2
    assert "--solutions" in capsys.readouterr().err
