"""From problems that were solved to tables and charts: every way to answer beside the others."""

import math
from collections.abc import Sequence

from adlm_studies.experiments.statistics import over_runs
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.experiments.tables import select
from adlm_studies.reasoning.answers import Accuracy, paired
from adlm_studies.report.sections import Cell, Chart, Interval, ReportTable, Series, Texts

# In the order of the paper's table, with what it reports for GPT-2: GSM8K, ProntoQA, ProsQA (arXiv 2505.18456).
METHODS: dict[str, tuple[str, tuple[float, float, float]]] = {
    "none": ("no chain of thought", (16.5, 93.8, 76.7)),
    "pause": ("pause tokens", (16.4, 77.7, 75.9)),
    "chain": ("chain of thought", (42.9, 98.8, 77.5)),
    "implicit": ("implicit chain of thought", (30.0, 99.8, 98.2)),
    "coconut": ("Coconut", (34.1, 99.8, 97.0)),
    "anchored": ("anchored chain of thought", (45.2, 100.0, 97.3)),
}
_PUBLISHED = {"gsm8k": 0, "gsm8k-equations": 0, "prontoqa": 1, "prosqa": 2, "prosqa with five layers": 2}


def _rows(outcomes: Sequence[StepOutcome]) -> dict[tuple[str, str], list[StepOutcome]]:
    """By base and method, in the order of the steps."""
    found: dict[tuple[str, str], list[StepOutcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.labels["base"], outcome.labels["method"]), []).append(outcome)
    return found


def _fraction(words: Sequence[str]) -> Interval:
    """Percent right, of a word of marks for each seed: the wider of the intervals over seeds and over problems."""
    fractions, problems = [100 * word.count("1") / len(word) for word in words], len(words[0])
    low, high = Accuracy(round(sum(word.count("1") for word in words) / len(words)), problems).interval
    return _wider(fractions, Interval(math.fsum(fractions) / len(fractions), 100 * low, 100 * high), 0, 100)


def _difference(runs: Sequence[StepOutcome], others: Sequence[StepOutcome]) -> Interval | None:
    """Points that `runs` have more right than `others`, with the seeds of both and on the same problems."""
    theirs = {each.labels["seed"]: _marks(each.result["right"]) for each in others}
    mine = {each.labels["seed"]: _marks(each.result["right"]) for each in runs}
    pairs = [paired(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    if not pairs:
        return None
    low, high = (math.fsum(each) / len(pairs) for each in zip(*(pair.interval for pair in pairs), strict=True))
    differences = [100 * pair.difference for pair in pairs]
    problems = Interval(math.fsum(differences) / len(differences), 100 * low, 100 * high)
    return _wider(differences, problems, -100, 100)


def _wider(by_seed: Sequence[float], problems: Interval, least: float, most: float) -> Interval:
    """Few seeds may agree by chance, which says nothing of other problems; and many problems say nothing of other
    seeds. The interval over problems is that of a single seed, as if seeds told nothing new of them."""
    if len(by_seed) == 1:
        return problems
    wider = max(over_runs(by_seed), problems, key=lambda each: each.high - each.low)
    return Interval(problems.value, max(least, wider.low), min(most, wider.high), runs=len(by_seed))


def _marks(word: str) -> list[bool]:
    """Of a word of 1 and 0, a problem each: results are written so, since lists of them are long."""
    return [mark == "1" for mark in word]


def _words(runs: Sequence[StepOutcome]) -> list[str]:
    return [run.result["right"] for run in runs]


def solved_table(task: str, outcomes: Sequence[StepOutcome], lessons: Sequence[StepOutcome]) -> ReportTable:
    """The table of problems solved by each method."""
    grouped, published = _rows(outcomes), _PUBLISHED.get(task)
    rows: list[list[Cell]] = []
    for (base, method), runs in grouped.items():
        name, figures = METHODS[method]
        row: list[Cell] = [
            base,
            name,
            _fraction(_words(runs)),
            None if method == "chain" else _difference(runs, grouped.get((base, "chain"), [])),
            over_runs([each.result["tokens_written"] for each in runs]),
            runs[0].result["thoughts"],
        ]
        rows.append(row if published is None else [*row, figures[published]])
    columns = ["model", "method", "right, %", "against chain of thought", "tokens written", "thoughts"]
    best = ["", "", "high", "high", "low", ""]
    if published is not None:
        columns, best = [*columns, "GPT-2, the paper's"], [*best, "high"]
    return ReportTable(f"{task}: problems solved", _how(task, outcomes, lessons), columns, rows, best)


def _how(task: str, outcomes: Sequence[StepOutcome], lessons: Sequence[StepOutcome]) -> str:
    """The note of a table."""
    first, seeds = outcomes[0].result, sorted({len(runs) for runs in _rows(outcomes).values()})
    several = "the wider of that over seeds and that over problems"
    said = [
        f"{len(first['right'])} distinct test problems, the same for all, after about {first['steps']:,} steps; "
        f"± is a 95 % interval, {several if seeds[-1] > 1 else 'over problems, of one seed'}."
    ]
    if seeds[-1] > 1:
        said.append(f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds per row.")
    for base in dict.fromkeys(each.labels["base"] for each in outcomes):
        if last := [runs for (taught, _), runs in _rows(lessons).items() if taught == base][-1:]:
            said.append(
                f"The {base} models started from one that was trained on lessons, easier problems with their steps; it "
                f"solved {_fraction(_words(last[0]))} % of the last lesson's problems."
            )
    if task in _PUBLISHED:
        if not task.startswith("gsm8k"):  # there is no generator for that
            said.append(
                "Problems are the published ones if their files are in $ADLM_DATA, otherwise generated in the "
                "same form."
            )
        said.append(
            "The paper's models are GPT-2 with 124 million parameters, pretrained, and trained for longer: compare "
            "trends, not values."
        )
    return " ".join(said)


def one_problem(task: str, outcomes: Sequence[StepOutcome]) -> Texts:
    """One problem with the answers of the methods, as a section of the report."""
    texts = []
    for (base, method), runs in _rows(outcomes).items():
        shown = runs[0].result["shown"]
        thoughts = "".join(f"[{likeliest[0][0].strip()} {likeliest[0][1]:.0%}] " for likeliest in shown["thoughts"])
        texts.append((f"{METHODS[method][0]}, {base}", f"{thoughts}{shown['written'].strip()}"))
    shown = outcomes[0].result["shown"]
    note = f"{shown['question']} (Answer: {shown['answer']}) In brackets: the most likely token after each thought."
    return Texts(f"{task}: one problem", note, texts)


def cost_chart(outcomes: Sequence[StepOutcome]) -> Chart:
    """Accuracy over tokens written, a line of points for each method."""
    series = []
    for method, (name, _) in METHODS.items():
        runs = [group for (_, each), group in _rows_by_task(outcomes).items() if each == method]
        points = [
            (over_runs([each.result["tokens_written"] for each in group]).value, _fraction(_words(group)))
            for group in runs
        ]
        if points:
            # Methods without steps share a few positions, so only ours is labeled there.
            labels = [group[0].labels["task"] for group in runs] if method in ("chain", "anchored") else ()
            series.append(Series.of(name, points, labels=labels, line=False))
    return Chart("Accuracy and what it costs", "Upper left is better.", "tokens written", "right, %", series)


def _rows_by_task(outcomes: Sequence[StepOutcome]) -> dict[tuple[str, str], list[StepOutcome]]:
    """By task and method, of the first base."""
    base = outcomes[0].labels["base"]
    found: dict[tuple[str, str], list[StepOutcome]] = {}
    for outcome in select(outcomes, base=base):
        found.setdefault((outcome.labels["task"], outcome.labels["method"]), []).append(outcome)
    return found


def in_words(task: str, outcomes: Sequence[StepOutcome]) -> str:
    """How anchored chain of thought compares with a plain one and with Coconut, as far as the intervals tell."""
    grouped, base = _rows(outcomes), outcomes[0].labels["base"]
    ours = grouped.get((base, "anchored"))
    said = []
    for method, other in (("chain", "a plain one"), ("coconut", "Coconut")):
        theirs = grouped.get((base, method))
        difference = _difference(ours, theirs) if ours and theirs else None
        if not ours or not theirs or difference is None:
            continue
        unclear = "neither significantly more nor fewer"
        more = "more" if difference.low > 0 else "fewer" if difference.high < 0 else unclear
        tokens = [sum(each.result["tokens_written"] for each in group) / len(group) for group in (ours, theirs)]
        written = f"{tokens[0]:.0f} tokens written, compared with {tokens[1]:.0f}"
        said.append(f"{more} than {other} ({difference} points; {written})")
    return f"On {task}, anchored chain of thought solves {' and '.join(said)}." if said else ""


def size_chart(task: str, outcomes: Sequence[StepOutcome]) -> Chart:
    """A chart of the problems of each size solved by models that were trained on the largest."""
    series = []
    grouped = _rows(outcomes)
    several = len({base for base, _ in grouped}) > 1
    for (base, method), runs in grouped.items():
        points = [
            (size, _fraction([each.result["right"][str(size)] for each in runs])) for size in runs[0].result["sizes"]
        ]
        series.append(Series.of(f"{METHODS[method][0]}, {base}" if several else METHODS[method][0], points))
    most = max(map(len, outcomes[0].result["right"].values()))
    note = f"Of at most {most} distinct generated problems each. Only the lessons had other sizes than the largest."
    return Chart(f"{task}: by size", note, "size of the problem", "right, %", series)
