"""The protocols of published figures, by name: text, split, tokens, length and rows.

A figure is comparable only under the same protocol. LM1B packed and unpacked, for one, differ by four points of
perplexity.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlm.config import to_json
from adlm.data.catalog import open_source
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.source import Source
from adlm.data.tokenizer import Roles, Tokenizer
from adlm.errors import ConfigError, UnknownName
from adlm.objectives.objective import Objective


@dataclass(frozen=True)
class Protocol:
    """The protocol of a published figure.

    Args:
        data: its name in the catalog, which has its document rule and detokenizer.
        tokenizer: its name, in words.
        vocabulary: the number of ids, with the mask.
        probe: a text and its ids, by which the tokenizer is recognized.
        size: the number of documents or characters of the published split.
        text: what is scored, in words.
    """

    name: str
    data: str
    split: str
    tokenizer: str
    vocabulary: int
    probe: tuple[str, tuple[int, ...]]
    packing: Packing
    size: tuple[str, int]
    text: str

    def open(self, data: str | Path | Source, folder: str | Path | None = None) -> Source:
        """The text of the protocol: by name, from the Hub or a folder; or from the folder or file `data`."""
        if data == self.data:
            return open_source(self.data, folder=folder)
        if folder is None and not isinstance(data, Source) and Path(data).expanduser().exists():
            return open_source(self.data, folder=data)
        raise ConfigError(
            f"the protocol {self.name!r} is for {self.data!r}, not for {data!r}",
            fix=f"name {self.data}, or a folder with its usual files",
            subject="data",
        )

    def check(self, tokenizer: Tokenizer, packing: Packing) -> None:
        """Refuse a model that the protocol does not fit, and say what differs."""
        text, ids = self.probe
        differs = []
        if packing.length != self.packing.length:
            differs.append(f"rows of {packing.length} tokens instead of {self.packing.length}")
        if tokenizer.vocab_size != self.vocabulary:
            differs.append(f"a vocabulary of {tokenizer.vocab_size:,} instead of {self.vocabulary:,}")
        if (found := tuple(tokenizer.encode(text).tolist())) != ids:
            differs.append(f"a tokenizer that is not {self.tokenizer} ({text!r} is {found} instead of {ids})")
        if differs:
            raise ConfigError(
                f"the model does not fit the protocol {self.name!r}",
                f"it has {'; '.join(differs)}",
                "leave the protocol out: rows are then those of training",
                subject="protocol",
            )

    def departures(self, source: Source, trained: Packing, limit: int | None) -> list[str]:
        """The differences between a measurement and the published one, in words. Reads the split once."""
        unit, count = self.size
        documents = characters = 0
        for text, ends in source.pieces(self.split):
            documents, characters = documents + ends, characters + len(text)
        found = documents if unit == "documents" else characters
        said = []
        if found != count:
            said.append(f"{found:,} {unit} of text, a cut of our own; the published split has {count:,}")
        if limit is not None:
            said.append(f"of these the first {limit:,} rows alone")
        if trained != self.packing:
            said.append(f"the model was trained on other rows, {trained}")
        return said


_ALL = (
    Protocol(
        "lm1b",
        "lm1b",
        "test",
        "bert-base-uncased",
        30_522,
        ("Hello, world!", (7592, 1010, 2088, 999)),
        Padded(128, crop=True),
        ("documents", 306_688),
        "the held-out sentences, detokenised, each on a row of its own and cut at 128 tokens, not packed",
    ),
    Protocol(
        "openwebtext",
        "openwebtext",
        "test",
        "gpt2",
        50_258,
        ("Hello, world!", (15496, 11, 995, 0)),
        Wrapped(1024, framed=True),
        ("documents", 100_000),
        "the last 100,000 documents, each ended by the end token, in one stream cut into rows of 1,024",
    ),
    Protocol(
        "text8",
        "text8",
        "test",
        "characters",
        30,
        ("a zone", (1, 0, 26, 15, 14, 5)),
        Wrapped(256, separated=False),
        ("characters", 5_000_000),
        "the last 5,000,000 of 100,000,000 characters, in one stream cut into rows of 256",
    ),
)
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _ALL}


def protocol_named(name: str) -> Protocol:
    """A published protocol by its name."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def described(
    packing: Packing,
    tokenizer: Tokenizer,
    objective: Objective,
    *,
    draws: int,
    documents: bool = False,
    stride: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Everything that decides a likelihood figure except model, text and seed, as JSON.

    Two measurements that are compared may differ in `estimator`, and in nothing else.
    """
    exact = objective.exact
    windows = {"length": packing.length, "stride": stride or packing.length}
    return {
        "items": "documents" if documents else "rows",
        "rows": {"windows of a document": windows, "frame": to_json(packing)} if documents else to_json(packing),
        "limit": limit,
        "tokenizer": tokenizer.fingerprint,
        "counting": counting(packing, documents=documents),
        "estimator": {"objective": to_json(objective), "draws": 0 if exact else draws},
    }


def counting(packing: Packing, *, documents: bool = False) -> str:
    """What counts as a token and as text, in words."""
    begin, end = packing.frame(Roles(2, 0, 1, 1, 0))
    frame = " and ".join(["begin"] * bool(begin) + ["end"] * bool(end))
    said = [f"{frame} tokens are scored and count as tokens, not as text" if frame else "text alone is scored"]
    if packing.padding_counts:
        said.append("padding is scored, and counts neither as tokens nor as text")
    elif packing.pads or documents:
        said.append("padding is neither seen nor scored")
    said.append("characters and bytes (UTF-8) are those of the detokenised text whose tokens are scored")
    return "; ".join(said)
