"""How much longer a tokenizer can make a text, checked before it is used.

A normalizer may replace a character by many, and a sequence of such ones multiplies: a file of a few kilobytes can ask
for more memory than there is, and the tokenizers library then aborts the process. Real tokenizers replace a character
by one or a few.
"""

import json
from typing import Any

from adlm.errors import DataError

MOST_GROWTH = 64.0
MOST_PARTS = 64
_ADDED_CHARACTERS = 64  # that one part may put before a text


def check_growth(text: str, where: str) -> None:
    """Refuse the content of a `tokenizer.json` that could make texts more than `MOST_GROWTH` times as long.

    What is not JSON is left to the library, which says why.
    """
    try:
        description = json.loads(text)
    except (ValueError, RecursionError):
        return
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        growth, parts = _growth(description.get(name) if isinstance(description, dict) else None)
        if growth > MOST_GROWTH or parts > MOST_PARTS:
            found = f"its {name} makes texts up to {growth:.0f} times as long, in {parts} parts"
            raise DataError(
                f"cannot load the tokenizer {where}: {found}; do not use this file: it is not a real one",
                subject=name,
            )


def _growth(part: Any) -> tuple[float, int]:
    """The factor by which a part can lengthen a text, and the number of parts in it."""
    if isinstance(part, list):
        growth, parts = 1.0, 0
        for each in part:
            factor, count = _growth(each)
            growth, parts = min(growth * factor, 1e12), parts + count
        return growth, parts
    if not isinstance(part, dict):
        return 1.0, 0
    for name in ("normalizers", "pretokenizers", "decoders"):
        if name in part:
            return _growth(part[name])
    if part.get("type") == "Replace":
        return max(1.0, len(str(part.get("content", ""))) / _shortest(part.get("pattern"))), 1
    if part.get("type") == "Prepend":
        return (1.0 if len(str(part.get("prepend", ""))) <= _ADDED_CHARACTERS else 1e12), 1
    return 1.0, 1


def _shortest(pattern: Any) -> float:
    """Characters that a pattern takes at least; an expression may match a single one, or none between any two."""
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    return len(literal) if isinstance(literal, str) and literal else 0.5
