"""Data as a value: what to train on, by name, and how it becomes rows.

A kind is known to `adlm.config` once its module is imported, so all of them are imported here.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from adlm.data.anchored_process import AnchoredProcess
from adlm.data.catalog import open_source
from adlm.data.documents import DocumentRule
from adlm.data.packing import Packing, Wrapped
from adlm.data.prepare import prepare, tokenizer_for
from adlm.data.prompts import Prompts
from adlm.data.shards import Shards
from adlm.data.source import Source
from adlm.data.synthetic import Synthetic
from adlm.data.table import DataConfig, PreparationCallback, Prepared
from adlm.data.together import Together
from adlm.errors import DataError, NotUtf8

__all__ = ["AnchoredProcess", "Corpus", "DataConfig", "Prompts", "Synthetic", "Together"]
_HELD_OUT = ("valid", "test")


@dataclass(frozen=True)
class Corpus(DataConfig):
    """A corpus of the catalog, of the Hub, or of files.

    Args:
        source: as in `adlm prepare`: a name of the catalog, hub:OWNER/NAME[:CONFIG], or a file, folder or glob.
        tokenizer: bpe:SIZE or words (trained on the beginning of `train`), characters, or a file, folder or Hub name.
        packing: how documents become rows.
        folder: where the files of a catalog name are; else they come from the Hub.
        train: the split to train on.
        valid: the split to validate on; by default `valid`, else `test`, else none.
        field: the field or column that holds the text.
        documents: where documents begin and end, if not as the catalog says.
        detokenizer: undo a corpus's tokenization, by name.
        revision: of a Hub data set.
        encoding_errors: strict, replace or ignore: what to do with bytes of files that are not UTF-8.
    """

    source: str
    tokenizer: str = "bpe:8192"
    packing: Packing = dataclasses.field(default_factory=lambda: Wrapped(128))
    folder: str | None = None
    train: str = "train"
    valid: str | None = None
    field: str | None = None
    documents: DocumentRule | None = None
    detokenizer: str | None = None
    revision: str | None = None
    encoding_errors: str | None = None

    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        try:
            return self._prepared(cache=cache, verify=verify, watch=watch)
        except NotUtf8 as error:
            raise error.with_option("data.encoding_errors=replace") from error

    def _prepared(self, *, cache: Path | None, verify: bool, watch: PreparationCallback | None) -> Prepared:
        source = self.open()
        train, valid = self._splits(source)
        tokenizer = tokenizer_for(self.tokenizer, source, train, cache=cache)

        def table(split: str) -> Shards:
            workers = os.cpu_count() or 1
            return prepare(
                source, split, tokenizer, self.packing, cache=cache, workers=workers, verify=verify, watch=watch
            )

        return Prepared(table(train), table(valid) if valid else None, tokenizer, self.packing)

    def open(self) -> Source:
        """The source of the text."""
        return open_source(
            self.source,
            folder=self.folder,
            field=self.field,
            documents=self.documents,
            detokenizer=self.detokenizer,
            revision=self.revision,
            encoding_errors=self.encoding_errors,
        )

    def _splits(self, source: Source) -> tuple[str, str | None]:
        """What is trained on and what is held out."""
        known = source.splits
        for name, verb, split in (("train", "train", self.train), ("valid", "validate", self.valid)):
            if split is not None and split not in known:
                raise DataError(
                    f"cannot {verb} on the split {split!r} of {source.name!r}",
                    f"only {', '.join(known)}",
                    f"add files with {split} in their names, or choose one that there is: {name}={known[0]!r}",
                    subject=split,
                )
        return self.train, self.valid or next((s for s in _HELD_OUT if s in known and s != self.train), None)
