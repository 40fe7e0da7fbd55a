"""Does anchored chain of thought help? Every way to answer, on every task, with one model and one budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from adlm.errors import UnknownName
from adlm.experiments.statistics import over_runs, paired
from adlm.experiments.study import Outcome, Place, Step, Study, Work
from adlm.experiments.tables import of
from adlm.models.sizes import SIZES
from adlm.models.stack import StackConfig
from adlm.reasoning.answers import accuracy
from adlm.reasoning.diffusion import Diffused
from adlm.reasoning.methods import Chain
from adlm.reasoning.rows import Reasoned, problems_of
from adlm.reasoning.solve import solve
from adlm.reasoning.stages import (
    DIFFUSION,
    PUBLISHED,
    Curriculum,
    Stage,
    base_of,
    diffusion_stage,
    method_for,
    pretrained,
    scratch,
    stages_of,
    train_in_stages,
)
from adlm.reasoning.tasks import task_of
from adlm.report.sections import Cell, Chart, Interval, Report, Section, Series, Table, Texts
from adlm.text_model import TextModel
from adlm.train.rates import StableDecay
from adlm.train.sitting import Attendance
from adlm.train.start import Finetune, Fresh

# In the order of the paper's table, with what it reports for GPT-2: GSM8K, ProntoQA, ProsQA (arXiv 2505.18456).
METHODS: dict[str, tuple[str, tuple[float, float, float]]] = {
    "none": ("no chain of thought", (16.5, 93.8, 76.7)),
    "pause": ("pause tokens", (16.4, 77.7, 75.9)),
    "chain": ("chain of thought", (42.9, 98.8, 77.5)),
    "implicit": ("implicit chain of thought", (30.0, 99.8, 98.2)),
    "coconut": ("Coconut", (34.1, 99.8, 97.0)),
    "anchored": ("anchored chain of thought", (45.2, 100.0, 97.3)),
}
_PUBLISHED = {"gsm8k": 0, "gsm8k-equations": 0, "prontoqa": 1, "prosqa": 2}


class Lesson(NamedTuple):
    """Smaller problems of the same kind, which a fresh model solves step by step before it is given a method.

    The published models begin as GPT-2, which can look a rule up; small ones spend hours on large problems before they
    can, and minutes on small ones.

    Args:
        easier: fields of the task.
        problems, epochs, rows: as in `Budget`.
    """

    easier: Mapping[str, int]
    problems: int
    epochs: float
    rows: int


class Budget(NamedTuple):
    """How long a task is trained for: problems, the share of the published epochs, problems a step, and how many of the
    test split are asked; 0 are all.

    Args:
        longest: train on problems of so many tokens at most; 0: all. All are tested.
        lessons: what fresh models begin with, in order.
    """

    problems: int
    epochs: float
    rows: int
    tested: int
    longest: int = 0
    lessons: tuple[Lesson, ...] = ()


_BUDGETS: dict[str, dict[str, Budget]] = {
    "nano": {
        "graph": Budget(20_000, 0.04, 64, 500, 0, (Lesson({"nodes": 10, "least": 1, "most": 3}, 32_000, 0.04, 64),)),
        "prosqa": Budget(
            4_800,
            0.02,
            32,
            500,
            360,
            (Lesson({"least": 6, "most": 12}, 32_000, 0.02, 32), Lesson({"least": 8}, 24_000, 0.02, 32)),
        ),
        "prontoqa": Budget(
            6_400,
            0.02,
            32,
            800,
            0,
            (Lesson({"least": 1, "most": 2}, 32_000, 0.02, 32), Lesson({"least": 1}, 24_000, 0.02, 32)),
        ),
        "arithmetic": Budget(20_000, 0.04, 64, 500, 0, (Lesson({"least": 1, "most": 2}, 20_000, 0.04, 64),)),
    },
    "small": {"prontoqa": Budget(0, 0.5, 64, 0), "prosqa": Budget(0, 0.5, 64, 0), "gsm8k": Budget(0, 1.0, 64, 0)},
    "paper": {"gsm8k": Budget(0, 1, 128, 0), "prontoqa": Budget(0, 1, 128, 0), "prosqa": Budget(0, 1, 128, 0)},
}
_BASES = {"nano": ("ar", "a2r", "adlm"), "small": ("ar",), "paper": ("openai-community/gpt2",)}
_STACKS = {"nano": StackConfig(width=64, heads=4, layers=3), "small": SIZES["micro"], "paper": SIZES["small"]}
_LESSON = "lesson"


@dataclass(frozen=True)
class Reason(Work):
    """Train a model in stages and count what it solves.

    Args:
        diffusion: the curriculum's network is a diffusion model of this kind; "" where it writes left to right.
        tested: problems of the test split; 0: all.
        after: the step whose model this one begins as; "" begins as the curriculum says.
    """

    curriculum: Curriculum
    diffusion: str = ""
    tested: int = 0
    after: str = ""

    def do(self, place: Place) -> dict[str, Any]:
        curriculum, folder = self.curriculum, place.folder
        if self.after:
            begun = str(place.folder_of(self.after))
            curriculum = replace(curriculum, start=Finetune(begun), tokenizer=begun)
        if self.diffusion:
            objective = base_of(self.diffusion).objective
            assert objective is not None
            stages = [diffusion_stage(curriculum, folder, objective)]
        else:
            stages = stages_of(curriculum, folder)
        train_in_stages(stages, around=_attending(place), curves=False)
        model = TextModel.from_pretrained(folder)
        data = stages[-1].run.data
        problems = problems_of(curriculum.task, "test", self.tested)
        assert isinstance(data, Reasoned | Diffused)
        _, solved = solve(model.network, model.tokenizer, data, problems, "test")
        shown = solved[0]
        return {
            "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
            "steps": sum(stage.run.train.steps for stage in stages),
            "tokens_read": sum(stage.run.train.steps * stage.run.train.tokens for stage in stages),
            "right": [each.right for each in solved],
            "answered": sum(each.found is not None for each in solved) / len(solved),
            "tokens_written": sum(each.written.tokens for each in solved) / len(solved),
            "thoughts": len(shown.written.thoughts),
            "shown": {
                "question": shown.problem.question,
                "answer": shown.problem.answer,
                "written": shown.written.text,
                "thoughts": [[list(guess) for guess in each] for each in shown.written.thoughts],
            },
        }


def _attending(place: Place) -> Callable[[Stage, int, int], AbstractContextManager[Attendance]]:
    @contextmanager
    def around(stage: Stage, number: int, count: int) -> Iterator[Attendance]:
        place.say(f"stage {number + 1} of {count}: {stage.run.train.steps:,} steps")
        yield Attendance(place.watch, _silent)

    return around


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class Reasoning(Study):
    """Args:
    tasks: by name; by default those that the scale has a budget for.
    methods: by name; all by default.
    bases: kinds of fresh models (ar, a2r, adlm), or models to begin with. The first is given every method, the others
        are anchored, on the first task alone; a diffusion model writes its chain without anchors too.
    epochs: times the scale's own.
    """

    name: ClassVar[str] = "reasoning"
    question: ClassVar[str] = (
        "Does anchored chain of thought solve more, and with fewer tokens, at equal model and budget?"
    )

    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    epochs: float = 1.0

    def steps(self) -> Sequence[Step]:
        steps: list[Step] = []
        for seed in range(self.seeds):
            for number, task in enumerate(self.tasks or _BUDGETS[self.scale]):
                for place, base in enumerate(self._bases if number == 0 else self._bases[:1]):
                    steps += self._of(task, base, seed, self._methods(place, base))
        return steps

    @property
    def _bases(self) -> tuple[str, ...]:
        return self.bases or _BASES[self.scale]

    def _methods(self, place: int, base: str) -> Sequence[str]:
        if base in DIFFUSION:
            return ("chain", "anchored")
        return (self.methods or tuple(METHODS)) if place == 0 else ("anchored",)

    def _of(self, task: str, base: str, seed: int, methods: Sequence[str]) -> Iterator[Step]:
        """One model with one seed on one task, with every method."""
        known = _BUDGETS[self.scale]
        if task not in known:
            raise UnknownName(f"task at {self.scale} scale", task, known)
        budget, begun = known[task], base_of(base, _STACKS[self.scale])
        fresh, diffusion = begun.start == Fresh(), base if begun.objective is not None else ""

        def step(name: str, work: Reason, *needs: str) -> Step:
            labels = {"task": task, "base": base, "method": name, "seed": seed}
            return Step(f"{task}/{base.replace('/', '-')}/{name}/seed-{seed}", work, labels, needs)

        curriculum = Curriculum(
            task_of(task),
            Chain(),
            begun.network,
            PUBLISHED[task].epochs,
            begun.start,
            scale=budget.epochs * self.epochs,
            rows=budget.rows,
            train=scratch(seed) if fresh else pretrained(seed),
            tokenizer=begun.tokenizer,
            problems=budget.problems,
            held_out=200,
            longest=0 if diffusion else budget.longest,
        )
        needs: tuple[str, ...] = ()
        for number, (easier, problems, epochs, rows) in enumerate(budget.lessons if fresh else ()):
            lesson = replace(
                curriculum,
                task=task_of(task, None, **{"train": problems, **easier}),
                problems=problems,
                scale=epochs * self.epochs,
                rows=rows,
                longest=0,
            )
            taught = step(f"{_LESSON}-{number + 1}", Reason(lesson, diffusion, 200, *needs), *needs)
            yield taught
            needs = (taught.name,)
        if needs:  # their stages are short
            curriculum = replace(curriculum, train=replace(curriculum.train, rate=StableDecay(warmup=5, decay=0.3)))
        for name in methods:
            own = replace(curriculum, method=method_for(task, name))
            yield step(name, Reason(own, diffusion, budget.tested, *needs), *needs)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        lessons = [each for each in outcomes if each.labels["method"] not in METHODS]
        outcomes = [each for each in outcomes if each.labels["method"] in METHODS]
        tasks = list(dict.fromkeys(outcome.labels["task"] for outcome in outcomes))
        sections: list[Section] = []
        for task in tasks:
            sections += [
                _table(task, of(outcomes, task=task), of(lessons, task=task)),
                _shown(task, of(outcomes, task=task)),
            ]
        if outcomes:
            sections.append(_chart(outcomes))
        lead = [self.question, *(_words(task, of(outcomes, task=task)) for task in tasks)]
        return Report("Reasoning with anchors", " ".join(filter(None, lead)), sections)


def _shares(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Percent right, by seed."""
    return {each.labels["seed"]: 100 * accuracy(each.result["right"]).share for each in outcomes}


def _rows(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """By base and method, in the order of the steps."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.labels["base"], outcome.labels["method"]), []).append(outcome)
    return found


def _table(task: str, outcomes: Sequence[Outcome], lessons: Sequence[Outcome]) -> Table:
    rows: list[list[Cell]] = []
    grouped = _rows(outcomes)
    for (base, method), runs in grouped.items():
        shares, result = _shares(runs), runs[0].result
        chain = _shares(grouped.get((base, "chain"), []))
        shared = sorted(shares.keys() & chain.keys())
        mean = over_runs(list(shares.values()))
        if len(runs) == 1:  # one seed: what the draw of problems leaves open
            low, high = accuracy(result["right"]).interval
            mean = Interval(mean.value, 100 * low, 100 * high)
        rows.append([
            base,
            METHODS[method][0],
            mean,
            paired([shares[s] for s in shared], [chain[s] for s in shared]) if shared and method != "chain" else None,
            over_runs([each.result["tokens_written"] for each in runs]),
            result["thoughts"],
            METHODS[method][1][_PUBLISHED[task]] if task in _PUBLISHED else None,
        ])  # fmt: skip
    columns = (
        "model",
        "method",
        "right, %",
        "against chain of thought",
        "tokens written",
        "thoughts",
        "GPT-2, the paper's",
    )
    first = outcomes[0].result
    note = (
        f"{len(first['right'])} test problems, the same for all; every model read {first['tokens_read'] / 1e6:.1f} "
        "million tokens or nearly as many. ± is a 95 % interval over seeds, of one seed over problems. The paper's "
        "models are GPT-2 with 124 million parameters, trained before and for longer: compare how they go, not their "
        "size."
    )
    if last := [runs for (base, _), runs in _rows(lessons).items() if base == outcomes[0].labels["base"]][-1:]:
        note += (
            " All began as a model that had learned to solve smaller problems step by step; of such it solved "
            f"{over_runs(list(_shares(last[0]).values()))} %."
        )
    return Table(f"{task}: problems solved", note, columns, rows, ("", "", "high", "high", "low", "", "high"))


def _shown(task: str, outcomes: Sequence[Outcome]) -> Texts:
    texts = []
    for (base, method), runs in _rows(outcomes).items():
        shown = runs[0].result["shown"]
        thoughts = "".join(f"[{guesses[0][0].strip()} {guesses[0][1]:.0%}] " for guesses in shown["thoughts"])
        texts.append((f"{METHODS[method][0]}, {base}", f"{thoughts}{shown['written'].strip()}"))
    shown = outcomes[0].result["shown"]
    note = f"{shown['question']} (Answer: {shown['answer']}) In brackets, the likeliest token after each thought."
    return Texts(f"{task}: one problem", note, texts)


def _chart(outcomes: Sequence[Outcome]) -> Chart:
    """Accuracy over tokens written, a line of points for each method."""
    series = []
    for method, (name, _) in METHODS.items():
        runs = [group for (_, each), group in _rows_by_task(outcomes).items() if each == method]
        points = [
            (
                over_runs([each.result["tokens_written"] for each in group]).value,
                over_runs(list(_shares(group).values())),
            )
            for group in runs
        ]
        if points:
            series.append(
                Series(
                    name,
                    [x for x, _ in points],
                    [y.value for _, y in points],
                    [y.low for _, y in points],
                    [y.high for _, y in points],
                    labels=[group[0].labels["task"] for group in runs],
                    line=False,
                )
            )
    return Chart("Accuracy and what it costs", "Upper left is better.", "tokens written", "right, %", series)


def _rows_by_task(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """By task and method, of the first base."""
    base = outcomes[0].labels["base"]
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in of(outcomes, base=base):
        found.setdefault((outcome.labels["task"], outcome.labels["method"]), []).append(outcome)
    return found


def _words(task: str, outcomes: Sequence[Outcome]) -> str:
    """Whether anchored chain of thought at least matches a plain one, as far as the interval says."""
    grouped = _rows(outcomes)
    base = outcomes[0].labels["base"]
    ours, chain = grouped.get((base, "anchored")), grouped.get((base, "chain"))
    if not ours or not chain:
        return ""
    a, b = _shares(ours), _shares(chain)
    shared = sorted(a.keys() & b.keys())
    difference = paired([a[s] for s in shared], [b[s] for s in shared])
    said = "more" if difference.low > 0 else "less" if difference.high < 0 else "as much, as far as can be told"
    tokens = [sum(each.result["tokens_written"] for each in group) / len(group) for group in (ours, chain)]
    return (
        f"On {task}, anchored chain of thought solves {said} than a plain one ({difference} points over {len(shared)} "
        f"seeds), and writes {tokens[0]:.0f} tokens where that writes {tokens[1]:.0f}."
    )
