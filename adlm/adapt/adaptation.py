"""`adapt`: from a left-to-right model to a diffusion model, as an ordinary run, measured before and after."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from filelock import FileLock

from adlm.adapt.measures import bounds, decodings
from adlm.adapt.preparation import (
    SELF,
    SOURCE,
    AdaptOptions,
    adaptation_data,
    adaptation_run,
    adapted_packing,
    is_self,
    prepare_source,
    self_count,
)
from adlm.adapt.report import AdaptReport, HeldOut
from adlm.adapt.source import open_left_to_right
from adlm.adapt.target import Target
from adlm.data.table import Table
from adlm.distributed import DistributedContext, device_for, joined
from adlm.errors import ConfigError, DataError
from adlm.files import write_atomically
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.text_model import TextModel, load
from adlm.train.callbacks import Callback
from adlm.train.fit import fit
from adlm.train.run import FitOptions, Run
from adlm.types import Estimate

_ASKED, _BEFORE = "asked.json", "before.json"
_NUM_ROWS, _DRAWS = 128, 4


def adapt(
    source: str | Path,
    to: str | Target,
    data: str | Sequence[str],
    out: str | Path,
    *,
    options: AdaptOptions = AdaptOptions(),  # noqa: B008
    device: str = "auto",
    fit_options: FitOptions | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> AdaptReport:
    """Turn a left-to-right model into a diffusion model in the folder `out`, or resume that.

    OUT/source has the model it came from, converted and pruned; OUT/self the texts it sampled; OUT itself is the
    folder of an ordinary run, and in the end of the adapted model; OUT/adapt.json is the report. Under `torchrun`
    processes train together.

    Args:
        source: a left-to-right model: see `open_left_to_right`.
        to: block:16, masked, anchored, anchored-block:16 or towers:16.
        data: what to train on: corpora as `adlm train` takes them, and self:N, texts sampled from the model itself.
        fit_options, callbacks: of training, see `fit`.
    """
    out, names = Path(out), (data,) if isinstance(data, str) else tuple(data)
    target = Target.parse(to) if isinstance(to, str) else to
    fit_options = fit_options or FitOptions()
    log = _logger(callbacks)
    folder = out / SOURCE
    # One process after another: the first does the work, which may take longer than processes wait for each other.
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".adapt.lock"):
        _check_asked(out, _asked(source, names, options))
        model = open_left_to_right(source)
        target.network(model.config.network)
        model.network.to(device_for(device))
        left_to_right = prepare_source(model, names, out, options, log)
        packing = adapted_packing(model, options, own_text=self_count(names) > 0)
        parts = adaptation_data(names, folder, packing, out / SELF)
        tables = [part.prepare(cache=fit_options.cache) for part in parts]
    rows = sum(len(each.train) for each in tables)
    run = adaptation_run(left_to_right, target, parts, folder, options, name=out.name, length=packing.length, rows=rows)
    with joined(device) as context:
        left_to_right.network.to(context.device)
        held_out = {name: _valid(name, each.valid) for name, each in zip(names, tables, strict=True)}
        measured = _Bounds(run, target, held_out, context)
        before = context.on_first(lambda: _stored(out / _BEFORE)) or measured.before(left_to_right)
        context.on_first(lambda: write_atomically(out / _BEFORE, json.dumps(before)))
        result = fit(run, out, device=device, options=fit_options, callbacks=callbacks)
        adapted = load(out)
        adapted.network.to(context.device)
        after = measured.each(adapted.network)
        texts = tuple(
            HeldOut(name, _estimate(before["source"][name]), _estimates(before["start"][name]), _estimates(after[name]))
            for name in names
        )
        ways = context.on_first(lambda: decodings(left_to_right, adapted, target.readings, seed=options.seed))
        parameters = sum(weight.numel() for weight in adapted.network.parameters())
        tokens = result.steps * run.train.tokens_per_step
        report = AdaptReport(str(source), str(target), names, parameters, result.steps, tokens, texts, tuple(ways))
        context.on_first(lambda: _finish(report, out, adapted))
        return report


def planned_run(
    source: str | Path,
    to: str | Target,
    data: Sequence[str],
    options: AdaptOptions = AdaptOptions(),  # noqa: B008
) -> tuple[Run, Vocabulary]:
    """The run that `adapt` would train, and its vocabulary. Nothing is written, sampled or pruned.

    Without `options.steps`, corpora are prepared to count their rows.
    """
    target = Target.parse(to) if isinstance(to, str) else to
    model, count = open_left_to_right(source), self_count(data)
    packing = adapted_packing(model, options, own_text=count > 0)
    rows = count
    with TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder)
        parts = adaptation_data(data, folder, packing, folder)
        if options.steps is None:
            rows += sum(len(part.prepare().train) for part, each in zip(parts, data, strict=True) if not is_self(each))
        run = adaptation_run(model, target, parts, folder, options, name="adapted", length=packing.length, rows=rows)
    return run, model.config.vocabulary


class _Bounds:
    """Measures the bounds of models on the held-out text of each data set."""

    def __init__(self, run: Run, target: Target, held_out: dict[str, Table], context: DistributedContext) -> None:
        self.run, self.target, self.held_out, self.context = run, target, held_out, context

    def before(self, source: TextModel) -> dict[str, Any]:
        """Of the source from left to right, and of the initial weights of the run, read in each size."""
        vocabulary, seed = source.config.vocabulary, self.run.train.seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            start = replace(self.run, adapters=None).build_model(vocabulary, source.tokenizer)
        start.to(self.context.device)
        exact = {name: self._of(source.network, table, (1,))["1"] for name, table in self.held_out.items()}
        return {"source": exact, "start": self.each(start.eval())}

    def each(self, network: LanguageModel) -> dict[str, dict[str, list[float]]]:
        """By data set and block size."""
        return {name: self._of(network, table, self.target.readings) for name, table in self.held_out.items()}

    def _of(self, network: LanguageModel, table: Table, sizes: Sequence[int]) -> dict[str, list[float]]:
        found = bounds(
            network, table, sizes, num_rows=_NUM_ROWS, draws=_DRAWS, batch=self.run.train.micro_batch_size,
            context=self.context,
        )  # fmt: skip
        return {str(size): list(estimate) for size, estimate in found.items()}


def _finish(report: AdaptReport, out: Path, adapted: TextModel) -> None:
    if report.default_decoding is not None:
        config = replace(adapted.config, sampling=report.default_decoding.options)
        adapted = TextModel(adapted.network, config, adapted.tokenizer)
        adapted.save(out)
    report.save(out)
    report.write_card(out, adapted)


def _estimate(stored: list[float]) -> Estimate:
    mean, error, draws = stored
    return Estimate(mean, error, int(draws))


def _estimates(stored: dict[str, list[float]]) -> dict[int, Estimate]:
    return {int(size): _estimate(values) for size, values in stored.items()}


def _stored(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _valid(name: str, table: Table | None) -> Table:
    if table is None:
        fix = "add a split valid or test, or rename the file: without train in its name, a part of it is held out"
        raise DataError(f"cannot adapt on {name}", "it has no held-out text to measure on", fix, subject=name)
    return table


def _asked(source: str | Path, data: Sequence[str], options: AdaptOptions) -> dict[str, Any]:
    """What decides OUT/source and OUT/self. What decides the run is compared by `fit`."""
    given = asdict(options)
    return {"source": str(source), "data": list(data), **{name: given[name] for name in ("prune", "length", "seed")}}


def _check_asked(out: Path, asked: dict[str, Any]) -> None:
    """Refuse a folder in which another adaptation was begun."""
    before = _stored(out / _ASKED)
    if before is None:
        write_atomically(out / _ASKED, json.dumps(asked) + "\n")
    elif before != asked:
        different = next(name for name in asked if before.get(name) != asked[name])
        raise ConfigError(
            f"cannot adapt in {out} with {different}={asked[different]}",
            f"begun there with {before.get(different)}",
            "name another --out, or give what was given before",
            subject=different,
        )


def _logger(callbacks: Sequence[Callback] | None) -> Callable[[str], None]:
    def log(message: str) -> None:
        if callbacks is None:
            print(message)
        for callback in callbacks or ():
            callback.log(message)

    return log
