import json
import math
from dataclasses import replace

import pytest

from adlm.errors import DataError
from adlm.evaluate.result import Figure, Result, markdown, read_result
from tests.errors import raises

RESULT = Result(
    "perplexity",
    {"name": "m", "weights": "0"},
    {"name": "d", "key": "k"},
    {"rows": 8},
    7,
    {"perplexity": Figure(12.345, 0.0678, "bound", draws=8), "worst": Figure(math.inf, math.inf)},
    {"nats": [1.5, math.inf, 2.0]},
)


def test_a_result_comes_back_as_it_was_infinities_too(tmp_path):
    path = tmp_path / "new" / "r.json"
    RESULT.save(path)
    assert read_result(path) == RESULT
    assert "Infinity" not in path.read_text()  # which is no JSON
    assert [each.name for each in path.parent.iterdir()] == ["r.json"]


def test_figures_show_the_digits_that_their_error_lets_stand():
    assert str(RESULT.figures["perplexity"]) == "≤ 12.345 ± 0.068"
    assert str(Figure(12.345, None, "exact")) == "12.35"
    assert str(Figure(1234.5, 67.8)) == "1234 ± 68"
    assert str(Figure(math.inf, math.inf)) == "inf"


def test_an_interval_is_shown_instead_of_the_error():
    assert str(Figure(0.9876, 0.01, interval=(0.91, 0.999))) == "0.988 [0.910, 0.999]"


def test_a_result_of_version_0_1_has_the_figures_of_today(tmp_path):
    old = replace(RESULT, figures={"bits_a_byte": Figure(1.0), "bits_a_character ptb": Figure(2.0)})
    old.save(tmp_path / "r.json")
    stored = json.loads((tmp_path / "r.json").read_text())
    del stored["notes"]
    for figure in stored["figures"].values():
        del figure["interval"]
    (tmp_path / "r.json").write_text(json.dumps(stored))
    assert read_result(tmp_path / "r.json").figures.keys() == {"bits_per_byte", "bits_per_character ptb"}


def test_a_table_has_a_row_a_result():
    lines = markdown([RESULT, RESULT], ["perplexity", "other"]).split("\n")
    assert lines[2:] == ["| m | d | ≤ 12.345 ± 0.068 |  |"] * 2


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[]",
        '{"schema": "other"}',
        '{"schema": "adlm.result.v1", "task": "x"}',
        '{"schema": "adlm.result.v1", "figures": {"a": {}}, "items": {}}',
    ],
)
def test_what_is_no_result_is_refused(tmp_path, content):
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with raises(DataError, subject=str(path)):
        read_result(path)


def test_versions_of_what_decides_figures_are_kept(tmp_path):
    RESULT.save(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["versions"].keys() >= {"adlm", "torch", "python"}
