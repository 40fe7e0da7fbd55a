"""Short stories whose exact entropy and likelihood are known, to train small models against a known floor.

A story is drawn from the probabilistic program in `stories_grammar`: a plot, a few choices (who, where, what,
which color), and one of several sentences for each beat, filled in with the choices. Every choice can be read
back from the text, so the text is exactly as uncertain as its choices: with pa(i) what choice i depends on,

    log p(text) = log p(plot) + sum_i log p(c_i | c_pa(i)),    H(text) = H(plot) + E sum_i H(c_i | c_pa(i)).

`Grammar` draws, scores, measures and criticises from that one description, so these cannot disagree.
"""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from string import Formatter
from typing import Any, NamedTuple

import numpy as np

from adlm.data.source import Piece, Source
from adlm.data.stories_grammar import PLOTS, GrammarChoice, Plot
from adlm.errors import OutOfRange, UnknownName

_TOKEN = re.compile(r"\w+|[^\w\s]")
_BETWEEN_SENTENCES = re.compile(r'(?:(?<=[.!?])|(?<=[.!?]")) (?=\s*[A-Z"])')
_AGREEMENT = {"a": "article", "he": "pronoun", "him": "pronoun", "his": "pronoun"}
# Stories are drawn in blocks, each with a generator of its own: story i does not depend on how many there are.
_BLOCK = 256
_DRAWING = 1  # raised when the same grammar and seed give another text

# The value of every choice by name; the plot is under "plot", the sentences under "sentence 1", "sentence 2", ...
Choices = dict[str, str]


def tokens_of(text: str) -> list[str]:
    """Words and punctuation marks, the tokens that lengths are counted in."""
    return _TOKEN.findall(text)


class _Slot(NamedTuple):
    """A hole in a sentence, for one form of a choice."""

    choice: str
    kind: str
    words: dict[str, str]  # value -> how it is written here
    telling: dict[str, str]  # and back, where it tells the value: a pronoun or an article only agrees with it


class _Mention(NamedTuple):
    """What stands in a slot of a sentence, and where."""

    slot: _Slot
    words: str
    beat: str
    start: int

    def complaint(self, value: str) -> str:
        return f"{self.beat}: the {self.slot.kind} {self.words!r} should be {self.slot.words[value]!r}"


class _Frame:
    """A sentence with slots, which can be written and recognized."""

    def __init__(self, template: str, choices: Mapping[str, GrammarChoice]) -> None:
        self.slots: list[_Slot] = []
        self.literals: list[str] = []
        layout = pattern = ""
        for literal, field, _, _ in Formatter().parse(template):
            self.literals += tokens_of(literal)
            layout += literal.replace("%", "%%")
            pattern += re.escape(literal)
            if field is None:
                continue
            name, _, form = field.partition(".")
            words = {value: forms[form] for value, forms in choices[name].forms.items()}
            if not layout:
                words = {value: text[0].upper() + text[1:] for value, text in words.items()}
            values = Counter(words.values())
            telling = {text: value for value, text in words.items() if values[text] == 1 and form not in _AGREEMENT}
            self.slots.append(_Slot(name, _AGREEMENT.get(form, choices[name].kind), words, telling))
            layout += "%s"
            pattern += f"({'|'.join(map(re.escape, sorted(values, key=len, reverse=True)))})"
        self._layout, self._pattern = layout, re.compile(pattern)

    @property
    def max_tokens(self) -> int:
        return len(self.literals) + sum(
            max(len(tokens_of(words)) for words in slot.words.values()) for slot in self.slots
        )

    def write(self, choices: Choices) -> str:
        return self._layout % tuple([slot.words[choices[slot.choice]] for slot in self.slots])

    def read(self, sentence: str, beat: str) -> list[_Mention] | None:
        match = self._pattern.fullmatch(sentence)
        if match is None:
            return None
        return [_Mention(slot, match[n], beat, match.start(n)) for n, slot in enumerate(self.slots, 1)]


class _Step:
    """One draw: an urn holds every value as often as it weighs."""

    def __init__(self, name: str, choice: GrammarChoice) -> None:
        self.name, self.given = name, choice.given
        self.urns = {key: tuple([v for v, w in row.items() for _ in range(w)]) for key, row in choice.table.items()}
        self._odds = {key: {v: n / len(urn) for v, n in Counter(urn).items()} for key, urn in self.urns.items()}

    def odds(self, choices: Choices) -> dict[str, float]:
        """p(value | choices); no value where the choices cannot be."""
        return self._odds.get(tuple([choices[name] for name in self.given]), {})


class _Reading(NamedTuple):
    """A text as a story of one plot."""

    choices: Choices
    mentions: dict[str, list[_Mention]]
    problems: list[str]


class _Program:
    """A plot made ready: steps in the order of drawing, the last of them the sentences."""

    def __init__(self, name: str, plot: Plot, probability: float) -> None:
        self.name, self.probability, self.choices = name, probability, plot.choices
        self.marginal = cache(self._marginal)
        beats = {f"sentence {n}": beat for n, beat in enumerate(plot.beats, 1)}
        self.steps = {name: _Step(name, choice) for name, choice in {**plot.choices, **beats}.items()}
        self.beats = {
            name: {frame: _Frame(frame, plot.choices) for frames in beat.table.values() for frame in frames}
            for name, beat in beats.items()
        }

    def _marginal(self, names: tuple[str, ...]) -> list[tuple[Choices, float]]:
        """P(names): forward through all they depend on, summing out a choice once nothing later asks for it."""
        needed = set(names)
        for step in reversed(self.steps.values()):
            if step.name in needed:
                needed.update(step.given)
        order = [step for step in self.steps.values() if step.name in needed]
        worlds: list[tuple[Choices, float]] = [({}, 1.0)]
        for n, step in enumerate(order, 1):
            asked = set(names).union(*(later.given for later in order[n:]))
            merged: dict[tuple[tuple[str, str], ...], float] = defaultdict(float)
            for choices, probability in worlds:
                kept = tuple((name, value) for name, value in choices.items() if name in asked)
                for value, odds in step.odds(choices).items():
                    merged[(*kept, (step.name, value)) if step.name in asked else kept] += probability * odds
            worlds = [(dict(items), probability) for items, probability in merged.items()]
        return worlds

    def entropy(self) -> float:
        """sum_i E H(c_i | c_pa(i)) in nats."""
        return -sum(
            probability * odds * math.log(odds)
            for step in self.steps.values()
            for choices, probability in self.marginal(step.given)
            for odds in step.odds(choices).values()
        )

    def mean_tokens(self) -> float:
        """E of the tokens of each sentence, its own and those in its slots."""
        total = 0.0
        for beat, frames in self.beats.items():
            step = self.steps[beat]
            for template, frame in frames.items():
                for choices, probability in self.marginal(step.given):
                    total += probability * step.odds(choices).get(template, 0.0) * len(frame.literals)
                for slot in frame.slots:
                    for choices, probability in self.marginal((*step.given, slot.choice)):
                        tokens = tokens_of(slot.words[choices[slot.choice]])
                        total += probability * step.odds(choices).get(template, 0.0) * len(tokens)
        return total

    def recognise(self, beat: str, sentence: str) -> tuple[str, list[_Mention]] | None:
        """Which of the sentences of a beat this is, whatever is in the slots, and what that is."""
        for template, frame in self.beats[beat].items():
            if (mentions := frame.read(sentence, beat)) is not None:
                return template, mentions
        return None

    def read(self, sentences: Sequence[str]) -> _Reading:
        """The choices behind some sentences, and all that speaks against them.

        A value is what most of the words that tell it say; of two said as often, the one said first.
        """
        choices, problems = {"plot": self.name}, []
        mentions: dict[str, list[_Mention]] = {name: [] for name in self.choices}
        if len(sentences) != len(self.beats):
            problems.append(
                f"number of sentences: {len(sentences)} should be {len(self.beats)} in the plot {self.name!r}"
            )
        for beat, sentence in zip(self.beats, sentences, strict=False):
            recognised = self.recognise(beat, sentence)
            if recognised is None:
                problems.append(f"{beat}: unknown here: {sentence!r}")
                continue
            choices[beat] = recognised[0]
            for mention in recognised[1]:
                mentions[mention.slot.choice].append(mention)
        for name, said in mentions.items():
            votes = Counter([m.slot.telling[m.words] for m in said if m.words in m.slot.telling])
            if votes:
                choices[name] = value = max(votes, key=votes.__getitem__)
                problems += [m.complaint(value) for m in said if m.words != m.slot.words[value]]
            elif not problems:
                problems.append(f"no word tells which {self.choices[name].kind} is meant")
        for step in self.steps.values():
            if choices.keys() >= {step.name, *step.given} and choices[step.name] not in step.odds(choices):
                what, *others = (
                    f"the {self.choices[name].kind} {choices[name]!r}" if name in self.choices else name
                    for name in (step.name, *step.given)
                )
                problems.append(f"{what} does not go with {' and '.join(others)}")
        return _Reading(choices, mentions, problems)


class Grammar:
    """The distribution over texts that some plots describe."""

    def __init__(self, plots: Mapping[str, Plot]) -> None:
        whole = sum(plot.weight for plot in plots.values())
        self.programs = {name: _Program(name, plot, plot.weight / whole) for name, plot in plots.items()}
        self.num_draws = 1 + max(len(program.steps) for program in self.programs.values())
        # Under the class name of version 0.1: prepared data and runs of that version carry this checksum.
        words = repr(plots).replace("GrammarChoice(", "Choice(")
        self.checksum = hashlib.sha256(words.encode()).hexdigest()[:16]
        self._urn = [self.programs[name] for name, plot in plots.items() for _ in range(plot.weight)]

    def draw(self, draws: Sequence[int]) -> Choices:
        """Choices out of `num_draws` numbers that are uniform on 0 ... 2^64 - 1."""
        program = self._urn[draws[0] * len(self._urn) >> 64]
        choices = {"plot": program.name}
        for step, number in zip(program.steps.values(), draws[1:], strict=False):
            urn = step.urns[tuple([choices[name] for name in step.given])]
            choices[step.name] = urn[number * len(urn) >> 64]
        return choices

    def write(self, choices: Choices) -> str:
        """The text of some choices."""
        beats = self.programs[choices["plot"]].beats
        return " ".join([frames[choices[beat]].write(choices) for beat, frames in beats.items()])

    def read(self, text: str) -> Choices | None:
        """The choices that write a text, if any do; whitespace around it does not count."""
        reading = self._reading(text)
        return None if reading.problems else reading.choices

    def problems(self, text: str) -> list[str]:
        """The problems of a text as a story of the plot it is nearest to; none if the grammar can write it."""
        return self._reading(text).problems

    def log_likelihood(self, text: str) -> float:
        """log p(text) in nats; -inf for a text that no choices write."""
        choices = self.read(text)
        if choices is None:
            return -math.inf
        program = self.programs[choices["plot"]]
        odds = (step.odds(choices)[choices[name]] for name, step in program.steps.items())
        return math.log(program.probability) + sum(map(math.log, odds))

    def anchors(self, text: str) -> list[tuple[int, int]]:
        """Spans [start, end) of the words that first tell a free choice; none for a text that no choices write."""
        reading = self._reading(text)
        if reading.problems:
            return []
        program, outer = self.programs[reading.choices["plot"]], len(text) - len(text.lstrip())
        gaps = [0, *(gap.end() for gap in _BETWEEN_SENTENCES.finditer(text.strip()))]
        starts = {beat: outer + gap for beat, gap in zip(program.beats, gaps, strict=True)}
        free = [name for name in reading.mentions if len(program.steps[name].odds(reading.choices)) > 1]
        firsts = [next(m for m in reading.mentions[name] if m.words in m.slot.telling) for name in free]
        return sorted((starts[m.beat] + m.start, starts[m.beat] + m.start + len(m.words)) for m in firsts)

    def entropy(self) -> float:
        """H(text) in nats, exactly."""
        return sum(p.probability * (p.entropy() - math.log(p.probability)) for p in self.programs.values())

    def mean_tokens(self) -> float:
        """The expected number of tokens of a text, exactly."""
        return sum(p.probability * p.mean_tokens() for p in self.programs.values())

    def max_tokens(self) -> int:
        """A number of tokens that no text exceeds."""
        return max(
            sum(max(frame.max_tokens for frame in frames.values()) for frames in p.beats.values())
            for p in self.programs.values()
        )

    def vocabulary(self) -> list[str]:
        """All tokens that a text can contain."""
        frames = [frame for p in self.programs.values() for beat in p.beats.values() for frame in beat.values()]
        texts = {words for frame in frames for slot in frame.slots for words in slot.words.values()}
        return sorted({token for text in texts for token in tokens_of(text)}.union(*(f.literals for f in frames)))

    def _reading(self, text: str) -> _Reading:
        """The text read with the plot that finds least fault with it."""
        sentences = _BETWEEN_SENTENCES.split(text.strip())
        alike = [p for p in self.programs.values() if len(p.beats) == len(sentences)]
        fitting = [p for p in alike if all(map(p.recognise, p.beats, sentences))]
        readings = [p.read(sentences) for p in fitting or self.programs.values()]
        return min(readings, key=lambda reading: len(reading.problems))


@cache
def _grammar() -> Grammar:
    return Grammar(PLOTS)


@dataclass(frozen=True)
class Stories(Source):
    """Stories drawn from the grammar, each one document of at most 62 words and punctuation marks.

    Story i of a split depends on the seed, the split and i alone, not on the number of stories.
    """

    seed: int = 0
    train: int = 100_000
    valid: int = 2_000
    test: int = 2_000

    name = "stories"
    licence = "CC0-1.0: generated by this package, free to use"

    def __post_init__(self) -> None:
        for field in ("seed", "train", "valid", "test"):
            if (value := getattr(self, field)) < 0:
                raise OutOfRange(field, value, "at least 0")

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "valid", "test")

    def pieces(self, split: str) -> Iterator[Piece]:
        grammar, count = _grammar(), self._count(split)
        for start in range(0, count, _BLOCK):
            for draws in self._draws(split, start // _BLOCK)[: count - start]:
                yield Piece(grammar.write(grammar.draw(draws)))

    def story(self, split: str, index: int) -> str:
        """One story of a split, generated without the stories before it."""
        if not 0 <= index < self._count(split):
            raise IndexError(f"story {index} of {self._count(split)} in the split {split!r}")
        return _grammar().write(_grammar().draw(self._draws(split, index // _BLOCK)[index % _BLOCK]))

    def fingerprint(self, split: str) -> dict[str, Any]:
        drawn = {"seed": self.seed, "split": split, "stories": self._count(split)}
        return {"source": self.name, "grammar": _grammar().checksum, "drawing": _DRAWING, **drawn}

    def entropy(self) -> float:
        """The exact entropy of a story in nats: no model has a lower mean loss per story."""
        return _grammar().entropy()

    def mean_tokens(self) -> float:
        """The exact mean number of words and punctuation marks of a story."""
        return _grammar().mean_tokens()

    def max_tokens(self) -> int:
        """A number of words and punctuation marks that no story exceeds."""
        return _grammar().max_tokens()

    def vocabulary(self) -> list[str]:
        """All words and punctuation marks, sorted."""
        return _grammar().vocabulary()

    def log_likelihood(self, text: str) -> float:
        """log p(text) in nats; -inf for a text the grammar never writes. Whitespace around it does not count."""
        return _grammar().log_likelihood(text)

    def problems(self, text: str) -> list[str]:
        """The inconsistent or unknown parts of a text, in words; empty if and only if its likelihood is not 0."""
        return _grammar().problems(text)

    def anchors(self, text: str) -> list[tuple[int, int]]:
        """Character spans [start, end) that first mention a free choice; none for a text with problems."""
        return _grammar().anchors(text)

    def _count(self, split: str) -> int:
        counts = {"train": self.train, "valid": self.valid, "test": self.test}
        if split not in counts:
            raise UnknownName("split", split, counts)
        return counts[split]

    def _draws(self, split: str, block: int) -> list[list[int]]:
        """[_BLOCK, num_draws] uniform 64-bit numbers; NumPy keeps the raw stream of Philox the same for good."""
        seeds = np.random.SeedSequence([self.seed, self.splits.index(split), block])
        raw = np.random.Philox(seeds).random_raw(_BLOCK * _grammar().num_draws)
        draws: list[list[int]] = raw.reshape(_BLOCK, -1).tolist()
        return draws
