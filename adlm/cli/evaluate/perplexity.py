"""`adlm evaluate perplexity`: what held-out text costs a model."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Table

from adlm.cli.progress import bar, console
from adlm.config import from_json
from adlm.data.catalog import open_source
from adlm.data.packing import Packing
from adlm.data.source import Source
from adlm.distributed import DistributedContext, joined
from adlm.errors import ConfigError
from adlm.evaluate.compare import paired
from adlm.evaluate.documents import TextRows, document_rows, packed_rows, unknown_tokens
from adlm.evaluate.perplexity import AGREEING, ScoredItems, estimator, score_items
from adlm.evaluate.protocols import Protocol, described, protocol
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.work import weights_checksum
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.text_model import TextModel, load

FIGURES = ("perplexity", "nats_per_token", "bits_a_byte", "bits_a_character")


def command(
    model: Annotated[str, tyro.conf.Positional],
    data: Annotated[str, tyro.conf.Positional],
    /,
    *,
    split: str = "test",
    protocol: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    detokenizer: str | None = None,
    rows: int | None = None,
    draws: int = 8,
    estimator: str | None = None,
    documents: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    stride: int | None = None,
    batch: int = 32,
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    revision: str | None = None,
) -> None:
    """Perplexity and bits of held-out text: the exact likelihood left to right, else the clean bound with its error.

    Stopped, it goes on where it was; processes started by torchrun share the work and find the same figures.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        data: a name of the catalog (`adlm prepare --list`), hub:OWNER/NAME[:CONFIG], or a file, folder or glob.
        split: of the data.
        protocol: measure as published: lm1b, openwebtext or text8. It decides split and rows, and has to fit the model.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text; several as in title,description.
        detokenizer: undo a corpus's tokenisation, by name.
        rows: score the first so many rows alone; with --documents, documents.
        draws: noise levels per row, for bounds.
        estimator: of the bound: counts, times, importance, published, score-entropy or d3pm; all shows how the first
            three agree. By default the one that the model was trained with, in its form of least variance.
        documents: each document by itself, on rows of its own; longer ones in windows, one after the other.
        stride: with --documents: tokens from one window to the next; what a window shares with the one before it is
            context and not scored again.
        batch: rows that a process scores at a time.
        seed: of the masks.
        out: the result, as JSON; by default in runs/evaluate.
        device: auto, cpu, cuda or mps.
        revision: of a model on the Hub.
    """
    check_counts(rows=rows, draws=draws, batch=batch)
    if stride is not None and not documents:
        raise ConfigError("asked for --stride", "windows are those of documents", "add --documents")
    published = _published(protocol, split, field, detokenizer, documents)
    with joined(device) as world:
        scored = load(model, revision=revision)
        scored.network.to(world.device)
        source, split, packing = _text(scored, published, data, folder, split, field, detokenizer)
        if documents:
            table = document_rows(source, split, scored.tokenizer, packing, limit=rows, stride=stride)
        else:
            table = packed_rows(source, split, scored.tokenizer, packing, limit=rows)
        objectives = _objectives(estimator, scored)
        first = next(iter(objectives.values()))
        about = described(
            packing,
            scored.tokenizer,
            first,
            draws=draws,
            documents=documents,
            stride=stride,
            limit=rows,
        )
        if published is not None:
            departs = published.departures(source, scored.config.packing, rows)
            about |= {"name": published.name, "text": published.text, "departs": departs}
        named = {"name": model, "weights": weights_checksum(scored.network)}
        out = out or result_path("perplexity", model, data, split, *(["documents"] if documents else []))
        found: dict[str, ScoredItems] = {}
        for name, objective in objectives.items():
            with progress(name, table, world) as watch:
                found[name] = score_items(
                    scored.network,
                    table,
                    objective,
                    draws=draws,
                    batch=batch,
                    seed=seed,
                    world=world,
                    partial=partial_file(out, name),
                    made_of={"model": named, "data": table.key, "protocol": about, "estimator": name, "seed": seed},
                    watch=watch,
                )
        if world.first:
            result = Result("perplexity", named, facts(table, scored, rows), about, seed, *_figures(found))
            result.save(out)
            for name in objectives:
                partial_file(out, name).unlink(missing_ok=True)
            _show(result, found, table, out)


def check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"asked for --{name} {count}", "fewer than 1", "give 1 or more")


def own_objective(model: TextModel) -> Objective:
    """SEDD and D3PM have bounds of their own; of others the exact likelihood, or the bound of least variance."""
    run = model.config.run or {}
    if "objective" in run:
        trained = from_json(Objective, run["objective"], where="config.run.objective")  # type: ignore[type-abstract]
        return trained.for_validation()
    return estimator("exact" if model.network.causal else "counts", model.network)


def result_path(*parts: str) -> Path:
    """Where a result goes by default."""
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
    return Path("runs/evaluate") / f"{name[-200:]}.json"


def partial_file(out: Path, name: str) -> Path:
    """What keeps the rows that are done, until all are."""
    return out.with_name(f"{out.name}.{name}.partial")


@contextmanager
def progress(label: str, table: TextRows, world: DistributedContext) -> Iterator[Any]:
    """A bar on the first process, as what `each_of` tells."""
    with bar(label, len(table)) if world.first else nullcontext() as view:
        if view is None:
            yield None
        else:
            yield lambda done, count: view.update(done, f"{done:,} of {count:,} rows of {table.name}")


def facts(table: TextRows, model: TextModel, limit: int | None) -> dict[str, Any]:
    """What a result says of the text."""
    numbers = np.arange(len(table))
    return {
        "name": table.made_of["name"],
        "split": table.made_of["split"],
        "key": table.key,
        "rows": len(table),
        "documents": None if limit else table.read,
        "tokens": int(table.scored_lengths(numbers).sum()),
        "characters": int(table.characters.sum()),
        "bytes": int(table.bytes.sum()),
        "unknown tokens": unknown_tokens(table, model.tokenizer),
        "tokens left out": table.left_out,
    }


def _published(
    name: str | None, split: str, field: str | None, detokenizer: str | None, documents: bool
) -> Protocol | None:
    if name is None:
        return None
    if documents or field or detokenizer or split != "test":
        raise ConfigError(
            f"asked for the protocol {name!r} with --documents, --field, --detokenizer or --split",
            "the protocol decides these",
            "leave them out, or the protocol",
        )
    return protocol(name)


def _text(
    model: TextModel,
    published: Protocol | None,
    data: str,
    folder: Path | None,
    split: str,
    field: str | None,
    detokenizer: str | None,
) -> tuple[Source, str, Packing]:
    """The text, its split, and the rows it is cut into."""
    if published is not None:
        published.check(model.tokenizer, model.config.packing)
        return published.open(data, folder), published.split, published.rows
    columns = tuple(field.split(",")) if field and "," in field else field
    source = open_source(data, folder=folder, field=columns, detokenizer=detokenizer)
    return source, split, model.config.packing


def _objectives(name: str | None, model: TextModel) -> Mapping[str, Objective]:
    if name is None:
        objective = own_objective(model)
        return {"exact" if isinstance(objective, CrossEntropy) else "bound": objective}
    if name == "all":
        return {each: estimator(each, model.network) for each in AGREEING}
    return {name: estimator(name, model.network)}


def _figures(found: Mapping[str, ScoredItems]) -> tuple[dict[str, Figure], dict[str, list[float]]]:
    """Of the first estimator; of others nats per token, and how many standard errors they are off the first."""
    (_, first), *others = found.items()
    figures, items = first.figures(), first.items()
    for name, other in others:
        figures[f"nats_per_token {name}"] = other.figures()["nats_per_token"]
        figures[f"z {name}"] = Figure(paired(other.nats - first.nats, first.tokens)[2])
        items[f"nats {name}"] = other.nats.tolist()
    return figures, items


def _show(result: Result, found: Mapping[str, ScoredItems], text: TextRows, out: Path) -> None:
    table = Table("", *found)
    figures = [scored.figures() for scored in found.values()]
    for name in FIGURES:
        table.add_row(name.replace("_", " "), *(str(each[name]) for each in figures))
    if len(found) > 1:
        z = [result.figures.get(f"z {name}") for name in found]
        table.add_row("off the first, in standard errors", *(f"{each.value:+.2f}" if each else "" for each in z))
    console().print(f"{result.model['name']} on {text.name}", highlight=False, markup=False, soft_wrap=True)
    console().print(table)
    say(result, out)


def say(result: Result, out: Path) -> None:
    """The protocol, next to the numbers."""
    about, data = result.protocol, result.data
    draws = about["estimator"]["draws"]
    how = f"≤ marks a bound, from {draws} stratified draws per row" if draws else "exact likelihood"
    lines = [
        f"{about['items']}: {_plainly(about['rows'])}" + (f", the first {about['limit']:,}" if about["limit"] else ""),
        f"{how}; ± one standard error over {about['items']}; {about['counting']}",
    ]
    texts = data.get("sets", {"": data})
    for name, text in texts.items():
        lines.append(f"{name}: {spoken(text)}".removeprefix(": "))
    if "name" in about:
        lines.append(f"protocol {about['name']}: {about['text']}")
    lines += [f"departs from the published: {departure}" for departure in about.get("departs", ())]
    for line in [*lines, f"written to {out}"]:
        console().print(line, highlight=False, markup=False, soft_wrap=True)


def spoken(text: Mapping[str, Any]) -> str:
    """How much was scored, and what was not."""
    said = [f"{text[unit]:,} {unit}" for unit in ("tokens", "characters", "bytes")]
    if unknown := text["unknown tokens"]:
        said.append(f"{unknown / text['tokens']:.1%} of the tokens unknown: what they hide is not scored")
    if left := text["tokens left out"]:
        said.append(f"the last {left:,} do not fill a row and are left out")
    return ", ".join(said)


def _plainly(value: Any) -> str:
    """JSON in fewer signs."""
    if not isinstance(value, Mapping):
        return str(value)
    inner = ", ".join(f"{name} {_plainly(part)}" for name, part in value.items() if name != "kind")
    return f"{value['kind']}({inner})" if "kind" in value else inner
