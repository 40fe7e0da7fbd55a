"""A report as one HTML file: nothing is fetched, and nothing runs but the scripts that lie beside this file.

The page's policy names those scripts and styles by their checksums, so that text, whoever wrote it, stays text.
"""

import base64
import hashlib
import math
from functools import singledispatch
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from adlm.errors import ConfigError, MissingExtra
from adlm.files import write_atomically
from adlm_studies.report.chart import palette_css, points, svg
from adlm_studies.report.markup import data_block, inline, paragraphs, slug
from adlm_studies.report.sections import Chart, Code, Player, ReportPage, ReportTable, Section, Texts
from adlm_studies.report.tables import table

_STYLES, _SCRIPTS = ("style.css", "chart.css", "player.css"), ("canvas.js", "player.js", "page.js")


def write_report(report: ReportPage, path: Path) -> None:
    """The page as a file, which is there whole or not at all."""
    # Half a character, as some tokenizers have them, has no place in a file.
    content = page(report).encode("utf-8", "replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error}", subject=str(path)) from error


def page(report: ReportPage) -> str:
    """The complete HTML page of a report."""
    styles, scripts = [palette_css() + "\n".join(map(_file, _STYLES))], [_file(name) for name in _SCRIPTS]
    taken = {"top", "main"}
    names = [slug(section.title, taken) for section in report.sections]
    sections = "\n".join(_section(section, name) for section, name in zip(report.sections, names, strict=True))
    title = escape(report.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(styles, scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
{"".join(f"<style>{style}</style>" for style in styles)}
</head>
<body id="top">
<a class="skip" href="#main">to the content</a>
<div class="page">
{_contents(report, names)}
<div class="column">
<header>
<button class="theme" type="button" hidden>{_THEME}</button>
<h1>{title}</h1>
{paragraphs(report.lead, "lead")}
</header>
<main id="main">
{sections}
</main>
<footer>Made by <code>adlm</code>. One file: nothing in it is fetched from elsewhere.</footer>
</div>
</div>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


_THEME = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="8.5" fill="none" stroke="currentColor"'
    ' stroke-width="2"/><path d="M12 3.5a8.5 8.5 0 0 1 0 17z" fill="currentColor"/></svg>'
)


def _file(name: str) -> str:
    """From this folder, or one of those that a report shares with the studio."""
    own = files("adlm_studies.report").joinpath(name)
    return (own if own.is_file() else files("adlm.serve") / "static" / name).read_text(encoding="utf-8")


def _policy(styles: list[str], scripts: list[str]) -> str:
    def sums(contents: list[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    parts = ("default-src 'none'", f"style-src {sums(styles)}", f"script-src {sums(scripts)}")
    return "; ".join((*parts, "base-uri 'none'", "form-action 'none'"))


def _contents(report: ReportPage, names: list[str]) -> str:
    links = (f'<li><a href="#{n}">{inline(s.title)}</a></li>' for s, n in zip(report.sections, names, strict=True))
    return f'<nav class="contents" aria-label="contents"><ol>{"".join(links)}</ol></nav>'


def _section(section: Section, name: str) -> str:
    kind = type(section).__name__.lower()
    note = paragraphs(section.note, "note")
    heading = f'<h2><a href="#{name}">{inline(section.title)}</a></h2>'
    return f'<section id="{name}" class="{kind}-section">{heading}{note}{_body(section, name)}</section>'


@singledispatch
def _body(section: Section, name: str) -> str:
    raise TypeError(f"nothing is known of how {type(section).__name__} looks")


@_body.register
def _(section: ReportTable, name: str) -> str:
    return table(section)


@_body.register
def _(section: Chart, name: str) -> str:
    label = escape(section.title, quote=True)
    try:
        drawn = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{svg(section)}</div>'
    except MissingExtra as error:  # the figures are there all the same
        drawn = paragraphs(f"Not drawn: {error.fix}", "note")
    return f"<figure>{drawn}{_figures(section)}</figure>"


def _figures(chart: Chart) -> str:
    """The points of a chart as a table, for those who would rather read them."""
    rows = [
        (series.name, p.x, p.y, *((p.low, p.high) if p.high > p.low else (None, None)))
        for series in chart.series
        for p in points(series, x_log=chart.x_log, y_log=chart.y_log)
    ]
    if not rows:
        return ""
    columns = ("series", chart.x_label or "x", chart.y_label or "y", "low", "high")
    wide = 5 if any(row[3] is not None for row in rows) else 3
    shown = table(ReportTable(f"{chart.title}: figures", columns=columns[:wide], rows=[row[:wide] for row in rows]))
    return f"<details><summary>the figures</summary>{shown}</details>"


@_body.register
def _(section: Texts, name: str) -> str:
    def card(heading: str, text: str) -> str:
        body = escape(text) if text.strip() else '<span class="absent">an empty text</span>'
        return f'<article><h3>{inline(heading)}</h3><p class="sample-text" dir="auto">{body}</p></article>'

    return f'<div class="texts">{"".join(card(*each) for each in section.texts)}</div>'


@_body.register
def _(section: Code, name: str) -> str:
    block = f'<div class="code"><pre tabindex="0"><code>{escape(section.text)}</code></pre></div>'
    return f"<details><summary>show</summary>{block}</details>" if section.folded else block


@_body.register
def _(section: Player, name: str) -> str:
    """Without scripts it is the text as it came out."""
    texts: dict[int, str | None] = dict(section.given)
    for frame in section.frames:
        texts.update(frame.tokens)
    last = "".join(texts.get(i) or " …" for i in range(section.length)).strip()
    label = escape(" – ".join(part for part in (section.title, section.name) if part), quote=True)
    source = f"data:{name}"  # which no section is called
    return (
        f'<div data-player="{source}" role="group" aria-label="{label}"><p class="sample-text" dir="auto">'
        f"{escape(last)}</p></div>{data_block(source, player_data(section))}"
    )


def player_data(player: Player) -> dict[str, Any]:
    """The argument of `mountPlayer` in player.js, as plain values for JSON."""

    def ranking(candidates: Any) -> list[list[Any]]:
        return [[text, round(p, 3)] for text, p in candidates if math.isfinite(p)]

    return {
        "length": player.length,
        "given": [list(each) for each in player.given],
        "anchors": list(player.anchors),
        "frames": [
            {
                "tokens": [list(each) for each in frame.tokens],
                "guesses": [[i, ranking(anchor), ranking(final)] for i, anchor, final in frame.predictions],
            }
            for frame in player.frames
        ],
    }
