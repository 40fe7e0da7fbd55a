"""The demo: AR, MDLM and ADLM of one size, on one corpus, for minutes on a laptop's CPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from adlm.configs import to_json
from adlm.data.config import Corpus
from adlm.data.packing import Wrapped
from adlm.data.table import Table
from adlm.errors import DataError
from adlm.evaluate.perplexity import Perplexity, perplexity
from adlm.models.one_stage import OneStageConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.recipes import small
from adlm.text_model import TextModel
from adlm.train.folder import stored_run
from adlm.train.run import Run, ValidationConfig
from adlm.train.sitting import Watch
from adlm.train.trainer import fit

NAMES = {"ar": "AR", "mdlm": "MDLM", "adlm": "ADLM"}


class Trained(NamedTuple):
    """What a run left."""

    model: TextModel
    parameters: int
    score: Perplexity


def runs(corpus: str = "stories", *, steps: int | None = None, seed: int = 0) -> dict[str, Run]:
    """The three runs by the names of their models, on the stories or on any other text."""
    return {name: _run(kind, corpus, steps, seed) for kind, name in NAMES.items()}


def _run(kind: str, corpus: str, steps: int | None, seed: int) -> Run:
    run = small.demo(kind)
    train = replace(run.train, steps=steps or run.train.steps, seed=seed)
    run = replace(run, train=train, validation=ValidationConfig(every=500, rows=64))
    if corpus == "stories":
        return run
    # Rows of packed text begin anywhere, so places mean nothing.
    network = run.network
    assert isinstance(network, OneStageConfig | TwoStageConfig)
    data = Corpus(corpus, "bpe:1024", Wrapped(64))
    return replace(run, data=data, network=replace(network, positions=0))


def held_out_rows(run: Run, cache: Path) -> Table:
    """Held-out rows that no run validates on, where the corpus has them."""
    data = run.data
    assert isinstance(data, Corpus)
    splits = data.open().splits
    held_out = next((split for split in ("test", "valid") if split in splits), None)
    if held_out is None:
        raise DataError(
            f"asked to train and score models on {data.source}",
            f"only the splits {', '.join(splits)}: nothing held-out to score on",
            "add a file with test or valid in its name, or rename the file so that it is cut into splits",
        )
    table = replace(data, valid=held_out).prepare(cache=cache).valid
    assert table is not None
    return table


def execute(
    run: Run,
    out: Path,
    test: Table,
    *,
    cache: Path,
    rows: int,
    draws: int = 8,
    watch: Watch | None = None,
    watch_test: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = print,
) -> Trained:
    """Train and score one model; what another demo left in the folder is replaced."""
    same = stored_run(out) == to_json(run)
    fitted = fit(run, out, resume="auto" if same else "never", cache=cache, watch=watch, say=say)
    score = perplexity(fitted.model, test, rows=rows, draws=draws, seed=run.train.seed, watch=watch_test)
    parameters = sum(parameter.numel() for parameter in fitted.model.parameters())
    return Trained(TextModel(fitted.model, fitted.config, fitted.tokenizer), parameters, score)
