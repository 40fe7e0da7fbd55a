"""Steps as they are written, and the picture."""

import pytest

from adlm.cli.evaluate.frontier import steps_of
from adlm.errors import ConfigError
from adlm.evaluate.result import Figure
from adlm.evaluate.sampler_frontier import FrontierPoint, draw_frontier
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("16..128", (16, 32, 64, 128)),
        ("16..100", (16, 32, 64, 100)),
        ("8..8", (8,)),
        ("4,64,5,4", (4, 64, 5)),
        ("7", (7,)),
    ],
)
def test_steps_double_up_to_the_last_or_are_as_given(text, steps):
    assert steps_of(text) == steps


@pytest.mark.parametrize("text", ["", "a", "0..8", "16..8", "1..2..3", "4,-1", "4,"])
def test_what_are_no_steps_is_refused(text):
    with raises(ConfigError, subject="steps"):
        steps_of(text)


def points():
    for sampler, steps in (("ancestral", 4), ("ancestral", 8), ("confidence", 4), ("AR", None)):
        figures = {"perplexity": Figure(9.0 * (steps or 1), 1.0), "entropy": Figure(5.0), "mauve": Figure(0.5, 0.1)}
        yield FrontierPoint(sampler, steps, figures | {"tokens_per_second": Figure(100 / (steps or 1))})


def test_the_picture_names_every_sampler_the_data_and_the_protocol(tmp_path):
    data = {"perplexity": Figure(10.0), "entropy": Figure(5.1)}
    stem = tmp_path / "new" / "frontier.v1"
    svg, png = draw_frontier(list(points()), data, stem, title="model $x", note="judge gpt2")
    assert (svg.name, png.name) == ("frontier.v1.svg", "frontier.v1.png")
    drawn = svg.read_text()
    for word in ("ancestral", "confidence", "AR", "the data", "model $x", "judge gpt2", "MAUVE", "tokens per second"):
        assert word in drawn
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_bytes()
    draw_frontier(list(points()), data, stem, title="model $x", note="judge gpt2")
    assert svg.read_bytes() == first


def test_figures_that_were_not_measured_have_no_panel(tmp_path):
    some = [FrontierPoint("AR", None, {"perplexity": Figure(9.0), "tokens_per_second": Figure(1.0)})]
    svg, _ = draw_frontier(some, {}, tmp_path / "frontier", title="model")
    assert "MAUVE" not in svg.read_text()
