"""Trained runs on one page: figures, curves, samples, and a text as it appears."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlm.config import differences
from adlm.distributed import device_for
from adlm.errors import AdlmError, ConfigError, OutOfRange
from adlm.models.costs import count_parameters
from adlm.models.io import WEIGHTS, ModelConfig, read_config
from adlm.text_model import load
from adlm.train.metrics import METRICS, each_metric
from adlm.train.plan import summary
from adlm.train.run_folder import read_run, stored_run
from adlm_studies.report.recording import record_generation
from adlm_studies.report.sections import Cell, Chart, Code, Interval, ReportPage, ReportTable, Section, Series, Texts

_BINS = 120  # points of a training curve, at most
_NORMAL = 1.96  # standard errors on each side of a 95 % interval
_NATS = "nats per token"


def compare_runs(folders: Sequence[Path], *, samples: int = 2, seed: int = 0, device: str = "auto") -> ReportPage:
    """The report of one or more runs.

    A run that is not finished has its curves, and is sampled from the best model it has so far.

    Args:
        folders: that training wrote.
        samples: texts from each model; 0 loads no model.
        seed: of the samples.
    """
    if samples < 0:
        raise OutOfRange("samples", samples, "0 or more")
    runs = _read_all(folders)
    comparable = all(run.data == runs[0].data for run in runs)
    generated = _generated(runs, samples=samples, seed=seed, device=device) if samples else []
    sections: list[Section] = [_figures(runs, comparable), *generated[:1], *_curves(runs), *generated[1:]]
    if len(runs) > 1:
        sections.append(_settings(runs))
    again = "\n".join(
        shlex.join(["adlm", "train", str(run.folder / "config.json"), "--out", f"{run.folder}-again"]) for run in runs
    )
    sections.append(Code("To train them again", "The same run gives the same weights on the same device.", text=again))
    title = f"{runs[0].name}: a run" if len(runs) == 1 else f"{', '.join(run.name for run in runs)}: runs compared"
    return ReportPage(title, _lead(runs, comparable), sections)


@dataclass(frozen=True)
class _Validation:
    tokens: int
    nats: Interval


@dataclass(frozen=True)
class TrainedRun:
    """A run and its records. `bound` is (tokens so far, nats per token), in bins of steps."""

    folder: Path
    name: str
    config: ModelConfig
    run: dict[str, Any]
    step: int
    steps: int
    tokens: int
    seconds: float
    bound: Sequence[tuple[float, float]]
    validations: Sequence[_Validation]

    @property
    def causal(self) -> bool:
        return self.config.network.causal

    @property
    def kind(self) -> str:
        """The name of such models in papers."""
        if self.config.network.stages == 2:
            return "A2R" if self.causal else "ADLM"
        objective = self.run.get("objective", {}).get("kind", "")
        return "AR" if self.causal else "MDLM" if objective == "Nelbo" else f"masked, {objective}"

    @property
    def model_folder(self) -> Path | None:
        """The finished model, or the best so far."""
        return next((f for f in (self.folder, self.folder / "best") if (f / WEIGHTS).is_file()), None)

    @property
    def data(self) -> dict[str, Any]:
        """The training data, independent of its folder."""
        return {key: value for key, value in self.run.get("data", {}).items() if key != "folder"}

    @property
    def work(self) -> float | None:
        """Floating-point operations of the steps that were taken; None if unknown."""
        try:
            return float(summary(read_run(self.folder), vocabulary=self.config.vocabulary).work * self.step)
        except (AdlmError, TypeError):
            return None


def _read_all(folders: Sequence[Path]) -> list[TrainedRun]:
    if not folders:
        raise ConfigError("name the folder of at least one run", subject="runs")
    paths = [folder.resolve() for folder in folders]
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise ConfigError(f"the run {folders[i]} is given twice", subject=str(folders[i]))
    last = [path.name for path in paths]
    return [
        read_trained(folder, name if last.count(name) == 1 else str(folder))
        for folder, name in zip(folders, last, strict=True)
    ]


def read_trained(folder: Path, name: str) -> TrainedRun:
    """The run in a folder, under a name for the report."""
    run = stored_run(folder) if folder.is_dir() else None
    if run is None or not (folder / METRICS).is_file():
        found = f"no {METRICS}: no step was taken" if run is not None else "no config.json with a run"
        if not folder.is_dir():
            found = "a file, not a folder" if folder.exists() else "no such folder"
        fix = "name a folder that `adlm train` or `adlm demo` wrote"
        raise ConfigError(f"cannot make a report of {folder}: {found}; {fix}", subject=str(folder))
    step = steps = tokens = 0
    seconds = before = 0.0
    curve: list[tuple[float, float]] = []
    validations: list[_Validation] = []
    for line in each_metric(folder / METRICS):
        if "validation" in line:
            nats = _interval(line["validation"].get("nats") or {})
            validations += [] if nats is None else [_Validation(tokens, nats)]
            continue
        step, steps, tokens = line["step"], line.get("steps") or steps, line.get("tokens") or tokens
        # The clock starts again when a run is resumed.
        now = (line.get("machine") or {}).get("seconds") or before
        seconds, before = seconds + (now - before if now >= before else now), now
        if line.get("bound") is not None:
            curve.append((tokens, line["bound"]))
    return TrainedRun(
        folder,
        name,
        read_config(folder, f"cannot make a report of {folder}"),
        run,
        step,
        steps,
        tokens,
        seconds,
        _binned(curve),
        validations,
    )


def _interval(nats: dict[str, Any]) -> Interval | None:
    mean, error = nats.get("mean"), nats.get("error") or 0.0
    if mean is None:
        return None
    return Interval(mean, mean - _NORMAL * error, mean + _NORMAL * error, bound=bool(nats.get("draws")))


def _binned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of as many consecutive steps as leave few enough points."""
    width = math.ceil(len(curve) / _BINS) or 1
    bins = (curve[i : i + width] for i in range(0, len(curve), width))
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in bins]


def _best(run: TrainedRun) -> Interval | None:
    return min((each.nats for each in run.validations), key=lambda nats: nats.value, default=None)


def _lead(runs: Sequence[TrainedRun], comparable: bool) -> str:
    if not comparable:
        return "These runs were trained on different data, so their figures must not be compared with each other."
    many = "One run" if len(runs) == 1 else f"{len(runs)} runs"
    source = runs[0].data.get("source")
    found = [(best.value, run.name, best) for run in runs if (best := _best(run)) is not None]
    where = f"{many} on `{source}`." if source else f"{many} on the same data."
    if not found:
        return f"{where} None has been validated yet."
    _, name, best = min(found, key=lambda each: each[0])
    which = f"{name} has the lowest" if len(runs) > 1 else "Its best"
    return f"{where} {which} cost of held-out text{' is' if len(runs) == 1 else ':'} {best} {_NATS}."


def _figures(runs: Sequence[TrainedRun], comparable: bool) -> ReportTable:
    columns = ["model", "kind", "parameters", "steps", "tokens", "work, TFLOP", "last validation", "best validation"]
    best = ["", "", "", "", "", "", "low", "low"] if comparable else []
    rows: list[list[Cell]] = []
    for run in runs:
        last = run.validations[-1].nats if run.validations else None
        parameters = count_parameters(run.config.network, run.config.vocabulary).total
        work = run.work
        steps: Cell = run.step if run.step == run.steps else f"{run.step:,} of {run.steps:,}"
        costs = parameters, steps, run.tokens, work and work / 1e12
        rows.append([run.name, run.kind, *costs, last, _best(run), round(run.seconds / 60, 1)])
    columns.append("minutes")
    note = (
        f"Validation is the clean bound on held-out text in {_NATS}, with its 95 % interval; `≤` marks an upper bound, "
        "which left-to-right models do not need. Work counts matrix products of training alone."
    )
    if not comparable:
        columns.append("data")
        rows = [[*row, _data_name(run)] for row, run in zip(rows, runs, strict=True)]
        note += "\n\nNot comparable: the runs were trained and validated on different data. Nothing is marked as best."
    return ReportTable("The runs", note, columns, rows, best)


def _data_name(run: TrainedRun) -> str:
    data = run.data
    parts = (data.get("source") or data.get("kind"), data.get("tokenizer"))
    return ", ".join(str(part) for part in parts if part)


def _curves(runs: Sequence[TrainedRun]) -> list[Chart]:
    validation = [Series.of(run.name, [(each.tokens, each.nats) for each in run.validations]) for run in runs]
    training = [Series(run.name, [x for x, _ in run.bound], [y for _, y in run.bound]) for run in runs]
    x, held_out, each_step = (
        "tokens trained on",
        "held-out text, with 95 % intervals",
        "the text of each step, averaged",
    )
    return [
        Chart("Validation", f"The clean bound on {held_out}.", x, _NATS, validation),
        Chart("Training", f"The clean bound on {each_step}.", x, _NATS, training, y_log=True),
    ]


def _generated(runs: Sequence[TrainedRun], *, samples: int, seed: int, device: str) -> list[Section]:
    """A recording of an anchored model if there is one, and samples of all models."""
    with_model = [run for run in runs if run.model_folder is not None]
    if not with_model:
        return []
    # The one with most to show: two stages before one, any order before left to right.
    recorded = min(with_model, key=lambda run: (run.causal, -run.config.network.stages))
    texts: list[tuple[str, str]] = []
    sections: list[Section] = []
    for run in with_model:
        model = load(run.model_folder or run.folder)
        model.network.eval().to(device_for(device))
        state = "" if run.model_folder == run.folder else ", best so far"
        texts += [(f"{run.name}{state}", text) for text in model.generate(n=samples, seed=seed)]
        if run is recorded:
            sections.append(record_generation(model, title=f"A text as {run.name} writes it", seed=seed))
    return [*sections, Texts("Samples", f"Seed {seed}, with the default sampler of each kind; not selected.", texts)]


def _settings(runs: Sequence[TrainedRun]) -> ReportTable:
    """Where configurations differ from the first one's."""
    names = dict.fromkeys(name for run in runs[1:] for name, _, _ in differences(runs[0].run, run.run))
    rows = [[f"`{name}`", *(_value(run.run, name) for run in runs)] for name in names if name != "name"]
    note = "" if rows else "None: they are the same run."
    return ReportTable("Where their settings differ", note, ["setting", *(run.name for run in runs)], rows)


def _value(data: Any, name: str) -> Cell:
    for key in name.split("."):
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    if isinstance(data, dict) and "kind" in data:
        return str(data["kind"])
    return data if isinstance(data, str) else json.dumps(data)
