"""`adlm evaluate frontier`: what texts are worth at each sampler and number of steps."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm.cli.evaluate.generation import Bench, named_figures, opened_bench, sampled, samples_file, say, speed
from adlm.cli.evaluate.perplexity import check_counts, result_path
from adlm.cli.progress import console
from adlm.cli.sample import options_of
from adlm.config import to_json
from adlm.distributed import joined
from adlm.errors import ConfigError
from adlm.evaluate.frontier import FrontierPoint, draw_frontier, steps_of
from adlm.evaluate.judge import Judged
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.work import weights_checksum
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel, load

_SHOWN = ("perplexity", "entropy", "mauve", "repetition_4", "tokens", "tokens_a_second")


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    steps: str = "16..1024",
    samplers: str = "ancestral,remdm-loop,confidence",
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    ar: str | None = None,
    references: str | None = None,
    split: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    n: int = 1000,
    judge: str | None = None,
    length: int | None = None,
    begin: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    mauve: bool = True,
    clusters: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    revision: str | None = None,
) -> None:
    """Generative perplexity, entropy, MAUVE and speed over samplers and steps: a table, a picture, JSON.

    Stopped, it goes on where it was. Speeds are those of this machine with whatever else runs on it.

    Args:
        model: the folder of a masked model, or its name on the Hugging Face Hub.
        steps: 16..1024 doubles; 16,64,256 is just these.
        samplers: by name, with commas between; all get every number of steps.
        set: an option for all samplers, the AR model's too, as in --set top_p=0.9.
        ar: a left-to-right model whose point is drawn beside.
        references: real texts, whose figures are drawn as lines; see `adlm evaluate generation`.
        split: of the references; test, or the last there is.
        folder: where the files of a catalog name are.
        field: the field or column that holds the text of references.
        n: texts for each point, and references.
        judge: see `adlm evaluate generation`.
        length: cut texts and references after so many tokens of the judge.
        begin: put the judge's begin token before each text.
        mauve: measure it, where there are references.
        clusters: of MAUVE; a tenth of the texts by default.
        seed: of samples, and of the draw of references.
        out: the result, as JSON, with .svg and .png beside it; by default in runs/evaluate.
        device: auto, cpu, cuda or mps.
        revision: of the model, on the Hub.
    """
    check_counts(n=n, length=length)
    numbers, names = steps_of(steps), [name.strip() for name in samplers.split(",") if name.strip()]
    if not names:
        raise ConfigError("asked for a frontier", "no sampler", "name some, as in ancestral,remdm-loop")
    given = options_of(set, {})
    out = out or result_path("frontier", model)
    with joined(device) as world:
        writer = load(model, revision=revision)
        # Every setting is made before anything is written, so that a wrong one shows at once.
        plan = [
            (name, number, writer.sampler(name, **{**given, "steps": number})) for name in names for number in numbers
        ]
        other = None if ar is None else load(ar)
        settings: list[tuple[TextModel, str, int | None, Sampler]] = [(writer, *each) for each in plan]
        if other is not None:
            settings.append((other, "AR", None, other.sampler(None, **given)))
        bench = opened_bench(
            judge, references, split, folder, field, length=length, begin=begin, mauve=mauve, seed=seed, world=world
        )
        real = bench.draw(n, out)
        checksums = {id(each): weights_checksum(each.network) for each in (writer, *([other] if other else []))}
        points: list[FrontierPoint] = []
        about: dict[str, Any] = {**bench.protocol, "texts": n, "samplers": {}}
        items: dict[str, list[float]] = {}
        for each, name, number, sampler in settings:
            each.network.to(world.device)
            label = name if number is None else f"{name} {number}"
            path = samples_file(out, *label.split())
            named = {"weights": checksums[id(each)]}
            samples = sampled(each, sampler, n, seed=seed, path=path, named=named, world=world, label=label)
            judged = bench.judged(samples.texts, label.replace(" ", "-"), out)
            point, how = _point(bench, judged, real, clusters, name, number, speed(each, samples))
            points.append(point)
            about["samplers"] |= {label: to_json(sampler)}
            about |= how
            items |= {f"nats {label}": judged.nats.tolist(), f"tokens {label}": judged.tokens.tolist()}
        if world.first:
            own = bench.own(real)
            found = named_figures("references", own)
            for point in points:
                found |= named_figures(point.name, point.figures)
            about["ar"] = None if other is None else {"name": ar, "weights": checksums[id(other)]}
            subject = {"name": model, "weights": checksums[id(writer)]}
            Result("frontier", subject, bench.data, about, seed, found, items).save(out)
            bench.clean(out)
            _show(model, points, own, about, out)


def _point(
    bench: Bench,
    judged: Judged,
    real: Judged | None,
    clusters: int | None,
    name: str,
    number: int | None,
    pace: Figure,
) -> tuple[FrontierPoint, dict[str, Any]]:
    found, how = bench.compared(judged, real, clusters)
    return FrontierPoint(name, number, {**found, "tokens_a_second": pace}), how


def _show(model: str, points: list[FrontierPoint], own: dict[str, Figure], about: dict[str, Any], out: Path) -> None:
    table = Table("", *(name.replace("_", " ") for name in _SHOWN), title=model)
    for point in points:
        table.add_row(point.name, *(str(point.figures[key]) if key in point.figures else "" for key in _SHOWN))
    if own:
        table.add_row("references", *(str(own[key]) if key in own else "" for key in _SHOWN))
    console().print(table)
    note = f"{about['texts']:,} texts a point; judge {about['judge']}; {about['length']}; numbers are steps"
    pictures = draw_frontier(points, own, out.with_suffix(""), title=model, note=note)
    say(about, out)
    console().print(f"drawn in {pictures[0]} and {pictures[1].name}", highlight=False, markup=False, soft_wrap=True)
