"""From problems that were solved to tables and charts: every way to answer beside the others."""

from collections.abc import Sequence

from adlm.experiments.statistics import over_runs, paired
from adlm.experiments.study import Outcome
from adlm.experiments.tables import of
from adlm.reasoning.answers import accuracy
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


def _shares(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Percent right, by seed."""
    return {each.labels["seed"]: 100 * accuracy(each.result["right"]).share for each in outcomes}


def _rows(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """By base and method, in the order of the steps."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.labels["base"], outcome.labels["method"]), []).append(outcome)
    return found


def solved_table(task: str, outcomes: Sequence[Outcome], lessons: Sequence[Outcome]) -> Table:
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


def in_words(task: str, outcomes: Sequence[Outcome]) -> str:
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


def size_chart(task: str, outcomes: Sequence[Outcome]) -> Chart:
    """How many problems of each size are solved by the models that were trained on the largest."""
    series = []
    for (_, method), runs in _rows(outcomes).items():
        points = [
            (size, over_runs([100 * accuracy(each.result["right"][str(size)]).share for each in runs]))
            for size in runs[0].result["sizes"]
        ]
        series.append(
            Series(
                METHODS[method][0],
                [size for size, _ in points],
                [y.value for _, y in points],
                [y.low for _, y in points],
                [y.high for _, y in points],
            )
        )
    note = (
        f"Of {len(next(iter(outcomes[0].result['right'].values())))} generated problems each. Lessons had small ones, "
        "with steps; what each method was trained on after them has the largest size alone."
    )
    return Chart(f"{task}: by size", note, "size of the problem", "right, %", series)
