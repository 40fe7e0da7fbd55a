"""Documents of token ids into rows of one length. Pure functions of what came before and what comes now.

A packing is a value. Its `pack` takes the ids left over from earlier pieces and new pieces, and returns full
rows and what is left over, so that a corpus of any size is packed in constant memory and packing can stop and
resume anywhere. Rows come with lengths: what lies beyond is padding.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.data.tokenizer import Roles
from adlm.errors import ConfigError, OutOfRange

Ids = NDArray[np.int64]


class Encoded(NamedTuple):
    """The ids of a piece, and whether its document ends here."""

    ids: Ids
    ends: bool = True


class PackedRows(NamedTuple):
    """Rows [N, length], the tokens that count in each [N], and the ids left for the next call."""

    rows: Ids
    lengths: Ids
    rest: Ids


NOTHING: Ids = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Packing(ABC):
    """A rule that packs documents into rows.

    Args:
        length: tokens per row.
    """

    length: int

    def __post_init__(self) -> None:
        if self.length < 4:
            raise OutOfRange("length", self.length, "at least 4")

    @abstractmethod
    def pack(self, rest: Ids, pieces: Sequence[Encoded], roles: Roles) -> PackedRows:
        """Pack `pieces` after `rest`."""

    @abstractmethod
    def frame(self, roles: Roles) -> tuple[list[int], list[int]]:
        """The tokens before and after a text that has a row to itself."""

    @property
    def pads(self) -> bool:
        """Whether rows may hold padding."""
        return False

    @property
    def padding_counts(self) -> bool:
        """Whether a model has to predict the padding too."""
        return False

    @property
    def keeps_apart(self) -> bool:
        """Whether the documents of a row are not to see each other."""
        return False


@dataclass(frozen=True)
class Wrapped(Packing):
    """A packing that cuts one stream of all documents into rows; the last, incomplete row is dropped.

    Args:
        separated: end every document with the end token (text8 is one document and has none).
        framed: begin every row with the begin token and end it with the end token, as the published
            OpenWebText runs do; `length` counts both.
        apart: documents that share a row do not see each other. Published runs let them.
    """

    separated: bool = True
    framed: bool = False
    apart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.apart and not self.separated:
            raise ConfigError("apart=True needs separated=True", subject="apart")

    @property
    def keeps_apart(self) -> bool:
        return self.apart

    def pack(self, rest: Ids, pieces: Sequence[Encoded], roles: Roles) -> PackedRows:
        end = np.array([roles.eos_id])
        parts = [rest]
        for ids, ends in pieces:
            parts.append(ids)
            if ends and self.separated:
                parts.append(end)
        stream = np.concatenate(parts)
        inner = self.length - 2 if self.framed else self.length
        count = len(stream) // inner
        rows = stream[: count * inner].reshape(count, inner)
        if self.framed:
            rows = np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (roles.bos_id, roles.eos_id)))
        return PackedRows(rows, np.full(count, self.length), stream[count * inner :])

    def frame(self, roles: Roles) -> tuple[list[int], list[int]]:
        return [roles.bos_id] * self.framed, [roles.eos_id] * (self.framed or self.separated)


@dataclass(frozen=True)
class Padded(Packing):
    """A packing in which every document has rows of its own, the last one padded.

    Args:
        begin: put the begin token first.
        end: put the end token last.
        crop: cut what does not fit on one row (published LM1B); otherwise it continues on the next row.
        predict_padding: padding counts as text: the model has to write it. Then a row's bound does not
            take the length of the document for known.
    """

    begin: bool = True
    end: bool = True
    crop: bool = False
    predict_padding: bool = False

    @property
    def pads(self) -> bool:
        return True

    @property
    def padding_counts(self) -> bool:
        return self.predict_padding

    def pack(self, rest: Ids, pieces: Sequence[Encoded], roles: Roles) -> PackedRows:
        # `rest` is the unfinished document so far, cut to one row more than can be needed.
        documents: list[Ids] = []
        for ids, ends in pieces:
            rest = np.concatenate([rest, ids])
            if self.crop:
                rest = rest[: self.length]
            if ends:
                documents.append(rest)
                rest = NOTHING
        rows = [row for document in documents for row in self._rows(document, roles)]
        lengths = np.array([len(row) for row in rows], np.int64)
        table = np.full((len(rows), self.length), roles.pad_id)
        table[np.arange(self.length) < lengths[:, None]] = np.concatenate([*rows, NOTHING])
        return PackedRows(table, lengths, rest)

    def frame(self, roles: Roles) -> tuple[list[int], list[int]]:
        return [roles.bos_id] * self.begin, [roles.eos_id] * self.end

    def _rows(self, document: Ids, roles: Roles) -> list[Ids]:
        begin, end = self.frame(roles)
        if self.crop:
            document = document[: self.length - len(begin) - len(end)]
        whole = np.concatenate([np.array(begin, np.int64), document, np.array(end, np.int64)])
        return [whole[i : i + self.length] for i in range(0, len(whole), self.length)]
