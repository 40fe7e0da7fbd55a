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
from adlm.errors import ConfigError

_RULES: dict[str, DocumentRule] = {
    "whole": Whole(),
    "lines": Lines(),
    "paragraphs": Paragraphs(),
    "articles": WikiTextArticles(),
}


@dataclass(frozen=True)
class RowOptions:
    """How documents become rows.

    Args:
        length: tokens per row.
        packing: wrap: one stream cut into rows; pad: documents on rows of their own; crop: one row a document.
        separate: with wrap: end every document with the end token.
        frame: with wrap: begin and end every row with the begin and end token (published OpenWebText runs).
        apart: with wrap: documents that share a row are not to see each other.
    """

    length: int = 128
    packing: Literal["wrap", "pad", "crop"] = "wrap"
    separate: bool = True
    frame: bool = False
    apart: bool = False

    def build(self) -> Packing:
        if self.packing == "wrap":
            return Wrapped(self.length, separated=self.separate, framed=self.frame, apart=self.apart)
        if self.frame or self.apart or not self.separate:
            raise ConfigError(
                f"asked for --packing {self.packing} with --frame, --apart or --no-separate",
                "these belong to --packing wrap",
                "leave them out",
            )
        return Padded(self.length, crop=self.packing == "crop")


def command(
    source: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    tokenizer: str = "bpe:8192",
    split: str = "all",
    rows: Annotated[RowOptions, tyro.conf.arg(name="")] = RowOptions(),  # noqa: B008
    folder: Path | None = None,
    field: str | None = None,
    documents: Literal["whole", "lines", "paragraphs", "articles"] | None = None,
    detokenizer: str | None = None,
    revision: str | None = None,
    streaming: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    replace_bad_bytes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    workers: int | None = None,
    cache: Path | None = None,
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    anchor_table: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Tokenise and pack a corpus into memory-mapped shards.

    Stopped, it goes on where it was; run again, it finds its result. Same corpus, tokenizer and rows: same bytes.

    Args:
        source: a name of the catalog (--list), hub:OWNER/NAME[:CONFIG], or a file, folder or glob.
        list: list the catalog and stop.
        tokenizer: bpe:SIZE or words (trained on the first 67 million characters), characters, or a file, folder
            or Hub name.
        split: one split, or all.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text.
        documents: what a document is in a text file.
        detokenizer: undo a corpus's tokenisation, by name.
        revision: of a Hub data set.
        streaming: read a Hub data set without storing it.
        replace_bad_bytes: read bytes that are not UTF-8 as U+FFFD instead of stopping.
        workers: processes that encode; all cores by default.
        cache: where prepared data goes; $ADLM_CACHE or ~/.cache/adlm by default.
        force: make it again, even if it is there.
        anchor_table: count tokens and documents too, for anchor rules that look at a corpus. Of all splits only the
            first, the training text, is counted: name another with --split. Prints the table's path.
    """
    if list:
        _print_catalog()
        return
    if source is None:
        raise ConfigError("asked to prepare a corpus", "none named", "name one; `adlm prepare --list` shows them")
    text = open_source(
        source,
        folder=folder,
        field=field,
        documents=_RULES[documents] if documents else None,
        detokenizer=detokenizer,
        streaming=streaming,
        revision=revision,
        encoding_errors="replace" if replace_bad_bytes else None,
    )
    packing = rows.build()
    chosen = tokenizer_for(tokenizer, text, cache=cache, force=force)
    console().print(f"{text.name}: {chosen.vocab_size:,} tokens, licence: {text.licence}", highlight=False)
    for name in text.splits if split == "all" else (split,):
        with bar(name, None) as view:

            def watch(documents: int, characters: int, rows: int, *, view=view) -> None:  # type: ignore[no-untyped-def]
                note = f"{documents:,} documents  {characters / 1e6:,.1f} M characters  {rows:,} rows"
                view.update(characters, note)

            shards = prepare(
                text,
                name,
                chosen,
                packing,
                cache=cache,
                workers=(os.cpu_count() or 1) if workers is None else workers,
                force=force,
                watch=watch,
            )
            found = shards.manifest
            view.note = (
                f"{found['documents']:,} documents  {found['characters'] / 1e6:,.1f} M characters  "
                f"{found['tokens']:,} tokens  {len(shards):,} rows of {shards.length}"
            )
        print(shards.folder, file=sys.stdout)
        if anchor_table and (split != "all" or name == text.splits[0]):
            print(_count(shards), file=sys.stdout)


def _count(shards: Shards) -> Path:
    """The path of the split's anchor table, made with a bar."""
    with bar("counting", len(shards)) as view:
        path = make_table(shards, watch=lambda rows: view.update(rows, f"{rows:,} rows"))
        table = CorpusTable.read(path)
        view.note = f"{table.tokens:,} tokens  {table.documents:,} documents  {table.vocab_size:,} types"
    return path


def _print_catalog() -> None:
    columns = {"name": "name", "summary": "what", "licence": "licence", "origin": "from"}
    table = Table(*columns.values())
    for entry in listing():
        table.add_row(*(entry[column] for column in columns))
    console().print(table)
