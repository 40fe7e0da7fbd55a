import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm_studies.report.chart import Axis, points, save_svg, svg, tick_texts
from adlm_studies.report.sections import Chart, Series

LINE = Series("a", [1.0, 2.0, 3.0], [3.0, 2.0, 1.5], [2.5, 1.5, 1.0], [3.5, 2.5, 2.0])
CHART = Chart("A chart", x_label="steps", y_label="nats", series=[LINE])
ANY = st.floats() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1.7e308])


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def of_class(text: str, name: str) -> list[ElementTree.Element]:
    return [element for element in parsed(text).iter() if name in element.get("class", "").split()]


def numbers(text: str) -> list[float]:
    """Every coordinate of a picture."""
    found = []
    for element in parsed(text).iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "points", "d"):
            found += re.findall(r"nan|inf|-?\d+\.?\d*(?:e[+-]?\d+)?", element.get(name, ""))
    return [float(each) for each in found]


@given(
    st.lists(st.lists(st.tuples(ANY, ANY, ANY, ANY), max_size=5), max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(ANY, max_size=2),
)
def test_any_values_make_a_picture_whose_points_lie_inside(series, x_log, y_log, line, levels):
    made = [Series(str(i), *map(list, zip(*rows, strict=True)), line=line) if rows else Series("", [], [])
            for i, rows in enumerate(series)]  # fmt: skip
    chart = Chart("t", series=made, x_log=x_log, y_log=y_log, levels=[("level", y) for y in levels])
    drawn = svg(chart)
    assert all(math.isfinite(each) for each in numbers(drawn))
    dots = [dot for dot in of_class(drawn, "dot") if "key-dot" not in dot.get("class")]
    assert len(dots) == sum(len(points(each, x_log=x_log, y_log=y_log)) for each in made)
    assert all(-1 <= float(dot.get("cx")) <= 641 and -1 <= float(dot.get("cy")) <= 500 for dot in dots)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_ticks_are_few_round_and_inside(low, width):
    axis = Axis.over([low, low + width], log=False, length=100)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(-0.01 <= axis.place(tick) <= 100.01 for tick in ticks)
    assert len(set(tick_texts(ticks))) == len(ticks)


@given(st.floats(1e-8, 1e8), st.floats(1.01, 1e8))
def test_log_ticks_are_few_and_inside(low, ratio):
    axis = Axis.over([low, low * ratio], log=True, length=100)
    assert 1 <= len(axis.ticks()) <= 12
    assert all(-0.01 <= axis.place(tick) <= 100.01 for tick in axis.ticks())


def test_ticks_are_the_numbers_a_person_would_write():
    assert tick_texts(Axis(0, 1.5e6, False, 1).ticks()) == ["0", "0.25M", "0.50M", "0.75M", "1.00M", "1.25M", "1.50M"]
    assert tick_texts(Axis(0.4, 6, True, 1).ticks(), log=True) == ["0.5", "1", "2", "5"]
    assert tick_texts(Axis(1, 1e6, True, 1).ticks(), log=True) == ["1", "10", "100", "1k", "10k", "100k", "1M"]
    assert tick_texts(Axis(-1, 1, False, 1).ticks())[0].startswith("−1")


def test_what_cannot_be_drawn_is_left_out():
    series = Series("a", [0, 1, 2, 3, 4], [1, math.nan, -1, 2, math.inf], low=[0.5] * 5, high=[math.nan] * 5)
    assert [(p.x, p.y, p.low, p.high) for p in points(series)] == [(0, 1, 0.5, 1), (2, -1, -1, -1), (3, 2, 0.5, 2)]
    assert [p.x for p in points(series, x_log=True, y_log=True)] == [3]


def test_a_line_has_a_band_and_single_points_have_bars():
    assert len(of_class(svg(CHART), "band")) == 1
    loose = svg(replace(CHART, series=[replace(LINE, line=False)]))
    assert not of_class(loose, "band")
    assert not of_class(loose, "line")
    assert len(of_class(loose, "bar")) == 3


def test_a_picture_has_a_name_a_description_and_its_levels():
    drawn = svg(replace(CHART, levels=[("exact entropy", 1.0)]))
    assert parsed(drawn).get("role") == "img"
    assert "<title>A chart</title>" in drawn
    assert "last 1.5" in drawn
    assert "exact entropy" in drawn


def test_names_are_text_whatever_they_contain():
    hostile = "</svg><script>alert(1)</script>&\"'"
    drawn = svg(Chart(hostile, x_label=hostile, y_label=hostile, levels=[(hostile, 1)],
                      series=[Series(hostile, [1], [1], labels=[hostile])]))  # fmt: skip
    assert not [element for element in parsed(drawn).iter() if element.tag.endswith("script")]
    assert hostile in "".join(parsed(drawn).itertext())


@pytest.mark.parametrize("count", [0, 12])
def test_a_picture_by_itself_has_its_own_colours_for_light_and_dark(tmp_path, count):
    many = [replace(LINE, name=f"a long name of a series {i}") for i in range(count)]
    save_svg(replace(CHART, series=many), tmp_path / "deep" / "chart.svg")
    text = (tmp_path / "deep" / "chart.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme:dark" in text
    assert "--s0:#0072B2" in text
    assert len(of_class(text, "key")) == count
    assert all(float(key.get("x")) < 640 for key in of_class(text, "key"))
    assert ("nothing to draw" in text) == (count == 0)
