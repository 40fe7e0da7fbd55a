"""`adlm demo`: the main job in minutes."""

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from adlm import __version__
from adlm.cli.progress import TrainingBar, bar, console
from adlm.data.catalog import open_source
from adlm.data.source import Source
from adlm.data.stories import Stories
from adlm.errors import ConfigError
from adlm.recipes.demo import Trained, execute, held_out_rows, runs


def command(
    *,
    corpus: str = "stories",
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path = Path("runs/demo"),
    steps: int | None = None,
    samples: int = 3,
    seed: int = 0,
) -> None:
    """Train AR, MDLM and ADLM of one size on text that comes with the package, score them, write samples.

    Args:
        corpus: stories (generated; its exact entropy is known), kjv, pydocs, pycode, or a file, folder or glob.
        quick: a tenth of the training: a minute or two, and the samples show it.
        out: where models, prepared data and results.json go.
        steps: training steps of each model.
        samples: texts to print for each model.
        seed: of data order, noise and samples.
    """
    for name, value in (("--steps", steps), ("--samples", samples)):
        if value is not None and value < 1:
            raise ConfigError(f"asked for {name} {value}", "fewer than 1", "give 1 or more")
    started = time.perf_counter()
    chosen = runs(corpus, steps=steps or (150 if quick else None), seed=seed)
    cache = out / "data"
    with bar(corpus, None) as view:
        view.update(None, "tokenising")
        any_run = next(iter(chosen.values()))
        test = held_out_rows(any_run, cache)
        prepared = any_run.data.prepare(cache=cache, verify=False)
        view.note = (
            f"{len(prepared.train):,} rows of {prepared.train.length} tokens, "
            f"vocabulary {prepared.tokenizer.vocab_size:,}"
        )
    source = open_source(corpus)
    results: dict[str, Trained] = {}
    for name, run in chosen.items():
        with bar(name, run.train.steps) as view:
            result = execute(
                run,
                out / name.lower(),
                test,
                cache=cache,
                rows=100 if quick else 500,
                watch=TrainingBar(view, run.train.steps),
                watch_test=lambda done, count, view=view: view.update(None, f"scoring {done}/{count}"),  # type: ignore[misc]
                say=view.print,
            )
            score = result.score.nats_a_token
            view.note = f"{result.parameters / 1e6:.2f} M parameters, {score.mean:.3f} ± {score.error:.3f} nats a token"
        results[name] = result
    texts = {name: result.model.generate(n=20 if quick else 100, seed=seed) for name, result in results.items()}
    console().print(_table(results, source, texts))
    for name, written in texts.items():
        shown = [f"{_mark(source, text)}{text}" for text in written[:samples]]
        console().print(Panel(Text("\n\n".join(shown)), title=name, title_align="left"))
    record = _record(results, source, test.key, texts, seed)
    (out / "results.json").write_text(json.dumps(record, indent=2) + "\n")
    minutes = (time.perf_counter() - started) / 60
    console().print(f"{minutes:.1f} minutes. Models, data and results.json are in {out}/.", highlight=False)
    example = 'adlm.load("' + (out / "adlm").as_posix() + '").generate(n=2)'
    console().print(
        f"Next: python -c 'import adlm; print(*{example}, sep=\"\\n\")'", highlight=False, markup=False, soft_wrap=True
    )


def _floor(source: Source) -> tuple[float, float] | None:
    """Exact nats a row and a token of the process the text comes from, where it is known."""
    if not isinstance(source, Stories):
        return None
    entropy = source.entropy()
    return entropy, entropy / (source.mean_tokens() + 1)  # the end token is a token


def _consistent(source: Source, texts: list[str]) -> float | None:
    if not isinstance(source, Stories):
        return None
    return sum(not source.problems(text) for text in texts) / len(texts)


def _mark(source: Source, text: str) -> str:
    """Before a sample: whether the story is one its grammar could have told."""
    if not isinstance(source, Stories):
        return ""
    return "· " if source.problems(text) else "✓ "


def _table(results: dict[str, Trained], source: Source, texts: dict[str, list[str]]) -> Table:
    floor = _floor(source)
    unit = "story" if floor else "row"
    table = Table("model", "parameters", f"nats a {unit}", "perplexity", *(["flawless stories"] if floor else []))
    for name, result in results.items():
        row, score = result.score.nats_a_row, result.score
        bound = "" if row.draws == 0 else "≤ "
        cells = [
            name,
            f"{result.parameters / 1e6:.2f} M",
            f"{bound}{row.mean:.2f} ± {row.error:.2f}",
            f"{bound}{score.perplexity:.3f} ± {score.error:.3f}",
        ]
        share = _consistent(source, texts[name])
        table.add_row(*cells, *([f"{share:.0%}"] if share is not None else []))
    if floor:
        table.add_row("exact floor", "", f"{floor[0]:.2f}", f"{math.exp(floor[1]):.3f}", "100%")
    table.caption = (
        "held-out text; ± one standard error over rows; ≤ marks a bound, from 8 stratified mask counts a row"
    )
    return table


def _record(
    results: dict[str, Trained], source: Source, test: str, texts: dict[str, list[str]], seed: int
) -> dict[str, Any]:
    floor = _floor(source)
    return {
        "adlm": __version__,
        "corpus": source.name,
        "test": test,
        "seed": seed,
        "floor_nats_a_row": floor[0] if floor else None,
        "models": {
            name: {
                "parameters": result.parameters,
                "nats_a_row": result.score.nats_a_row._asdict(),
                "nats_a_token": result.score.nats_a_token._asdict(),
                "perplexity": result.score.perplexity,
                "flawless": _consistent(source, texts[name]),
                "samples": texts[name][:20],
            }
            for name, result in results.items()
        },
    }
