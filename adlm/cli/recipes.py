"""`adlm recipes`: what can be trained and built by name, and what it costs."""

import json
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from adlm.cli.progress import console
from adlm.config import to_json, with_changes
from adlm.distributed import device_for
from adlm.errors import ConfigError, OutOfRange, UnknownName
from adlm.models.costs import ForwardWork, count_parameters, forward_work, training_work
from adlm.models.hand_gradients import attention_by
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.sizes import KINDS, SIZES, published
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo
from adlm.objectives.objective import Objective
from adlm.recipes.matched import mismatch
from adlm.recipes.named import FAMILIES, matched, recipe, recipes
from adlm.train.plan import EFFICIENCY, RunPlan, memory, plan, summary
from adlm.train.run import Run

_GPT2, _LENGTH, _ROWS = 50_258, 1024, 512


def command(
    action: Annotated[Literal["list", "show"], tyro.conf.Positional] = "list",
    name: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    vocabulary: int | None = None,
    length: int | None = None,
    rows: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """List the named runs and networks, or show one with its settings, parameters and compute.

    Args:
        action: list all of them, or show one.
        name: a run, as in openwebtext-adlm or wikitext2-mdlm-micro; or a network, as in adlm-small: ar, mdlm, adlm or
            a2r, and nano, micro, tiny, small or medium.
        vocabulary: for networks: ids of the tokenizer, mask included; GPT-2's by default.
        length: for networks: tokens per row, 1024 by default.
        rows: for networks: in a training step, 512 by default.
        set: change a field of what is shown, as in --set train.steps=1000, or --set anchor.width=640 for a network.
    """
    given = {"--vocabulary": vocabulary, "--length": length, "--rows": rows}
    for option, value in given.items():
        if value is not None and value < (least := 2 if option == "--vocabulary" else 1):
            raise OutOfRange(option, value, f"at least {least}")
    size = vocabulary or _GPT2
    words, length, rows = Vocabulary(size, size - 1), length or _LENGTH, rows or _ROWS
    networks = {f"{kind}-{size}": (kind, size) for size in SIZES for kind in KINDS}
    if action == "list":
        if name is not None or set:
            asked = name or f"recipes with {' '.join(set)}"
            raise ConfigError(
                "`adlm recipes list` takes no name and no settings; for one recipe write `adlm recipes show NAME`",
                subject=asked,
            )
        _list_runs()
        _list_networks({each: published(*networks[each]) for each in networks}, words, length)
        return
    if name is None:
        raise ConfigError("name the recipe to show; `adlm recipes` lists them", subject="name")
    if name in networks:
        _show_network(name, with_changes(published(*networks[name]), set), words, length, rows)
        return
    try:
        run = recipe(name)
    except UnknownName as error:
        if error.kind != "recipe":
            raise
        raise UnknownName("recipe", name, [*error.known, *networks], listed="adlm recipes") from None
    for option, value in given.items():
        if value is not None:
            raise ConfigError(
                f"the run {name} has its own {option}",
                fix="change it with --set, as in --set train.steps=1000",
                subject=option,
            )
    _show_run(with_changes(run, set), matched(name))


def _list_runs() -> None:
    runs = list(recipes().values())
    for corpus, family in FAMILIES.items():
        mine = [run for run in runs if run.name.startswith(f"{corpus}-")]
        sums = [summary(run) for run in mine]
        first = sums[0]
        console().print(f"[bold]{escape(family.summary)}[/bold]", highlight=False)
        sizes = f" Also -{', -'.join(family.sizes[1:])}." if family.sizes else ""
        tokens = f"{first.steps:,} steps: {_short(first.all_tokens)} tokens"
        console().print(f"{first.rows} rows of {first.length:,} per step, {tokens}.{sizes}", highlight=False)
        table = Table("run", "network", "parameters", "objective", box=SIMPLE_HEAD, pad_edge=False)
        table.columns[0].no_wrap = True
        table.columns[2].justify = "right"
        for run, sum_ in zip(mine, sums, strict=True):
            table.add_row(run.name, _layers(run.network), _short(sum_.parameters.total), _loss(run.objective))
        console().print(table)


def _list_networks(networks: dict[str, NetworkConfig], words: Vocabulary, length: int) -> None:
    console().print("[bold]Networks alone, as published.[/bold]", highlight=False)
    console().print(
        f"Vocabulary of {words.size:,}, rows of {length:,}; work in floating-point operations.", highlight=False
    )
    table = Table(
        "network", "layers", "parameters", "per token, forward", "its logits", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for name, network in networks.items():
        work = forward_work(network, words, length)
        parameters = count_parameters(network, words).total
        table.add_row(name, _layers(network), _short(parameters), _short(work.token), _short(work.logits))
    console().print(table)


def _layers(network: NetworkConfig) -> str:
    """12 + 6 x 768, blocks of 4: layers of the stages, their width, and what is read at once."""
    blocks = f", blocks of {network.block_size}" if network.block_size else ""
    return f"{' + '.join(map(str, network.layers))} x {network.width}{blocks}"


def _loss(objective: Objective) -> str:
    name = type(objective).__name__
    return f"{name} {objective.gamma:g}" if isinstance(objective, Anelbo | AnchoredCrossEntropy) else name


def _show_run(run: Run, match: Run | None) -> None:
    table = _two_columns(run.name)
    for row in plan_rows(run, plan(run, device=device_for("auto"))):
        table.add_row(*row)
    if match is not None:
        off = mismatch(run, match)
        table.add_row(f"against {match.name}", f"{off.parameters:+.1%} parameters, {off.work:+.1%} work")
    console().print(table)
    console().print_json(json.dumps(to_json(run)))


def plan_rows(run: Run, found: RunPlan) -> list[tuple[str, str]]:
    """What a run needs, as labels and values for a table."""
    sums, needed = found.summary, found.memory
    kind, execution = found.execution.precision, found.execution
    rows = [
        ("parameters", f"{sums.parameters.total:,}"),
        ("  in embeddings and heads", f"{sums.parameters.vocabulary:,}, vocabulary of {sums.vocabulary.size:,}"),
        ("  in the stacks", f"{sums.parameters.stacks:,}"),
        ("a step", f"{sums.rows:,} rows of {sums.length:,}: {sums.tokens:,} tokens"),
        (f"  on each of {found.world_size}" if found.world_size > 1 else "  computed in", _parts(found)),
        ("  work", f"{sums.work:.3g} FLOP"),
        ("all steps", f"{sums.steps:,}"),
        ("  tokens", _short(sums.all_tokens)),
        ("  work", f"{sums.all_work:.3g} FLOP"),
        (f"memory, with products in {kind}", _bytes(needed.total)),
        ("  model and optimizer", _bytes(needed.lasting)),
        ("  activations and logits", _bytes(needed.activations + needed.logits)),
    ]
    if run.train.precision == "auto" and not execution.bf16:
        there = memory(run, sums.vocabulary, rows=found.micro_batch_size, bf16=True, parts=found.parts)
        rows.append(("  on a GPU, in bfloat16", _bytes(there.total)))
    rows += [
        ("products", f"in {kind}: {execution.why}"),
        ("  library", f"{execution.library}: {execution.why_library}"),
        ("attention", attention_by(execution.device, sums.length)),
        ("threads", f"{execution.threads}: {execution.why_threads}"),
    ]
    estimate = f"{_duration(found.all_seconds)}, {_duration(found.seconds)} per step"
    return [*rows, (f"time at {EFFICIENCY:.0%} of {_short(round(found.speed))}FLOP/s ({found.device})", estimate)]


def _parts(found: RunPlan) -> str:
    many = "" if found.micro_batches == 1 else "es"
    return f"{found.micro_batches} micro-batch{many} of {found.micro_batch_size} rows"


def _show_network(name: str, network: NetworkConfig, words: Vocabulary, length: int, rows: int) -> None:
    parameters = count_parameters(network, words)
    work = forward_work(network, words, length)
    scored = 1.0 if network.causal else 0.5
    # The anchors of a row are most of its tokens (count <= 5 in the row); taken as all, the work is at its highest.
    step = training_work(network, words, length=length, rows=rows, scored=scored, anchors=network.stages - 1.0)
    dense = 3 * _dense(network, work, words).forward(rows * length, rows * length)
    table = _two_columns(name)
    table.add_row("parameters", f"{parameters.total:,}")
    table.add_row("  in embeddings and heads", f"{parameters.vocabulary:,}")
    table.add_row("  in the stacks", f"{parameters.stacks:,}")
    table.add_row("weights in float32", _bytes(parameters.total * 4))
    table.add_row("weights, gradients, AdamW", _bytes(parameters.total * 16))
    table.add_row(f"a training step, {rows} rows of {length}", f"{step:.3g} FLOP")
    table.add_row("  with logits at every position", f"{dense:.3g} FLOP")
    table.add_row("a sampling pass of a row, one token drawn", f"{work._replace(once=0).forward(length, 1):.3g} FLOP")
    every = _dense(network, work, words).forward(length, length)
    table.add_row("  with logits at every position", f"{every:.3g} FLOP")
    console().print(table)
    console().print_json(json.dumps(to_json(network)))


def _dense(network: NetworkConfig, work: ForwardWork, words: Vocabulary) -> ForwardWork:
    """The work where a second stage reads logits of every position, as it is published."""
    if network.hand_over is None:
        return work
    once, token = network.hand_over.work(words.size, network.width)
    return work._replace(once=work.once - once, token=work.token - token + 2 * work.logits)


def _two_columns(title: str) -> Table:
    return Table("", "", title=title, title_justify="left", show_header=False, box=SIMPLE_HEAD, pad_edge=False)


def _short(number: int) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return str(number)


def _bytes(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"


def _duration(seconds: float) -> str:
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s"
