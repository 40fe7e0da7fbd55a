"""From problems that were solved to tables and charts: every way to answer beside the others."""

import math
from collections.abc import Sequence

from adlm.experiments.statistics import over_runs
from adlm.experiments.study import Outcome
from adlm.experiments.tables import of
from adlm.reasoning.answers import accuracy, paired
from adlm.report.sections import Cell, Chart, Interval, Series, Table, Texts

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


def _rows(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """By base and method, in the order of the steps."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.labels["base"], outcome.labels["method"]), []).append(outcome)
    return found


def _share(runs: Sequence[Outcome]) -> Interval:
    """Percent right: the wider of the intervals over seeds and over problems."""
    if len(runs) == 1:
        found = accuracy(runs[0].result["right"])
        low, high = found.interval
        return Interval(100 * found.share, 100 * low, 100 * high)
    return _wider([[100.0 * right for right in run.result["right"]] for run in runs])


def _difference(runs: Sequence[Outcome], others: Sequence[Outcome]) -> Interval | None:
    """Points that `runs` have more right than `others`, with the seeds of both and on the same problems."""
    theirs = {each.labels["seed"]: each.result["right"] for each in others}
    pairs = [(each.result["right"], theirs[each.labels["seed"]]) for each in runs if each.labels["seed"] in theirs]
    if not pairs:
        return None
    if len(pairs) == 1:
        found = paired(*pairs[0])
        low, high = found.interval
        return Interval(100 * found.difference, 100 * low, 100 * high)
    return _wider([[100.0 * (a - b) for a, b in zip(*pair, strict=True)] for pair in pairs])


def _wider(points: Sequence[Sequence[float]]) -> Interval:
    """The mean of points by seed and problem. Few seeds may agree by chance, which says nothing of other problems; and
    many problems say nothing of other seeds."""
    seeds = over_runs([math.fsum(each) / len(each) for each in points])
    means = [math.fsum(each) / len(each) for each in zip(*points, strict=True)]
    problems = over_runs(means)
    wider = max(seeds, problems, key=lambda each: each.high - each.low)
    return Interval(seeds.value, wider.low, wider.high, runs=len(points))


def solved_table(task: str, outcomes: Sequence[Outcome], lessons: Sequence[Outcome]) -> Table:
    grouped, published = _rows(outcomes), _PUBLISHED.get(task)
    rows: list[list[Cell]] = []
    for (base, method), runs in grouped.items():
        name, figures = METHODS[method]
        row: list[Cell] = [
            base,
            name,
            _share(runs),
            None if method == "chain" else _difference(runs, grouped.get((base, "chain"), [])),
            over_runs([each.result["tokens_written"] for each in runs]),
            runs[0].result["thoughts"],
        ]
        rows.append(row if published is None else [*row, figures[published]])
    columns = ["model", "method", "right, %", "against chain of thought", "tokens written", "thoughts"]
    best = ["", "", "high", "high", "low", ""]
    if published is not None:
        columns, best = [*columns, "GPT-2, the paper's"], [*best, "high"]
    return Table(f"{task}: problems solved", _how(task, outcomes, lessons), columns, rows, best)


def _how(task: str, outcomes: Sequence[Outcome], lessons: Sequence[Outcome]) -> str:
    """The note of a table."""
    first, seeds = outcomes[0].result, {each.labels["seed"] for each in outcomes}
    several = f"the wider of that over {len(seeds)} seeds and that over problems"
    said = [
        f"{len(first['right'])} test problems, the same for all, after {first['steps']:,} steps or nearly as many; "
        f"± is a 95 % interval, {several if len(seeds) > 1 else 'over problems, of one seed'}."
    ]
    if last := [runs for (base, _), runs in _rows(lessons).items() if base == outcomes[0].labels["base"]][-1:]:
        said.append(
            f"All began as a model that had learned to solve smaller problems step by step; of such it solved "
            f"{_share(last[0])} %."
        )
    if task in _PUBLISHED:
        said.append(
            "Problems are the published ones where their files are in $ADLM_DATA, else generated in their form. The "
            "paper's models are GPT-2 with 124 million parameters, trained before and for longer: compare how they go, "
            "not their size."
        )
    return " ".join(said)


def one_problem(task: str, outcomes: Sequence[Outcome]) -> Texts:
    texts = []
    for (base, method), runs in _rows(outcomes).items():
        shown = runs[0].result["shown"]
        thoughts = "".join(f"[{guesses[0][0].strip()} {guesses[0][1]:.0%}] " for guesses in shown["thoughts"])
        texts.append((f"{METHODS[method][0]}, {base}", f"{thoughts}{shown['written'].strip()}"))
    shown = outcomes[0].result["shown"]
    note = f"{shown['question']} (Answer: {shown['answer']}) In brackets, the likeliest token after each thought."
    return Texts(f"{task}: one problem", note, texts)


def cost_chart(outcomes: Sequence[Outcome]) -> Chart:
    """Accuracy over tokens written, a line of points for each method."""
    series = []
    for method, (name, _) in METHODS.items():
        runs = [group for (_, each), group in _rows_by_task(outcomes).items() if each == method]
        points = [(over_runs([each.result["tokens_written"] for each in group]).value, _share(group)) for group in runs]
        if points:
            labels = [group[0].labels["task"] for group in runs]
            series.append(Series.of(name, points, labels=labels, line=False))
    return Chart("Accuracy and what it costs", "Upper left is better.", "tokens written", "right, %", series)


def _rows_by_task(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """By task and method, of the first base."""
    base = outcomes[0].labels["base"]
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in of(outcomes, base=base):
        found.setdefault((outcome.labels["task"], outcome.labels["method"]), []).append(outcome)
    return found


def in_words(task: str, outcomes: Sequence[Outcome]) -> str:
    """How anchored chain of thought stands to a plain one and to Coconut, as far as the intervals say."""
    grouped, base = _rows(outcomes), outcomes[0].labels["base"]
    ours = grouped.get((base, "anchored"))
    said = []
    for method, other in (("chain", "a plain one"), ("coconut", "Coconut")):
        theirs = grouped.get((base, method))
        difference = _difference(ours, theirs) if ours and theirs else None
        if not ours or not theirs or difference is None:
            continue
        more = "more" if difference.low > 0 else "less" if difference.high < 0 else "neither surely more nor less"
        tokens = [sum(each.result["tokens_written"] for each in group) / len(group) for group in (ours, theirs)]
        written = f"{tokens[0]:.0f} tokens written, there {tokens[1]:.0f}"
        said.append(f"{more} than {other} ({difference} points; {written})")
    return f"On {task}, anchored chain of thought solves {' and '.join(said)}." if said else ""


def size_chart(task: str, outcomes: Sequence[Outcome]) -> Chart:
    """How many problems of each size are solved by the models that were trained on the largest."""
    series = []
    for (_, method), runs in _rows(outcomes).items():
        points = [
            (size, _share([each._replace(result={"right": each.result["right"][str(size)]}) for each in runs]))
            for size in runs[0].result["sizes"]
        ]
        series.append(Series.of(METHODS[method][0], points))
    note = (
        f"Of {len(next(iter(outcomes[0].result['right'].values())))} generated problems each. Lessons had small ones, "
        "with steps; what each method was trained on after them has the largest size alone."
    )
    return Chart(f"{task}: by size", note, "size of the problem", "right, %", series)
