"""Problems as rows of tokens, so aligned that thoughts stand at the same columns in all of them.

    row      padding  question <boa> <ant> <ant> <eoa>  trace answer end  padding
    fixed             --------------------------------
    valid             --------------------------------------------------
    targets                              a_1   a_2

The token of column l is what the feature of column l predicts, having read those before. So the state that has read
the i-th <ant> is the feature one column to its right, and that is where its target stands.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.data.packing import Ids, Padded
from adlm.data.prepare import tokenizer_for
from adlm.data.ragged_rows import RaggedRows
from adlm.data.table import DataConfig, PreparationCallback, Prepared
from adlm.data.tokenizer import Tokenizer
from adlm.errors import DataError, OutOfRange
from adlm_studies.reasoning.methods import Chain, ChainLayout, ReasoningMethod, ThoughtTokens
from adlm_studies.reasoning.problem import Problem, Task
from adlm_studies.reasoning.vocabulary import UNKNOWN, special_token_id, with_special_tokens, words_and_digits

WORDS = "words"
_AT_A_TIME = 1024


class Row(NamedTuple):
    """Given tokens, those to be written with the end among them, one target a thought, -1 where it has none, and which
    of those to be written are important."""

    given: Ids
    rest: Ids
    targets: Ids
    important: NDArray[np.bool_]


class TaskData(DataConfig):
    """The problems of a task as rows of tokens, held in memory."""

    task: Task
    tokenizer: str
    problems: int
    held_out: int
    predict_padding: ClassVar[bool] = False

    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        tokenizer = task_tokenizer(self.task, self.tokenizer, self.problems)
        train = self.table("train", tokenizer, self.problems, watch)
        valid = self.table("valid", tokenizer, self.held_out, watch)
        packing = Padded(max(train.length, valid.length), begin=False, predict_padding=self.predict_padding)
        return Prepared(train, valid, tokenizer, packing)

    def table(
        self, split: str, tokenizer: Tokenizer, problems: int = 0, watch: PreparationCallback | None = None
    ) -> "ReasoningTable":
        """The first problems of a split, this many; 0: all."""
        return self.rows_of(read_problems(self.task, split, problems), f"{self.task.name} {split}", tokenizer, watch)

    @abstractmethod
    def rows_of(
        self, problems: Sequence[Problem], name: str, tokenizer: Tokenizer, watch: PreparationCallback | None = None
    ) -> "ReasoningTable":
        """These problems as rows."""


@dataclass(frozen=True)
class ReasoningData(TaskData):
    """The problems of a task as one stage of a method writes them, held in memory as tokens.

    Args:
        tokenizer: `words` makes one of the words and digits of the task; else the file, folder or Hub name of the
            model to begin with, to which the marks are added.
        problems: train on this many, from the first; 0: all.
        held_out: validate on this many, from the first; 0: all.
        longest: leave out problems of more tokens than this, and say how many in the name; 0: leave out none. Rows are
            as long as the longest question and the longest rest together.
    """

    task: Task
    method: ReasoningMethod
    stage: int = 0
    tokenizer: str = WORDS
    problems: int = 0
    held_out: int = 0
    longest: int = 0

    def __post_init__(self) -> None:
        for name in ("problems", "held_out", "longest"):
            if getattr(self, name) < 0:
                raise OutOfRange(name, getattr(self, name), "0 or more")

    def rows_of(
        self, problems: Sequence[Problem], name: str, tokenizer: Tokenizer, watch: PreparationCallback | None = None
    ) -> "ReasoningTable":
        layouts = [self.method.layout(problem, self.stage) for problem in problems]
        rows = encode_layouts(layouts, tokenizer, self.method.special_tokens, watch)
        lengths = [len(row.given) + len(row.rest) for row in rows]
        kept = [i for i, length in enumerate(lengths) if not self.longest or length <= self.longest]
        if not kept:
            raise DataError(
                f"no problem of {name} has at most {self.longest} tokens; the shortest has {min(lengths)}",
                subject="longest",
            )
        if len(kept) < len(rows):
            name += f" without {len(rows) - len(kept):,} that are too long"
        return ReasoningTable(name, [rows[i] for i in kept], tokenizer, numbers=kept)


def unknown_fraction(table: "ReasoningTable", tokenizer: Tokenizer) -> float:
    """The fraction of the rows' tokens that stand for words unknown to the tokenizer."""
    unknown = tokenizer.backend.token_to_id(UNKNOWN)
    return 0.0 if unknown is None else table.fraction(unknown)


# Kept, since every stage reads the same problems, and drawing or parsing them takes longer than encoding them.
@lru_cache(maxsize=4)
def read_problems(task: Task, split: str, count: int = 0) -> Sequence[Problem]:
    """The first of a split, this many; 0: all."""
    found = task.problems(split)
    chosen = tuple(found[:count] if count else found)
    if not chosen:
        raise DataError(f"there are no problems of {task.name} ({split})", fix="check its files", subject=task.name)
    return chosen


def distinct(problems: Sequence[Problem]) -> Sequence[Problem]:
    """The problems without repeated questions: small generated tasks draw some repeatedly."""
    found: dict[str, Problem] = {}
    for problem in problems:
        found.setdefault(problem.question, problem)
    return tuple(found.values())


def task_tokenizer(task: Task, name: str, problems: int = 0) -> Tokenizer:
    """The tokenizer of a `ReasoningData`: the same for all methods and stages of a task."""
    return _words(task, problems) if name == WORDS else with_special_tokens(tokenizer_for(name))


@lru_cache(maxsize=4)
def _words(task: Task, problems: int) -> Tokenizer:
    layouts = (Chain().layout(problem, 0) for problem in read_problems(task, "train", problems))
    return words_and_digits(text for each in layouts for text in (each.question, each.trace, each.answer))


def encode_layouts(
    layouts: Sequence[ChainLayout],
    tokenizer: Tokenizer,
    tokens: ThoughtTokens,
    watch: PreparationCallback | None = None,
) -> list[Row]:
    """Layouts as tokens. Parts are encoded apart from each other: in use, the question comes alone."""
    end = [tokenizer.roles.eos_id]
    unknown = tokenizer.backend.token_to_id(UNKNOWN)
    ids_of = lru_cache(maxsize=1 << 16)(tokenizer.encode)  # the same few names and numbers in all problems
    rows: list[Row] = []
    characters = 0
    for start in range(0, len(layouts), _AT_A_TIME):
        some = layouts[start : start + _AT_A_TIME]
        questions = tokenizer.encode_batch([each.question for each in some])
        traces = tokenizer.encode_batch([each.trace for each in some])
        answers = tokenizer.encode_batch([each.answer for each in some])
        for each, question, trace, answer in zip(some, questions, traces, answers, strict=True):
            given = [question, _between(each.thoughts, tokenizer, tokens)]
            told = [token for anchor in each.anchors for token in _told(anchor, ids_of(anchor), unknown)]
            targets = np.array((told + [-1] * each.thoughts)[: each.thoughts], np.int64)
            rest = np.concatenate([trace, answer, end])
            pieces = [ids_of(piece) for piece in each.important]
            important = np.isin(rest, np.concatenate(pieces)) if pieces else np.zeros(len(rest), bool)
            rows.append(Row(np.concatenate(given), rest, targets, important & (rest != unknown)))
            characters += sum(map(len, (each.question, each.trace, each.answer)))
        if watch is not None:
            watch(len(rows), characters, len(rows))
    return rows


def _between(thoughts: int, tokenizer: Tokenizer, tokens: ThoughtTokens) -> Ids:
    names = [tokens.begin, *[tokens.thought] * thoughts, tokens.end]
    return np.array([special_token_id(tokenizer, name) for name in names if name], np.int64)


def _told(anchor: str, ids: Ids, unknown: int | None) -> list[int]:
    """What thoughts are to predict of an anchor, -1 for what is not known: a number digit by digit, where each has a
    token, and a name by its first token."""
    number = anchor.strip().replace(".", "").isdigit()
    found = [-1 if token == unknown else int(token) for token in (ids if number else ids[:1])]
    return found or [-1]


class ReasoningTable(RaggedRows):
    """Problems as tokens in memory.

    Args:
        numbers: of the problems in their split.
        padding: the model writes what follows the end too, up to the length of the row.
        rest: columns for what is to be written, if not as many as the longest row takes.
    """

    def __init__(
        self,
        name: str,
        rows: Sequence[Row],
        tokenizer: Tokenizer,
        *,
        numbers: Sequence[int],
        padding: bool = False,
        rest: int = 0,
    ) -> None:
        self._name, self.pad_id, self.padding_counts, self.numbers = name, tokenizer.roles.pad_id, padding, numbers
        self.given_lengths = np.array([len(row.given) for row in rows])
        self.row_lengths = self.given_lengths + np.array([len(row.rest) for row in rows])
        self.text = np.concatenate([part for row in rows for part in (row.given, row.rest)]).astype(np.uint32)
        self.starts = np.cumsum(self.row_lengths) - self.row_lengths
        self._targets = np.stack([row.targets for row in rows])
        self._important = np.concatenate(
            [part for row in rows for part in (np.zeros(len(row.given), bool), row.important)]
        )
        self.given = int(self.given_lengths.max())  # columns before the first that is to be written
        self._length = self.given + (rest or int((self.row_lengths - self.given_lengths).max()))
        digest = hashlib.sha256(f"{tokenizer.fingerprint} {self._length} {padding}".encode())
        for array in (self.text, self.given_lengths, self.row_lengths, self._targets):
            digest.update(array.astype("<i8").tobytes())
        self._key = digest.hexdigest()

    @property
    def thoughts(self) -> int:
        """Positions for thoughts in each row."""
        return int(self._targets.shape[1])

    def targets(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The extra target [N, length] of the feature at a column, besides its token; -1 means none."""
        if not self.thoughts or (self._targets < 0).all():
            return None
        out = np.full((len(rows), self._length), -1, np.int64)
        out[:, self.given - self.thoughts : self.given] = self._targets[rows]
        return out

    def anchors(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.of_text(self._important, rows, np.zeros((len(rows), self._length), bool))

    def thought_targets(self, row: int) -> list[int]:
        """The target token of each thought, -1 if it has none."""
        found: list[int] = self._targets[row].tolist()
        return found

    def fraction(self, token: int) -> float:
        """The fraction of all tokens that are this one."""
        return float((self.text == token).mean())

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.arange(self._length) - (self.given - self.given_lengths[rows])[:, None]
