"""Does anchored chain of thought help? Every way to answer, on every task, with one model and one budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from adlm.errors import DataError, UnknownName
from adlm.models.sizes import SIZES
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel
from adlm.train.callbacks import Callback
from adlm.train.init import Finetune, RandomInit
from adlm.train.lr_schedules import StableDecay
from adlm_studies.experiments.solved import METHODS, cost_chart, in_words, one_problem, size_chart, solved_table
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, StudyWork
from adlm_studies.experiments.tables import select
from adlm_studies.reasoning.data import ReasoningData, distinct, read_problems
from adlm_studies.reasoning.decode import SolvedProblem
from adlm_studies.reasoning.diffusion import DiffusionReasoningData
from adlm_studies.reasoning.methods import Chain, ReasoningMethod
from adlm_studies.reasoning.problem import SPLITS, GeneratedTask, Task
from adlm_studies.reasoning.solve import solve
from adlm_studies.reasoning.stages import (
    DIFFUSION,
    PUBLISHED,
    Curriculum,
    CurriculumStage,
    curriculum_stages,
    diffusion_stage,
    from_scratch,
    method_for,
    pretrained,
    starting_model,
    train_in_stages,
)
from adlm_studies.reasoning.tasks import make_task
from adlm_studies.report.sections import ReportPage, Section


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
    """How long a task is trained for: problems, the fraction of the published epochs, problems per step, and how many
    of the
    test split are asked; 0 are all.

    Args:
        longest: train on problems of at most this many tokens; 0: all. All are tested.
        lessons: what fresh models begin with, in order.
        sizes: of problems that are asked beside the test split's.
        task, smaller: where the name is not a task's own: the task, and fields of it.
        stack: of fresh models, where it is not the scale's own.
    """

    problems: int
    epochs: float
    rows: int
    tested: int
    longest: int = 0
    lessons: tuple[Lesson, ...] = ()
    sizes: tuple[int, ...] = ()
    task: str = ""
    smaller: Mapping[str, int] = {}
    stack: StackConfig | None = None


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
            (8, 12, 16, 20, 24, 28),
        ),
        "prontoqa": Budget(
            6_400,
            0.02,
            32,
            800,
            0,
            (Lesson({"least": 1, "most": 2}, 32_000, 0.02, 32), Lesson({"least": 1}, 24_000, 0.02, 32)),
            (1, 2, 3, 4, 5),
        ),
        "prosqa of 12 nodes": Budget(
            9_600,
            0.04,
            64,
            500,
            0,
            (Lesson({"least": 6, "most": 12}, 32_000, 0.02, 32),),
            task="prosqa",
            smaller={"least": 12, "most": 12},
        ),
        "prosqa with five layers": Budget(
            9_600,
            0.02,
            32,
            500,
            360,
            (Lesson({"least": 6, "most": 16}, 64_000, 0.02, 32), Lesson({"least": 12}, 48_000, 0.02, 32)),
            (8, 12, 16, 20, 24, 28),
            task="prosqa",
            stack=StackConfig(width=96, heads=2, layers=5),
        ),
        "arithmetic": Budget(20_000, 0.04, 64, 500, 0, (Lesson({"least": 1, "most": 2}, 20_000, 0.04, 64),)),
        "gsm8k-equations": Budget(0, 0.1, 64, 0, 200),
    },
    "small": {"prontoqa": Budget(0, 0.5, 64, 0), "prosqa": Budget(0, 0.5, 64, 0), "gsm8k": Budget(0, 1.0, 64, 0)},
    "paper": {"gsm8k": Budget(0, 1, 128, 0), "prontoqa": Budget(0, 1, 128, 0), "prosqa": Budget(0, 1, 128, 0)},
}
_BASES = {"nano": ("ar", "a2r", "adlm"), "small": ("ar",), "paper": ("openai-community/gpt2",)}
_STACKS = {"nano": StackConfig(width=64, heads=4, layers=3), "small": SIZES["micro"], "paper": SIZES["small"]}
_LESSON = "lesson"


@dataclass(frozen=True)
class TrainReasoner(StudyWork):
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

    def execute(self, context: StepContext) -> dict[str, Any]:
        curriculum, folder = self.curriculum, context.folder
        if self.after:
            begun = str(context.folder_of(self.after))
            curriculum = replace(curriculum, init=Finetune(begun), tokenizer=begun)
        if self.diffusion:
            objective = starting_model(self.diffusion).objective
            assert objective is not None
            stages = [diffusion_stage(curriculum, folder, objective)]
        else:
            stages = curriculum_stages(curriculum, folder)
        train_in_stages(stages, callbacks=_callbacks(context), curves=False)
        model = TextModel.from_pretrained(folder)
        data = stages[-1].run.data
        problems = distinct(read_problems(curriculum.task, "test", self.tested))
        assert isinstance(data, ReasoningData | DiffusionReasoningData)
        _, solved = solve(model.network, model.tokenizer, data, problems, "test")
        shown = solved[0]
        return {
            "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
            "steps": sum(stage.run.train.steps for stage in stages),
            "tokens_read": sum(stage.run.train.steps * stage.run.train.tokens_per_step for stage in stages),
            "right": _word(solved),
            "answered": sum(each.found is not None for each in solved) / len(solved),
            "tokens_written": sum(each.written.tokens for each in solved) / len(solved),
            "thoughts": len(shown.written.thoughts),
            "shown": {
                "question": shown.problem.question,
                "answer": shown.problem.answer,
                "written": shown.written.text,
                "thoughts": [[list(prediction) for prediction in each] for each in shown.written.thoughts],
            },
        }


@dataclass(frozen=True)
class SolveBySize(StudyWork):
    """Put generated problems of several sizes to the model of another step.

    Args:
        after: that step.
        method: as the model was trained with it.
        task: by name.
        problems: of each size.
    """

    after: str
    method: ReasoningMethod
    task: str
    sizes: tuple[int, ...]
    problems: int = 200

    def execute(self, context: StepContext) -> dict[str, Any]:
        folder = context.folder_of(self.after)
        model, right = TextModel.from_pretrained(folder), {}
        for size in self.sizes:
            task = make_task(self.task, None, least=size, most=size, test=self.problems)
            data = ReasoningData(task, self.method, self.method.stages - 1, str(folder))
            assert isinstance(task, GeneratedTask)
            _, solved = solve(model.network, model.tokenizer, data, distinct(task.drawn("test")), f"of size {size}")
            right[str(size)] = _word(solved)
        return {"sizes": list(self.sizes), "right": right}


def _word(solved: Sequence[SolvedProblem]) -> str:
    return "".join("01"[each.right] for each in solved)


def _at_hand(scale: str) -> list[str]:
    """Tasks with a budget, without those that cannot be generated and whose files are not all here."""

    def is_here(task: Task) -> bool:
        try:
            return isinstance(task, GeneratedTask) or all(task.origin(split) for split in SPLITS)
        except DataError:
            return False

    return [name for name, budget in _BUDGETS[scale].items() if is_here(make_task(budget.task or name, None))]


def _callbacks(context: StepContext) -> Callable[[CurriculumStage, int, int], AbstractContextManager[Callback]]:
    @contextmanager
    def callbacks(stage: CurriculumStage, number: int, count: int) -> Iterator[Callback]:
        context.callback.log(f"stage {number + 1} of {count}: {stage.run.train.steps:,} steps")
        yield Callback()

    return callbacks


@dataclass(frozen=True)
class Reasoning(Study):
    """The study of whether anchored chain of thought helps, with one model and one budget.

    Args:
        tasks: by name; by default those that the scale has a budget for, GSM8K only where its files are.
        methods: by name; all by default.
        bases: kinds of fresh models (ar, a2r, adlm), or models to begin with. The first gets every method, the others
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

    def steps(self) -> Sequence[StudyStep]:
        steps: list[StudyStep] = []
        for seed in range(self.seeds):
            for number, task in enumerate(self.tasks or _at_hand(self.scale)):
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

    def _of(self, task: str, base: str, seed: int, methods: Sequence[str]) -> Iterator[StudyStep]:
        """One model with one seed on one task, with every method."""
        known = _BUDGETS[self.scale]
        if task not in known:
            raise UnknownName(f"task at {self.scale} scale", task, known)
        budget = known[task]
        begun = starting_model(base, budget.stack or _STACKS[self.scale])
        kind = budget.task or task
        fresh, diffusion = begun.init == RandomInit(), base if begun.objective is not None else ""

        def step(name: str, work: TrainReasoner, *needs: str) -> StudyStep:
            labels = {"task": task, "base": base, "method": name, "seed": seed}
            return StudyStep(
                f"{task.replace(' ', '-')}/{base.replace('/', '-')}/{name}/seed-{seed}", work, labels, needs
            )

        curriculum = Curriculum(
            make_task(kind, None, **budget.smaller),
            Chain(),
            begun.network,
            PUBLISHED[kind].epochs,
            begun.init,
            scale=budget.epochs * self.epochs,
            batch_size=budget.rows,
            train=from_scratch(seed) if fresh else pretrained(seed),
            tokenizer=begun.tokenizer,
            problems=budget.problems,
            held_out=200,
            longest=0 if diffusion else budget.longest,
        )
        needs: tuple[str, ...] = ()
        for number, (easier, problems, epochs, rows) in enumerate(budget.lessons if fresh else ()):
            lesson = replace(
                curriculum,
                task=make_task(kind, None, **{"train": problems, **easier}),
                problems=problems,
                scale=epochs * self.epochs,
                batch_size=rows,
                longest=0,
            )
            taught = step(f"{_LESSON}-{number + 1}", TrainReasoner(lesson, diffusion, 200, *needs), *needs)
            yield taught
            needs = (taught.name,)
        if needs:  # their stages are short
            curriculum = replace(
                curriculum, train=replace(curriculum.train, lr_schedule=StableDecay(warmup=5, decay=0.3))
            )
        for name in methods:
            own = replace(curriculum, method=method_for(kind, name))
            asked = step(name, TrainReasoner(own, diffusion, budget.tested, *needs), *needs)
            yield asked
            if budget.sizes and not diffusion:
                sized = SolveBySize(asked.name, own.method, kind, budget.sizes)
                yield StudyStep(f"{asked.name}/sizes", sized, {**asked.labels, "by": "size"}, (asked.name,))

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        lessons = [each for each in outcomes if each.labels["method"] not in METHODS]
        sized = select(outcomes, by="size")
        outcomes = [each for each in outcomes if each.labels["method"] in METHODS and each not in sized]
        tasks = list(dict.fromkeys(outcome.labels["task"] for outcome in outcomes))
        sections: list[Section] = []
        for task in tasks:
            sections += [
                solved_table(task, select(outcomes, task=task), select(lessons, task=task)),
                one_problem(task, select(outcomes, task=task)),
            ]
            if by_size := select(sized, task=task):
                sections.append(size_chart(task, by_size))
        if outcomes:
            sections.append(cost_chart(outcomes))
        lead = [self.question, *(in_words(task, select(outcomes, task=task)) for task in tasks)]
        return ReportPage("Reasoning with anchors", " ".join(filter(None, lead)), sections)
