import math
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import MissingExtra
from adlm_studies.report.chart import DARK, LIGHT, palette_css, points, save_svg, svg
from adlm_studies.report.page import page
from adlm_studies.report.sections import Chart, ReportPage, Series
from tests.errors import raises

LINE = Series("a", [1.0, 2.0, 3.0], [3.0, 2.0, 1.5], [2.5, 1.5, 1.0], [3.5, 2.5, 2.0])
CHART = Chart("A chart", x_label="steps", y_label="nats", series=[LINE])
ANY = st.floats() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1.7e308])
USE = "{http://www.w3.org/2000/svg}use"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def of_class(text: str, name: str) -> list[ElementTree.Element]:
    return [element for element in parsed(text).iter() if name in element.get("class", "").split()]


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in parsed(drawn).iter() if element.tag.endswith("}text")]


@settings(max_examples=25, deadline=None)
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
    dots = of_class(svg(chart), "dot")
    assert len(dots) == sum(len(points(each, x_log=x_log, y_log=y_log)) for each in made)
    positions = [(float(use.get("x")), float(use.get("y"))) for dot in dots for use in dot.iter(USE)]
    assert len(positions) == len(dots)
    assert all(0 <= x <= 576 and 0 <= y <= 360 for x, y in positions)


def test_a_level_beside_one_point_on_a_logarithmic_axis():
    chart = Chart("t", series=[Series("", [1.96], [0.0])], x_log=True, levels=[("level", 0.0)])
    assert len(of_class(svg(chart), "dot")) == 1


def test_ticks_are_the_numbers_a_person_would_write():
    wide = Series("", [1, 1e6], [-1, 1])
    assert {"1", "10", "100", "1k", "10k", "100k", "1M"} <= {*texts(svg(Chart("t", series=[wide], x_log=True)))}
    assert "−1" in texts(svg(Chart("t", series=[wide])))


def test_what_cannot_be_drawn_is_left_out():
    series = Series("a", [0, 1, 2, 3, 4], [1, math.nan, -1, 2, math.inf], low=[0.5] * 5, high=[math.nan] * 5)
    assert [(p.x, p.y, p.low, p.high) for p in points(series)] == [(0, 1, 0.5, 1), (2, -1, -1, -1), (3, 2, 0.5, 2)]
    assert [p.x for p in points(series, x_log=True, y_log=True)] == [3]


def test_a_line_has_a_band_and_single_points_have_none():
    assert len(of_class(svg(CHART), "band")) == 1
    assert not of_class(svg(replace(CHART, series=[replace(LINE, line=False)])), "band")


def test_a_picture_has_a_name_a_description_levels_and_points_that_tell_their_figures():
    drawn = svg(replace(CHART, levels=[("exact entropy", 1.0)]))
    assert parsed(drawn).get("role") == "img"
    assert "<title>A chart</title>" in drawn
    assert "last 1.5" in drawn
    assert "exact entropy" in texts(drawn)
    assert "a: 2 (1.5 to 2.5) at 2" in "".join(of_class(drawn, "dot")[1].itertext())


def test_names_are_text_whatever_they_contain():
    hostile = "</svg><script>alert(1)</script>&\"' $x_1$"
    drawn = svg(Chart(hostile, x_label=hostile, y_label=hostile, levels=[(hostile, 1)],
                      series=[Series(hostile, [1], [1], labels=[hostile])]))  # fmt: skip
    assert not [element for element in parsed(drawn).iter() if element.tag.endswith("script")]
    assert texts(drawn).count(hostile) == 5  # both axes, the level, the key and the label


def test_every_colour_of_a_picture_has_one_for_the_dark_theme():
    many = [replace(LINE, name=f"series {i}") for i in range(9)]
    drawn = svg(replace(CHART, series=many, levels=[("level", 1.0)]), heading=True)
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', drawn))
    assert set(LIGHT) <= used
    assert all(f'"{colour}"' in palette_css() for colour in used)


def test_a_picture_by_itself_follows_the_theme_and_is_the_same_each_time(tmp_path):
    for name in ("one", "two"):
        save_svg(CHART, tmp_path / "deep" / f"{name}.svg")
    text = (tmp_path / "deep" / "one.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme:dark" in text
    assert f"fill:{DARK[0]}" in text
    assert text == (tmp_path / "deep" / "two.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [0, 12])
def test_every_named_series_is_in_the_legend(count):
    drawn = svg(replace(CHART, series=[replace(LINE, name=f"a long name of a series {i}") for i in range(count)]))
    assert sum("a long name" in text for text in texts(drawn)) == count
    assert ("nothing to draw" in drawn) == (count == 0)


def test_without_matplotlib_a_page_has_the_figures_and_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(MissingExtra, subject="plot"):
        svg(CHART)
    made = page(ReportPage("t", "", [CHART]))
    assert "adlm[plot]" in made
    assert "<svg class=" not in made
    assert "<td" in made


def test_a_bar_that_ends_far_below_its_point_stays_on_a_logarithmic_axis():
    chart = Chart("t", series=[Series("a", [0.0], [81629.0], [5.6e-14], [81629.0])], y_log=True)
    (use,) = [use for dot in of_class(svg(chart), "dot") for use in dot.iter(USE)]
    assert 0 <= float(use.get("y")) <= 360
