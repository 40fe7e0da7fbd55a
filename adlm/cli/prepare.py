"""`adlm prepare`: a corpus into shards."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from adlm.cli.progress import bar, console
from adlm.data.catalog import listing, open_source
from adlm.data.corpus_table import CorpusTable, make_table
from adlm.data.documents import DocumentRule, Lines, Paragraphs, Whole, WikiTextArticles
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.prepare import prepare, tokenizer_for
from adlm.data.shards import Shards
from adlm.data.source import Source
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, NotUtf8

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
_RULES: dict[str, DocumentRule] = {
    "whole": Whole(),
    "lines": Lines(),
    "paragraphs": Paragraphs(),
    "articles": WikiTextArticles(),
}


@dataclass(frozen=True)
class PackingOptions:
    """Options that say how documents become rows.

    Args:
        length: tokens per row.
        packing: wrap: one stream cut into rows; pad: documents on rows of their own; crop: one row per document.
        separate: with wrap: end every document with the end token.
        frame: with wrap: begin and end every row with the begin and end token (published OpenWebText runs).
        apart: with wrap: documents that share a row do not see each other.
    """

    length: int = 128
    packing: Literal["wrap", "pad", "crop"] = "wrap"
    separate: bool = True
    frame: bool = False
    apart: bool = False

    def build(self) -> Packing:
        """The packing that the options describe."""
        if self.packing == "wrap":
            return Wrapped(self.length, separated=self.separate, framed=self.frame, apart=self.apart)
        if self.frame or self.apart or not self.separate:
            raise ConfigError("--frame, --apart and --no-separate need --packing wrap", subject="packing")
        return Padded(self.length, crop=self.packing == "crop")


@dataclass(frozen=True)
class SourceOptions:
    """Options that say where text is and how it is read.

    Args:
        folder: where the files of a catalog name are; by default they come from the Hub.
        field: the field or column that holds the text. Numbers, as in 2,3, are columns of a CSV without a header line.
        documents: what a document is in a text file.
        detokenizer: undo a corpus's tokenization, by name.
        revision: a branch, tag or commit of a Hub data set.
        streaming: read a Hub data set without storing it.
        replace_bad_bytes: read bytes that are not UTF-8 as U+FFFD instead of stopping.
    """

    folder: Path | None = None
    field: str | None = None
    documents: Literal["whole", "lines", "paragraphs", "articles"] | None = None
    detokenizer: str | None = None
    revision: str | None = None
    streaming: Flag = False
    replace_bad_bytes: Flag = False

    def _fields(self) -> str | tuple[str, ...] | None:
        numbers = (self.field or "").split(",")
        return tuple(numbers) if all(number.isdecimal() for number in numbers) else self.field

    def open(self, name: str) -> Source:
        """The source of that name or path."""
        return open_source(
            name,
            folder=self.folder,
            field=self._fields(),
            documents=_RULES[self.documents] if self.documents else None,
            detokenizer=self.detokenizer,
            streaming=self.streaming,
            revision=self.revision,
            encoding_errors="replace" if self.replace_bad_bytes else None,
        )


@dataclass(frozen=True)
class WorkOptions:
    """Options that say how the work is done.

    Args:
        workers: processes that encode; all cores by default.
        cache: folder for prepared data; $ADLM_CACHE or ~/.cache/adlm by default.
        force: prepare again, even if it is there.
    """

    workers: int | None = None
    cache: Path | None = None
    force: Flag = False


def command(
    source: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    list: Flag = False,
    tokenizer: str = "bpe:8192",
    split: str = "all",
    rows: Annotated[PackingOptions, tyro.conf.arg(name="")] = PackingOptions(),  # noqa: B008
    text: Annotated[SourceOptions, tyro.conf.arg(name="")] = SourceOptions(),  # noqa: B008
    work: Annotated[WorkOptions, tyro.conf.arg(name="")] = WorkOptions(),  # noqa: B008
    anchor_table: Flag = False,
) -> None:
    """Tokenize and pack a corpus into memory-mapped shards.

    An interrupted preparation resumes; a finished one is loaded from the cache. The same corpus, tokenizer and packing
    give the same bytes.

    Args:
        source: a name of the catalog (--list), hub:OWNER/NAME[:CONFIG], or a file, folder or glob.
        list: list the catalog and stop.
        tokenizer: bpe:SIZE or words (trained on the first 67 million characters), characters, or a file, folder
            or Hub name.
        split: one split, or all.
        anchor_table: also count tokens and documents, for corpus anchor rules, in the first split (the training text)
            or the one that --split names. Prints the table's path.
    """
    if list:
        _print_catalog()
        return
    if source is None:
        raise ConfigError("no corpus was named", fix="name one; `adlm prepare --list` shows them", subject="source")
    try:
        _prepare(text.open(source), tokenizer, split, rows.build(), work, anchor_table=anchor_table)
    except NotUtf8 as error:
        raise error.with_option("--replace-bad-bytes") from error


def _prepare(
    source: Source, tokenizer: str, split: str, packing: Packing, work: WorkOptions, *, anchor_table: bool
) -> None:
    chosen = tokenizer_for(tokenizer, source, cache=work.cache, force=work.force)
    console().print(f"{source.name}: {chosen.vocab_size:,} tokens, license: {source.licence}", highlight=False)
    for name in source.splits if split == "all" else (split,):
        shards = _prepare_split(source, name, chosen, packing, work)
        print(shards.folder, file=sys.stdout)
        if anchor_table and (split != "all" or name == source.splits[0]):
            print(_count(shards), file=sys.stdout)


def _prepare_split(source: Source, split: str, tokenizer: Tokenizer, packing: Packing, work: WorkOptions) -> Shards:
    with bar(split, None) as view:

        def watch(documents: int, characters: int, rows: int) -> None:
            note = f"{documents:,} documents  {characters / 1e6:,.1f} M characters  {rows:,} rows"
            view.update(characters, note)

        workers = (os.cpu_count() or 1) if work.workers is None else work.workers
        shards = prepare(
            source, split, tokenizer, packing, cache=work.cache, workers=workers, force=work.force, watch=watch
        )
        found = shards.manifest
        view.note = (
            f"{found['documents']:,} documents  {found['characters'] / 1e6:,.1f} M characters  "
            f"{found['tokens']:,} tokens  {len(shards):,} rows of {shards.length}"
        )
    return shards


def _count(shards: Shards) -> Path:
    """The path of the split's anchor table, made with a bar."""
    with bar("counting", len(shards)) as view:
        path = make_table(shards, watch=lambda rows: view.update(rows, f"{rows:,} rows"))
        table = CorpusTable.read(path)
        view.note = f"{table.tokens:,} tokens  {table.documents:,} documents  {table.vocab_size:,} types"
    return path


def _print_catalog() -> None:
    columns = {"name": "name", "summary": "what", "licence": "license", "origin": "from"}
    table = Table(*columns.values())
    for entry in listing():
        table.add_row(*(entry[column] for column in columns))
    console().print(table)
