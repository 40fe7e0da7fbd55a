"""`adlm recipes`: what can be built by name, and what it costs."""

import json
from typing import Annotated, Literal

import tyro
from rich.table import Table

from adlm.cli.progress import console
from adlm.configs import to_json, with_changes
from adlm.errors import ConfigError, UnknownName
from adlm.models.costs import Work, count_parameters, forward_work, training_work
from adlm.models.language_model import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.sizes import KINDS, SIZES, published
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig


def command(
    action: Annotated[Literal["list", "show"], tyro.conf.Positional] = "list",
    name: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    vocabulary: int = 50_258,
    length: int = 1024,
    rows: int = 512,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """List the networks that have a name, or show one: its shape, parameters and work.

    Args:
        action: list all of them, or show one.
        name: as in adlm-small: ar, mdlm, adlm or a2r, and nano, micro, tiny, small or medium.
        vocabulary: ids of the tokenizer, mask included; GPT-2's by default.
        length: tokens a row.
        rows: in a training step.
        set: change a field of the network that is shown, as in --set anchor.width=640.
    """
    if min(vocabulary - 1, length, rows) < 1:
        raise ConfigError(
            f"asked for a vocabulary of {vocabulary}, rows of {length}, {rows} of them", "too few", "give more"
        )
    words = Vocabulary(vocabulary, vocabulary - 1)
    names = {f"{kind}-{size}": (kind, size) for size in SIZES for kind in KINDS}
    if action == "list":
        if name is not None or set:
            asked = name or f"networks with {' '.join(set)}"
            raise ConfigError(f"asked to list {asked!r}", "a list has them all", "write: adlm recipes show NAME")
        _list({each: published(*names[each]) for each in names}, words, length)
        return
    if name is None:
        raise ConfigError("asked to show a recipe", "none named", f"name one of {', '.join(names)}")
    if name not in names:
        raise UnknownName("recipe", name, names)
    _show(name, with_changes(published(*names[name]), set), words, length, rows)


def _list(networks: dict[str, NetworkConfig], words: Vocabulary, length: int) -> None:
    table = Table("name", "width", "layers", "parameters", "a token, forward", "its logits")
    for name, network in networks.items():
        work = forward_work(network, words, length)
        parameters = count_parameters(network, words).total
        stack, layers = _shape(network)
        table.add_row(name, str(stack.width), layers, _short(parameters), _short(work.token), _short(work.logits))
    table.caption = f"vocabulary of {words.size:,}, rows of {length:,}; work in floating-point operations"
    console().print(table)


def _shape(network: NetworkConfig) -> tuple[StackConfig, str]:
    """The (first) stack, and the layers of all."""
    if isinstance(network, TwoStageConfig):
        return network.anchor, f"{network.anchor.layers} + {network.denoiser_layers}"
    assert isinstance(network, OneStageConfig)
    return network.stack, str(network.stack.layers)


def _show(name: str, network: NetworkConfig, words: Vocabulary, length: int, rows: int) -> None:
    parameters = count_parameters(network, words)
    work = forward_work(network, words, length)
    two_stage = isinstance(network, TwoStageConfig)
    scored = 1.0 if _shape(network)[0].causal else 0.5
    # The anchors of a row are most of its tokens (count <= 5 in the row); taken as all, the work is at its highest.
    step = training_work(network, words, length=length, rows=rows, scored=scored, anchors=float(two_stage))
    dense = 3 * _dense(network, work, words).forward(rows * length, rows * length)
    table = Table("", "", title=name, show_header=False)
    table.add_row("parameters", f"{parameters.total:,}")
    table.add_row("  in embeddings and heads", f"{parameters.vocabulary:,}")
    table.add_row("  in the stacks", f"{parameters.stacks:,}")
    table.add_row("weights in float32", f"{parameters.total * 4 / 2**20:,.0f} MB")
    table.add_row("weights, gradients, AdamW", f"{parameters.total * 16 / 2**20:,.0f} MB")
    table.add_row(f"a training step, {rows} rows of {length}", f"{step:.3g} FLOP")
    table.add_row("  with logits at every position", f"{dense:.3g} FLOP")
    table.add_row("a sampling pass of a row, one token drawn", f"{work._replace(once=0).forward(length, 1):.3g} FLOP")
    every = _dense(network, work, words).forward(length, length)
    table.add_row("  with logits at every position", f"{every:.3g} FLOP")
    console().print(table)
    console().print_json(json.dumps(to_json(network)))


def _dense(network: NetworkConfig, work: Work, words: Vocabulary) -> Work:
    """The work where a second stage reads logits of every position, as it is published."""
    if not isinstance(network, TwoStageConfig):
        return work
    once, token = network.hand_over.work(words.size, network.anchor.width)
    return work._replace(once=work.once - once, token=work.token - token + 2 * work.logits)


def _short(number: int) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return str(number)
