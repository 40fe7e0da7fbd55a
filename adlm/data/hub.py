"""Data sets of the Hugging Face Hub as sources, by name: downloaded and kept, or streamed.

The library `datasets` is imported when text is first read. Data sets that come with a loading script are
refused by it since version 4, and never trusted here; the Hub keeps a Parquet copy of most of them under the
revision `refs/convert/parquet`, with a folder for each configuration (`data_dir`).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adlm.data.detokenize import find_detokenizer
from adlm.data.documents import SPLITS, WHOLE, DocumentRule, as_pieces, as_segments
from adlm.data.files import not_empty, split_of
from adlm.data.records import as_names, record_text
from adlm.data.source import Piece, Source
from adlm.errors import DataError, UnknownName

PARQUET_COPY = "refs/convert/parquet"
_BATCH_ROWS = 256


@dataclass(frozen=True)
class HubDataset(Source):
    """A data set of the Hub, or a local folder laid out like one.

    Args:
        dataset: owner/name, or a folder.
        field: the column that holds the text; several are joined by a space.
        split_names: what the data set calls our splits; slices like `train[:-1000]` are allowed. By default its
            own splits, and if it has no held-out one, the last 5 % of it as test and the 5 % before as valid.
        streaming: read over the network as it goes, without a copy on disk.
    """

    dataset: str
    config: str | None = None
    name: str = ""
    licence: str = "see the page of the data set"
    field: str | tuple[str, ...] = "text"
    rule: DocumentRule = WHOLE
    detokenizer: str = "none"
    revision: str | None = None
    data_dir: str | None = None
    split_names: Mapping[str, str] | None = dataclasses.field(default=None, hash=False)
    joiner: str = " "
    streaming: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.dataset.rstrip("/").rsplit("/", 1)[-1])
        find_detokenizer(self.detokenizer)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._split_names())

    def pieces(self, split: str) -> Iterator[Piece]:
        theirs = self._theirs(split)
        segments = as_segments(self._texts(theirs), self.rule)
        pieces = as_pieces(segments, self.rule, self.detokenizer)
        return not_empty(pieces, self, split, "check the split, the field and the document rule")

    def fingerprint(self, split: str) -> dict[str, Any]:
        # The hash of the builder is the commit on the Hub, or made of the names and times of local files. It is the
        # same in every run and, unlike the fingerprint of a loaded data set, known without downloading.
        options = ("dataset", "config", "revision", "data_dir", "field", "joiner", "rule", "detokenizer")
        return {
            **{option: repr(getattr(self, option)) for option in options},
            "split": self._theirs(split),
            "data": self._builder().hash,
        }

    def _split_names(self) -> Mapping[str, str]:
        if self.split_names is not None:
            return self.split_names
        names = {split_of(name): name for name in reversed(self._own_splits())}
        if named := {split: names[split] for split in SPLITS if split in names}:
            if named.keys() != {"train"}:
                return named
            whole = named["train"]
        else:
            whole = self._own_splits()[0]
        return {"train": f"{whole}[:90%]", "valid": f"{whole}[90%:95%]", "test": f"{whole}[95%:]"}

    def _theirs(self, split: str) -> str:
        names = self._split_names()
        if split not in names:
            raise UnknownName("split", split, names)
        return names[split]

    def _own_splits(self) -> list[str]:
        import datasets

        with self._explained():
            return list(
                datasets.get_dataset_split_names(
                    self.dataset, self.config, revision=self.revision, data_dir=self.data_dir
                )
            )

    def _builder(self) -> Any:
        import datasets

        with self._explained():
            return datasets.load_dataset_builder(
                self.dataset, self.config, revision=self.revision, data_dir=self.data_dir
            )

    def _texts(self, theirs: str) -> Iterator[str]:
        names = as_names(self.field)
        where = f"the split {theirs!r} of {self.dataset}"
        with self._explained():
            for batch in self._load(theirs).iter(batch_size=_BATCH_ROWS):
                record_text(dict.fromkeys(batch), self.field, "", where)  # names the columns if ours is not there
                for values in zip(*(batch[name] for name in names), strict=True):
                    yield record_text(dict(zip(names, values, strict=True)), self.field, self.joiner, where)

    def _load(self, theirs: str) -> Any:
        import datasets

        name, sliced, _ = theirs.partition("[")
        data = datasets.load_dataset(
            self.dataset,
            self.config,
            split=name if self.streaming else theirs,
            revision=self.revision,
            data_dir=self.data_dir,
            streaming=self.streaming,
        )
        if not (self.streaming and sliced):
            return data
        # A stream cannot be sliced by itself; it can once its length is known.
        sizes = {split: info.num_examples for split, info in (data.info.splits or {}).items() if info.num_examples}
        if name not in sizes:
            raise DataError(
                f"cannot stream {theirs!r} of {self.dataset}",
                "the data set does not say how many rows it has",
                "download it (streaming=False), or give split_names without slices",
                subject="streaming",
            )
        (part,) = datasets.ReadInstruction.from_spec(theirs).to_absolute(sizes)
        begin, end = part.from_ or 0, sizes[name] if part.to is None else part.to
        return data.skip(begin).take(end - begin)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """The errors of the library `datasets` as `DataError`s."""
        from datasets.exceptions import DatasetsError

        asked = f"cannot load the data set {self.dataset!r}" + (f" ({self.config})" if self.config else "")
        if self.revision:
            asked += f" at {self.revision!r}"
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            fix = "check the network and HF_HUB_OFFLINE, or open files you have by folder= (--folder)"
            raise DataError(asked, f"the Hub cannot be reached: {error}", fix, subject=self.dataset) from error
        except FileNotFoundError as error:
            fix = "check owner/name, revision and data_dir; a private one needs `hf auth login`"
            raise DataError(asked, str(error), fix, subject=self.dataset) from error
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            fix = f"try revision={PARQUET_COPY!r} with the name of the configuration as data_dir"
            found = f"it comes with a script, which is never run: {error}"
            raise DataError(asked, found, fix, subject="revision") from error
        except (ValueError, DatasetsError) as error:
            options = {"BuilderConfig": "config", "Config name": "config", "split": "split_names"}
            choice = next((option for word, option in options.items() if word in str(error)), None)
            fix = "choose one of those that it has" if choice else "check its files, or fetch them again"
            raise DataError(asked, f"{error.__cause__ or error}", fix, subject=choice or self.dataset) from error
