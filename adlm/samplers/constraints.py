"""What may be written in a hole: one of several texts, digits, or whatever matches a pattern.

Tokens come in any order and several in one step, so it is not enough to follow a pattern from the left. A pattern
becomes an automaton over the bytes of UTF-8, and that one over tokens. A token may be drawn at a blank if some path
from the start to the end of the hole takes it there: through the tokens that stand already and any tokens at the other
blanks. The text of a hole is what decoding the row shows in its place.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.data.byte_names import bytes_of
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError
from adlm.samplers.filters import Sites
from adlm.samplers.patterns import Bools, Ints, check_time, over_bytes, over_characters, too_large

_MOST_EDGES = 1 << 24


class Language(ABC):
    """The set of token sequences that may fill a hole.

    binds: whether the token at one position limits those at others.
    lengths: the token counts there are, if there are few.
    """

    binds: bool = True
    lengths: tuple[int, ...] | None = None

    @abstractmethod
    def allowed(self, hole: Sequence[int], position: int) -> Bools:
        """The tokens [V] allowed at a position of a hole that holds these tokens; its own does not count."""

    @abstractmethod
    def among(self, lengths: range) -> Sequence[int]:
        """Those of these token counts with which the hole can be filled."""


class Text(Language):
    """Any text without special tokens. `first` and `later` [V]: tokens allowed at the first position, and at others."""

    binds = False

    def __init__(self, first: Bools, later: Bools) -> None:
        self.first, self.later = first, later

    def allowed(self, hole: Sequence[int], position: int) -> Bools:
        return self.later if position else self.first

    def among(self, lengths: range) -> Sequence[int]:
        return lengths if self.first.any() and self.later.any() else ()


class Automaton(Language):
    """An automaton over tokens: states, of which 0 is the first, and an edge for each token.

    Args:
        edges: source, token and target [E] of each.
        accepts: [S], the states in which a hole may end.
    """

    def __init__(
        self, edges: Ints, accepts: Bools, tokenizer: Tokenizer, lengths: tuple[int, ...] | None = None
    ) -> None:
        self.accepts, self.lengths = accepts, lengths
        self.size, self.mask_id = tokenizer.vocab_size, tokenizer.mask_id
        self.source, self.token, self.target = edges[:, edges[1].argsort(kind="stable")]
        pairs = np.unique(self.source.astype(np.int64) * len(accepts) + self.target)
        self._any_token = np.divmod(pairs, len(accepts))

    def allowed(self, hole: Sequence[int], position: int) -> Bools:
        before = self._forward(hole[:position])
        after = self.accepts
        for token in reversed(hole[position + 1 :]):
            source, target = self._moves(token)
            after = self._states(source[after[target]])
        out = np.zeros(self.size, bool)
        out[self.token[before[self.source] & after[self.target]]] = True
        return out

    def among(self, lengths: range) -> tuple[int, ...]:
        states, found = self._forward([self.mask_id] * lengths.start), []
        for length in lengths:
            if (states & self.accepts).any():
                found.append(length)
            states = self._forward([self.mask_id], states)
        return tuple(found)

    def _forward(self, tokens: Iterable[int], states: Bools | None = None) -> Bools:
        """[S]: where these tokens may lead, from the first state or from any of these."""
        states = self._states(np.zeros(1, np.int32)) if states is None else states
        for token in tokens:
            source, target = self._moves(token)
            states = self._states(target[states[source]])
        return states

    def _moves(self, token: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Sources and targets of a token; of any token, for the mask."""
        if token == self.mask_id:
            return self._any_token
        first, after = np.searchsorted(self.token, [token, token + 1])
        return self.source[first:after], self.target[first:after]

    def _states(self, numbers: NDArray[Any]) -> Bools:
        out = np.zeros(len(self.accepts), bool)
        out[numbers] = True
        return out


@dataclass(frozen=True)
class Constraint:
    """A language for the positions start to end of one row of a canvas."""

    row: int
    start: int
    end: int
    language: Language


def bound_sites(row: Tensor, position: Tensor, constraints: Sequence[Constraint]) -> Tensor:
    """The positions [N] that must be drawn one after another, because each limits the next."""
    return _constraint_at(row, position, [each for each in constraints if each.language.binds]) >= 0


def hold(logits: Tensor, sites: Sites, constraints: Sequence[Constraint]) -> Tensor:
    """Set the logits [N, V] of tokens that would break a constraint to -inf, given what the canvas holds."""
    allowed = torch.ones(logits.shape, dtype=torch.bool)
    tokens = sites.tokens.cpu()
    known: dict[tuple[Language, tuple[int, ...], int], Tensor] = {}
    positions, numbers = sites.position.tolist(), _constraint_at(sites.row, sites.position, constraints).tolist()
    for i, (position, number) in enumerate(zip(positions, numbers, strict=True)):
        if number < 0:
            continue
        each = constraints[number]
        hole = tuple(tokens[each.row, each.start : each.end].tolist()) if each.language.binds else ()
        key = (each.language, hole, position - each.start)
        if key not in known:
            known[key] = torch.from_numpy(each.language.allowed(*key[1:]))
        allowed[i] = known[key]
    return logits.masked_fill(~allowed.to(logits.device), -math.inf)


def _constraint_at(row: Tensor, position: Tensor, constraints: Sequence[Constraint]) -> Tensor:
    """[N]: the number of the constraint at each position, -1 where there is none."""
    if not constraints:
        return torch.full_like(row, -1)
    bounds = torch.tensor([(each.row, each.start, each.end) for each in constraints], device=row.device)
    rows, starts, ends = bounds.unbind(-1)
    inside = (row[:, None] == rows) & (position[:, None] >= starts) & (position[:, None] < ends)
    return torch.where(inside.any(-1), inside.int().argmax(-1), -1)


class Spot(NamedTuple):
    """The place of a hole in its text.

    left: the text before it, from the hole before that.
    space: whether the hole has to begin with the space that stands before it (see `begins_with_space`).
    first: whether it is the first of its text.
    begins: whether `left` is the beginning of the text.
    """

    tokenizer: Tokenizer
    left: str = ""
    space: bool = False
    first: bool = False
    begins: bool = True


@dataclass(frozen=True)
class Wording(ABC):
    """A constraint on the text of a hole, not counting a space before the hole."""

    @abstractmethod
    def language(self, spot: Spot) -> Language:
        """The language of a hole at this spot."""


@dataclass(frozen=True)
class Choice(Wording):
    """One of these texts, each in the tokens that the tokenizer makes of it there."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.options, tuple) or not self.options or not all(self.options):
            raise ConfigError(
                f"the options of a Choice must be a tuple of texts that are not empty, got {self.options!r}",
                subject="Choice.options",
            )

    def language(self, spot: Spot) -> Language:
        paths = [self._tokens(option, spot) for option in self.options]
        prefixes = {path[:i] for path in paths for i in range(len(path) + 1)}
        numbers = {path: i for i, path in enumerate(sorted(prefixes))}
        edges = [(numbers[path[:-1]], path[-1], number) for path, number in numbers.items() if path]
        accepts = np.zeros(len(numbers), bool)
        accepts[[numbers[path] for path in paths]] = True
        lengths = tuple(sorted({len(path) for path in paths}))
        return Automaton(np.array(edges, np.int32).T, accepts, spot.tokenizer, lengths)

    def _tokens(self, option: str, spot: Spot) -> tuple[int, ...]:
        first, later = token_texts(spot.tokenizer)
        text = " " * spot.space + option
        encode = spot.tokenizer.encode
        before, together = (encode(each, first=spot.begins) for each in (spot.left, spot.left + text))
        ways = [encode(text, first=spot.first)]
        if np.array_equal(together[: len(before)], before):
            ways.insert(0, together[len(before) :])
        for ids in ways:
            texts = [(later if i or not spot.first else first).text(token) for i, token in enumerate(ids.tolist())]
            if all(texts) and b"".join(texts) == text.encode():
                return tuple(ids.tolist())
        raise ConfigError(
            f"cannot write the choice {option!r} after {spot.left[-20:]!r}",
            f"the tokenizer's own tokens for it read {b''.join(texts).decode(errors='replace')!r} there",
            "write it as the tokenizer does (letter case, unknown characters), or put a space before the hole",
            subject=option,
        )


@dataclass(frozen=True)
class Pattern(Wording):
    """Text that matches a regular expression from its first character to its last, as `re.fullmatch` has it.

    Literals, classes, ranges, the dot, alternatives, groups and repetition; what looks around or back, and flags, are
    refused.
    """

    regex: str

    def language(self, spot: Spot) -> Language:
        return _pattern_language(self.regex, spot.space, spot.first, spot.tokenizer)


@dataclass(frozen=True)
class Digits(Wording):
    """Only the digits 0 to 9."""

    def language(self, spot: Spot) -> Language:
        return Pattern("[0-9]+").language(spot)


@lru_cache(maxsize=32)
def any_text(spot: Spot) -> Language:
    """The language of a hole without a constraint."""
    first, later = token_texts(spot.tokenizer)
    start = first if spot.first else later
    return Text(start.plain & ((start.utf8[:, 0] == ord(" ")) if spot.space else True), later.plain)


def begins_with_space(tokenizer: Tokenizer, first: bool) -> bool:
    """Whether tokens bring the space before their word, so that a space before a hole belongs into it."""
    texts = token_texts(tokenizer)[not first]
    return bool(((texts.utf8[:, 0] == ord(" ")) & (texts.lengths > 1)).any())


class TokenTexts(NamedTuple):
    """utf8 [V, longest], of which lengths [V] count: none where a token has no text. plain [V]: not special."""

    utf8: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    plain: Bools

    def text(self, token: int) -> bytes:
        return self.utf8[token, : self.lengths[token]].tobytes()


@lru_cache(maxsize=4)
def token_texts(tokenizer: Tokenizer) -> tuple[TokenTexts, TokenTexts]:
    """The text that each token adds to a decoded text, as the first token and as a later one."""
    backend, roles = tokenizer.backend, tokenizer.roles
    special = {token for token, added in backend.get_added_tokens_decoder().items() if added.special}
    special |= {roles.mask_id, roles.eos_id, roles.bos_id, roles.pad_id}
    names = {i: name for name, i in backend.get_vocab(with_added_tokens=True).items() if i not in special}
    if '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["decoder"]):
        # Tokens may be parts of characters, which decoding alone would not show.
        alone = later = {i: bytes_of(name) for i, name in names.items()}
    else:
        ids = sorted(names)
        texts = backend.decode_batch([[i] for i in ids])
        word = next((k for k, text in enumerate(texts) if text.isalnum()), 0)
        after = backend.decode_batch([[ids[word], i] for i in ids])
        alone = {i: _whole(text) for i, text in zip(ids, texts, strict=True)}
        later = {i: _whole(text.removeprefix(texts[word])) for i, text in zip(ids, after, strict=True)}
    return _token_texts(alone, tokenizer.vocab_size), _token_texts(later, tokenizer.vocab_size)


def _token_texts(texts: dict[int, bytes], size: int) -> TokenTexts:
    table = np.zeros((size, max(map(len, texts.values()), default=1) or 1), np.uint8)
    lengths, plain = np.zeros(size, np.int64), np.zeros(size, bool)
    for i, text in texts.items():
        table[i, : len(text)] = np.frombuffer(text, np.uint8)
        lengths[i], plain[i] = len(text), True
    return TokenTexts(table, lengths, plain)


def _whole(text: str) -> bytes:
    return b"" if "\ufffd" in text else text.encode()


@lru_cache(maxsize=16)
def _pattern_language(regex: str, space: bool, first: bool, tokenizer: Tokenizer) -> Automaton:
    """The automaton over tokens. Its first state is entered only once, since the first token may read differently."""
    table, accepts = over_bytes(*over_characters(regex, space))
    texts = token_texts(tokenizer)
    numbers = np.full(len(table), -1, np.int32)
    order, edges, total = [0], [], 0
    for number, state in enumerate(order):
        tokens, reached = _arrivals(table, state, texts[bool(number) or not first])
        for new in np.unique(reached[numbers[reached] < 0]).tolist():
            numbers[new] = len(order)
            order.append(new)
        edges.append(np.stack([np.full_like(tokens, number), tokens, numbers[reached]]))
        total += len(tokens)
        if total > _MOST_EDGES:
            raise too_large(regex)
        check_time(regex)
    ends = accepts[order]
    ends[0] = False
    return Automaton(np.concatenate(edges, 1).astype(np.int32), ends, tokenizer)


def _arrivals(table: Ints, state: int, texts: TokenTexts) -> tuple[NDArray[Any], Ints]:
    """The tokens whose bytes lead anywhere from a state, and where to."""
    tokens = np.flatnonzero((table[state] >= 0)[texts.utf8[:, 0]] & (texts.lengths > 0))
    states = np.full(len(tokens), state, np.int32)
    found: list[tuple[NDArray[Any], Ints]] = []
    for position in range(texts.utf8.shape[1]):
        states = table[states, texts.utf8[tokens, position]]
        ended = texts.lengths[tokens] == position + 1
        done, going = ended & (states >= 0), ~ended & (states >= 0)
        found.append((tokens[done], states[done]))
        tokens, states = tokens[going], states[going]
        if not len(tokens):
            break
    return np.concatenate([tokens for tokens, _ in found]), np.concatenate([states for _, states in found])
