import hashlib
import json
import math
import re
from base64 import b64encode
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError
from adlm_studies.report.page import page, write_report
from adlm_studies.report.sections import (
    Chart,
    Code,
    Frame,
    Interval,
    Player,
    ReportPage,
    ReportTable,
    Section,
    Series,
    Texts,
)
from adlm_studies.report.tables import describe_interval, ranks, table
from tests.errors import raises

HOSTILE = "</script><img src=x onerror=alert(1)><style>*{display:none}</style>`<b>code</b>`&amp;\u202e\u2028"


def everything(text: str) -> ReportPage:
    """A report with a text wherever one can stand."""
    series = Series(text, [1, 2], [1, 2], labels=[text, text])
    frames = [Frame([], [(1, [(text, 0.5)], [(text, 0.4)])]), Frame([(1, text), (2, None)])]
    return ReportPage(
        text,
        text,
        [
            ReportTable(text, text, [text, "x"], [[text, 1.0], [text, None]], ["", "low"]),
            Chart(text, text, text, text, [series], levels=[(text, 1.0)]),
            Texts(text, text, [(text, text)]),
            Player(text, text, name=text, length=3, given=[(0, text)], frames=frames, anchors=[1]),
            Code(text, text, text, folded=True),
        ],
    )


class Reader(HTMLParser):
    """Tags, their attributes, and the content of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.raw: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem:
            self.raw.append((self.cdata_elem, data))


def shape(text: str) -> list[str]:
    return [tag for tag, _ in Reader(text).tags]


@settings(max_examples=20, deadline=None)
@given(st.text(st.characters(exclude_characters="`\n\r\v\f\x1c\x1d\x1e\x85", exclude_categories=["Cs"]), max_size=30))
def test_no_text_changes_what_a_page_is_made_of(text):
    plain = everything("plain")
    words = f"x{text}x"
    assert shape(page(everything(words))) == shape(page(plain))


def test_hostile_text_opens_no_tag_and_code_is_still_code():
    made = page(everything(HOSTILE))
    assert "<img" not in made
    assert shape(made).count("script") == shape(page(everything("plain"))).count("script")
    assert "<code>&lt;b&gt;code&lt;/b&gt;</code>" in made
    assert not any(name.startswith("on") for _, attributes in Reader(made).tags for name in attributes)


def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page():
    reader = Reader(page(everything("x")))
    policy = next(a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not [a for _, a in reader.tags if "style" in a]  # which the policy would refuse
    allowed = set(re.findall(r"sha256-([^']+)'", policy))
    blocks = [text for kind, text in reader.raw if not text.startswith("{")]
    assert {b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in blocks} == allowed


def test_nothing_is_fetched_from_elsewhere():
    reader = Reader(page(everything("x")))
    assert not [a for _, a in reader.tags if "src" in a or (a.get("href") or "#")[0] != "#"]
    assert not [text for kind, text in reader.raw if kind == "style" and ("url(" in text or "@import" in text)]


def test_a_players_data_comes_back_from_the_page():
    made = page(everything(HOSTILE))
    (data,) = [json.loads(text) for kind, text in Reader(made).raw if text.startswith("{")]
    assert data["frames"][1] == {"tokens": [[1, HOSTILE], [2, None]], "guesses": []}
    assert data["given"] == [[0, HOSTILE]]


def test_predictions_that_are_no_numbers_are_left_out():
    player = Player("p", length=1, frames=[Frame([], [(0, [("a", math.nan)], [("b", 0.12345)])])])
    (data,) = [json.loads(text) for _, text in Reader(page(ReportPage("t", "", [player]))).raw if text.startswith("{")]
    assert data["frames"][0]["guesses"] == [[0, [], [["b", 0.123]]]]


def test_sections_of_one_title_have_addresses_of_their_own():
    made = page(ReportPage("t", "", [Texts("Same"), Texts("Same"), Texts("main"), Texts("猫")]))
    names = [a["id"] for tag, a in Reader(made).tags if "id" in a]
    assert len(set(names)) == len(names)
    links = [a["href"][1:] for tag, a in Reader(made).tags if tag == "a"]
    assert set(links) <= set(names)


def test_a_section_of_no_known_kind_is_refused():
    class Other(Section):
        pass

    with pytest.raises(TypeError, match="Other"):
        page(ReportPage("t", "", [Other("x")]))


def test_a_report_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "report.html"
    write_report(everything("\ud800 half a character"), path)
    before = path.read_bytes()
    assert before.decode().endswith("</html>\n")
    with pytest.raises(TypeError):
        write_report(ReportPage("t", "", [Section("x")]), path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    with raises(ConfigError, subject=str(path / "below" / "a file.html")):
        write_report(ReportPage("t", "", []), path / "below" / "a file.html")


def test_the_best_is_marked_strongly_and_what_may_be_as_good_lightly():
    cells = [
        Interval(1.0, 0.9, 1.1),
        Interval(1.15, 1.05, 1.25),
        Interval(1.3, 1.2, 1.4),
        Interval(math.nan, 0, 9),
        "x",
    ]
    assert ranks(cells, "low") == ["best", "near", "", "", ""]
    assert ranks(cells, "high") == ["", "near", "best", "", ""]
    assert ranks(cells, "") == [""] * 5
    assert ranks([3, 1, 1, None], "low") == ["", "best", "best", ""]
    assert ranks([3], "low") == [""]


def test_figures_of_a_column_stand_point_under_point():
    cells = [4.41, 1234.5, 12, 0.125, Interval(0.98, 0.90, 1.06), None]
    made = table(ReportTable("t", columns=["", "x"], rows=[["r", cell] for cell in cells]))
    plain = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", made)]
    values = [text[: len(text.rstrip("\u2007±. 0123456789,")) or None] for text in plain]
    assert plain[0].startswith("4.410")
    assert plain[1].startswith("1,234") or plain[1].startswith("1,235")
    assert plain[5] == "–"
    # From the point (or its space) to the end all figures are equally long.
    assert len({len(re.split("[.\u2008]", text, maxsplit=1)[1]) for text in plain[:5]}) == 1, values


def test_an_interval_tells_its_ends_and_its_runs():
    assert describe_interval(Interval(1, 0.5, 1.5, bound=True, runs=3)) == (
        "95 % interval 0.5 to 1.5, mean of 3 runs, an upper bound"
    )
    made = table(ReportTable("t", columns=["a", "b"], rows=[["x", Interval(1, 0.5, 1.5)], ["y", Interval(1, 1, 1)]]))
    assert made.count("title=") == 1


def test_rows_of_any_length_make_a_table():
    made = table(ReportTable("t", columns=["a"], rows=[[], ["x", 1, 2], ["y"]]))
    assert made.count("<tr>") == 4
    assert made.count("</th>") + made.count("</td>") == 12
    assert "<tbody></tbody>" in table(ReportTable("t"))
