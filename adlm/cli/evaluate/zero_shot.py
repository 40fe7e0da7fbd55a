"""`adlm evaluate zero-shot`: what texts of other kinds cost a model."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm.cli.evaluate.perplexity import check_counts, facts, own_objective, partial_file, progress, result_path, say
from adlm.cli.progress import console
from adlm.distributed import joined
from adlm.errors import DataError
from adlm.evaluate.documents import packed_rows
from adlm.evaluate.perplexity import estimator as estimator_named
from adlm.evaluate.perplexity import score_items
from adlm.evaluate.protocols import described
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.work import checksum, weights_checksum
from adlm.evaluate.zero_shot import PUBLISHED, TEXT, Opened, chosen_sets, open_sets, wrapped_rows
from adlm.text_model import load


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    sets: str | None = None,
    data_dir: Path | None = None,
    split: str | None = None,
    skip_missing: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    published: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    rows: int | None = None,
    draws: int = 8,
    estimator: str | None = None,
    batch: int = 32,
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    revision: str | None = None,
) -> None:
    """Perplexity on texts that a model was not trained on, detokenised and wrapped into its rows as published.

    Stopped, it goes on where it was; processes started by torchrun share the work and find the same figures.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        sets: which, as in ptb,lambada; by default all: lambada, ptb, wikitext, lm1b, ag_news, pubmed, arxiv.
        data_dir: a folder with a folder for each set; without it they come from the Hub.
        split: this one of every set. By default the published one: validation, but test of lambada, lm1b, ag_news;
            where files have no such split, the other, and the table says so.
        skip_missing: leave out sets that are not there, instead of stopping before anything is scored.
        published: show published figures beside. They are of models with GPT-2's tokens, rows of 1,024 and
            OpenWebText, and comparable with no others.
        rows: score the first so many rows of each set alone.
        draws: noise levels per row, for bounds.
        estimator: of the bound: counts, times, importance, published, score-entropy or d3pm.
        batch: rows that a process scores at a time.
        seed: of the masks.
        out: the result, as JSON; by default in runs/evaluate.
        device: auto, cpu, cuda or mps.
        revision: of a model on the Hub.
    """
    check_counts(rows=rows, draws=draws, batch=batch)
    output_mask = chosen_sets([name.strip() for name in sets.split(",") if name.strip()] if sets else [])
    with joined(device) as world:
        scored = load(model, revision=revision)
        scored.network.to(world.device)
        objective = estimator_named(estimator, scored.network) if estimator else own_objective(scored)
        opened, missing = open_sets(output_mask, data_dir, split=split)
        if missing and not (skip_missing and opened):
            why = "; ".join(f"{name}: {error.found}" for name, error in missing.items())
            where = "the files" if data_dir else "the network, or name a folder with --data-dir,"
            fix = f"check {where} or leave them out: --skip-missing, or --sets"
            raise DataError(f"asked for the zero-shot sets {', '.join(each.name for each in output_mask)}", why, fix)
        packing = wrapped_rows(scored.config.packing)
        named = {"name": model, "weights": weights_checksum(scored.network)}
        out = out or result_path("zero-shot", model)
        figures: dict[str, Figure] = {}
        items: dict[str, list[float]] = {}
        texts: dict[str, dict[str, Any]] = {}
        about = described(packing, scored.tokenizer, objective, draws=draws, limit=rows)
        for each in opened:
            name = each.set.name
            table = packed_rows(each.source, each.split, scored.tokenizer, packing, limit=rows)
            with progress(name, table, world) as watch:
                measured = score_items(
                    scored.network,
                    table,
                    objective,
                    draws=draws,
                    batch=batch,
                    seed=seed,
                    world=world,
                    partial=partial_file(out, name),
                    made_of={"model": named, "data": table.key, "protocol": about, "seed": seed},
                    watch=watch,
                )
            texts[name] = {**facts(table, scored, rows), "detokenizer": getattr(each.source, "detokenizer", "none")}
            figures |= {f"{figure} {name}": value for figure, value in measured.figures().items()}
            items |= {f"{kind} {name}": values for kind, values in measured.items().items()}
        if world.first:
            departs = [f"{each.set.name}: {each.departure}" for each in opened if each.departure]
            about |= {"name": "zero-shot", "text": TEXT, "departs": departs}
            key = checksum({name: text["key"] for name, text in texts.items()})
            data = {"name": ", ".join(texts), "key": key, "sets": texts}
            result = Result("zero-shot", named, data, about, seed, figures, items)
            result.save(out)
            for each in opened:
                partial_file(out, each.set.name).unlink(missing_ok=True)
            _show(result, opened, list(missing), published=published)
            say(result, out)


def _show(result: Result, opened: list[Opened], missing: list[str], *, published: bool) -> None:
    """With published figures beside, bits are left out: they are in the file."""
    columns = ("perplexity",) if published else ("perplexity", "bits_a_byte", "bits_a_character")
    table = Table("set", "split", *(name.replace("_", " ") for name in columns), *(PUBLISHED if published else ()))
    for each in opened:
        name = each.set.name
        theirs = [f"{figures[name]:.2f}" for figures in PUBLISHED.values()] if published else []
        table.add_row(name, each.split, *(str(result.figures[f"{column} {name}"]) for column in columns), *theirs)
    console().print(f"{result.model['name']}, zero-shot", highlight=False, markup=False, soft_wrap=True)
    console().print(table)
    if published:
        names = ", ".join(PUBLISHED)
        note = f"{names}: published (arXiv 2505.18456), for reference; GPT-2's tokens, rows of 1,024, OpenWebText"
        console().print(note, highlight=False, soft_wrap=True)
    if missing:
        console().print(f"missing, and left out: {', '.join(missing)}", highlight=False, soft_wrap=True)
