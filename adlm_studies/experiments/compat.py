"""Steps and results that version 0.1 stored, in today's names: they are read, and not computed again."""

from typing import Any

from adlm.config import renamed

_KINDS = {
    "AtRandom": "RandomTokens",
    "BySize": "SolveBySize",
    "Content": "ContentTokens",
    "Count": "FillTables",
    "Learn": "TrainOnProcess",
    "NaiveAnelbo": "ReferenceAnelbo",
    "Rare": "RareTokens",
    "Reason": "TrainReasoner",
    "Record": "RecordSample",
    "Refer": "MeasureRealText",
    "Share": "TrainSharedTokenizer",
    "Train": "TrainAndScore",
    "TrainCounted": "TrainWithRuleFromData",
    "TrainInShared": "TrainWithSharedTokenizer",
    "Write": "GenerateTexts",
}
_KEYS = {
    "bytes_a_token": "bytes_per_token",
    "guesses": "predictions",
    "naive": "reference",
    "nats_a_row": "nats_per_row",
    "nats_a_token": "nats_per_token",
    "share": "fraction",
    "tokens_a_second": "tokens_per_second",
}
_REFERENCE = ", naive", ", reference"  # the ending of a model's name


def current(data: Any) -> Any:
    """Stored JSON with the names of 0.1 replaced by today's, at any depth."""
    return _current(renamed(data))


def _current(data: Any) -> Any:
    if isinstance(data, list):
        return [_current(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {_KEYS.get(key, str(key)).replace(*_REFERENCE): _current(value) for key, value in data.items()}
    if isinstance(kind := found.get("kind"), str):
        found["kind"] = _KINDS.get(kind, kind)
    return found
