"""Published spacing undone: named detokenizers.

Zero-shot perplexities are comparable only if this is done alike everywhere, so these do what the evaluations of
GPT-2, Megatron, SEDD and MDLM do, slips included: each is a table of replacements, made from top to bottom on
one line (or on one record, where records come whole).
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

from adlm.errors import UnknownName

_Steps = Sequence[tuple[str | re.Pattern[str], str]]


def _enclosing(opening: str, closing: str) -> tuple[re.Pattern[str], str]:
    """Drop the space just inside a pair of marks."""
    first, last = re.escape(opening), re.escape(closing)
    return re.compile(rf"{first}\s*([^{last}]*?)\s*{last}"), rf"{opening}\1{closing}"


_WIKITEXT: _Steps = (
    ("s '", "s'"),
    # Meant for years like ' 90, this never fires on WikiText; it is kept as it is everywhere.
    (re.compile(r"/' [0-9]/"), "/'[0-9]/"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
    *(_enclosing(*pair) for pair in ("()", "[]", "{}", '""', "''")),
    *(("= " * count + "=", "=" * (count + 1)) for count in (3, 2, 1)),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)
_PTB: _Steps = (
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (" \n ", "\n"),
    (r"\/", "/"),
    (re.compile("(?<= )N(?= )"), "1"),
    ("$ 1", "$1"),
    ("# 1", "#1"),
    ("<unk>", "?"),
)
_LM1B: _Steps = (
    ("http : / / ", "http://"),
    ("https : / / ", "https://"),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    (" ? ", "? "),
    (re.compile(r" \?$"), "?"),
    (" ! ", "! "),
    (re.compile(r" !$"), "!"),
    *((f" {mark} ", f"{mark} ") for mark in ",:;"),
    (" / ", "/"),
    (re.compile('" ([^"]+) "'), r'"\1"'),
    (re.compile("' ([^']+) '"), r"'\1'"),
    (re.compile(r"\( ([^()]+) \)"), r"(\1)"),
    (re.compile(r"\[ ([^\[\]]+) \]"), r"[\1]"),
    ("$ ", "$"),
    ("£ ", "£"),
)


def _replaced(steps: _Steps, text: str) -> str:
    for found, instead in steps:
        text = text.replace(found, instead) if isinstance(found, str) else found.sub(instead, text)
    return text


def _lambada(text: str) -> str:
    # The line break in front stands for the beginning of the passage, as in GPT-2's evaluation.
    return "\n" + text.replace("“", '"').replace("”", '"').strip()


def _unchanged(text: str) -> str:
    return text


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "none": _unchanged,
    # AG News is read as published, broken entities and all.
    "ag_news": _unchanged,
    "lambada": _lambada,
    "lm1b": partial(_replaced, _LM1B),
    "ptb": partial(_replaced, _PTB),
    "scientific_papers": partial(_replaced, (*_WIKITEXT, *_LM1B)),
    "wikitext": partial(_replaced, _WIKITEXT),
}


def find_detokenizer(name: str) -> Callable[[str], str]:
    """The detokenizer of that name."""
    if name not in DETOKENIZERS:
        raise UnknownName("detokenizer", name, DETOKENIZERS)
    return DETOKENIZERS[name]
