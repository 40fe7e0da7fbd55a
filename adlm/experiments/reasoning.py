"""Does anchored chain of thought help? Every way to answer, on every task, with one model and one budget."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from adlm.errors import UnknownName
from adlm.experiments.statistics import over_runs, paired
from adlm.experiments.study import Outcome, Place, Step, Study, Work
from adlm.experiments.tables import of
from adlm.reasoning.answers import accuracy
from adlm.reasoning.diffusion import Diffused
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
from adlm.train.sitting import Attendance
from adlm.train.start import Fresh

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


class Budget(NamedTuple):
    """How long a task is trained for: problems, the share of the published epochs, problems a step, and how many of the
    test split are asked; 0 are all."""

    problems: int
    epochs: float
    rows: int
    tested: int


_BUDGETS: dict[str, dict[str, Budget]] = {
    "nano": {
        "graph": Budget(4000, 0.3, 64, 500),
        "arithmetic": Budget(4000, 0.6, 64, 500),
        "prontoqa": Budget(2000, 0.1, 32, 300),
        "prosqa": Budget(2000, 0.1, 32, 300),
    },
    "small": {"prontoqa": Budget(0, 0.5, 64, 0), "prosqa": Budget(0, 0.5, 64, 0), "gsm8k": Budget(0, 1.0, 64, 0)},
    "paper": {"gsm8k": Budget(0, 1, 128, 0), "prontoqa": Budget(0, 1, 128, 0), "prosqa": Budget(0, 1, 128, 0)},
}
_BASES = {"nano": "ar", "small": "ar", "paper": "openai-community/gpt2"}
_SIZES = {"nano": "nano", "small": "micro", "paper": "small"}


@dataclass(frozen=True)
class Reason(Work):
    """Train a model in stages and count what it solves.

    Args:
        diffusion: the curriculum's network is a diffusion model of this kind; "" where it writes left to right.
        tested: problems of the test split; 0: all.
    """

    curriculum: Curriculum
    diffusion: str = ""
    tested: int = 0

    def do(self, place: Place) -> dict[str, Any]:
        curriculum, folder = self.curriculum, place.folder
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
        are anchored; a diffusion model writes its chain without anchors too.
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
        return [
            Step(
                f"{task}/{base.replace('/', '-')}/{method}/seed-{seed}",
                self._work(task, base, method, seed),
                {"task": task, "base": base, "method": method, "seed": seed},
            )
            for seed in range(self.seeds)
            for task in self.tasks or _BUDGETS[self.scale]
            for place, base in enumerate(self._bases)
            for method in self._methods(place, base)
        ]

    @property
    def _bases(self) -> tuple[str, ...]:
        return self.bases or (_BASES[self.scale],)

    def _methods(self, place: int, base: str) -> Sequence[str]:
        if base in DIFFUSION:
            return ("chain", "anchored")
        return (self.methods or tuple(METHODS)) if place == 0 else ("anchored",)

    def _work(self, task: str, base: str, method: str, seed: int) -> Reason:
        known = _BUDGETS[self.scale]
        if task not in known:
            raise UnknownName(f"task at {self.scale} scale", task, known)
        budget, begun = known[task], base_of(base, _SIZES[self.scale])
        curriculum = Curriculum(
            task_of(task, None),
            method_for(task, method),
            begun.network,
            PUBLISHED[task].epochs,
            begun.start,
            scale=budget.epochs * self.epochs,
            rows=budget.rows,
            train=scratch(seed) if begun.start == Fresh() else pretrained(seed),
            tokenizer=begun.tokenizer,
            problems=budget.problems,
            held_out=200,
        )
        return Reason(curriculum, base if begun.objective is not None else "", budget.tested)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        tasks = list(dict.fromkeys(outcome.labels["task"] for outcome in outcomes))
        sections: list[Section] = []
        for task in tasks:
            sections += [_table(task, of(outcomes, task=task)), _shown(task, of(outcomes, task=task))]
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


def _table(task: str, outcomes: Sequence[Outcome]) -> Table:
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
