"""Words of a report as HTML: nothing in them is markup, but for `code` between backticks."""

import json
import re
from html import escape
from typing import Any

_CODE = re.compile(r"`([^`\n]+)`")


def inline(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=True))


def paragraphs(text: str, name: str) -> str:
    """The paragraphs of a text as HTML; empty lines separate them."""
    found = (part.strip() for part in re.split(r"\n\s*\n", text))
    return "".join(f'<p class="{name}">{inline(part)}</p>' for part in found if part)


def data_block(name: str, value: Any) -> str:
    """JSON that a script of the page reads. No character of it can end the block."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{escape(name, quote=True)}">{text}</script>'


def slug(title: str, taken: set[str]) -> str:
    """A name for an address, which none before it has."""
    stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name
