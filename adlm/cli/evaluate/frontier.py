"""`adlm evaluate frontier`: the quality of texts at each sampler and number of steps."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import REFERENCES, RUN, References, Run, bars, closing, names, say, text_lines
from adlm.cli.progress import console
from adlm.cli.sample import options_of
from adlm.distributed import joined
from adlm.errors import ConfigError
from adlm.evaluate import Result
from adlm.evaluate.sampler_frontier import draw_frontier, figures_of, frontier_points

_SHOWN = ("perplexity", "entropy", "mauve", "repetition_4", "tokens", "tokens_per_second")


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    steps: str = "16..1024",
    samplers: str = "ancestral,remdm-loop,confidence",
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    ar: str | None = None,
    measured: References = REFERENCES,
    run: Run = RUN,
) -> None:
    """Measure generative perplexity, entropy, MAUVE and speed over samplers and steps: a table, a chart, JSON.

    Speeds depend on this machine and its load. A .svg and a .png are written next to the result.

    Args:
        model: the folder of a masked model, or its name on the Hugging Face Hub.
        steps: 16..1024 doubles from 16 to 1024; 16,64,256 lists them.
        samplers: names, separated by commas; each gets every number of steps.
        set: an option for all samplers, that of the AR model too, as in --set top_p=0.9.
        ar: a left-to-right model for comparison.
    """
    given, options = run.given("frontier", model), options_of(set, {})
    plan: dict[str, Any] = {"steps": steps_of(steps), "samplers": names(samplers), "ar": ar}
    with joined(run.device) as context, bars() as progress:
        result = evaluate.frontier(model, **plan, **asdict(measured), **given, progress=progress, **options)
    if context.first:
        _show(result, given["out"])


def _show(result: Result, out: Path) -> None:
    about, points, own = result.protocol, frontier_points(result), figures_of(result, "references")
    table = Table("", *(name.replace("_", " ") for name in _SHOWN), title=result.model["name"])
    rows = [(point.name, point.figures) for point in points] + ([("references", own)] if own else [])
    for name, figures in rows:
        table.add_row(name, *(str(figures.get(key, "")) for key in _SHOWN))
    console().print(table)
    note = f"{about['texts']:,} texts per point; judge {about['judge']}; {about['length']}; numbers are steps"
    pictures = draw_frontier(points, own, out.with_suffix(""), title=result.model["name"], note=note)
    say([*text_lines(about), *closing(result, out), f"drawn in {pictures[0]} and {pictures[1].name}"])


def steps_of(text: str) -> tuple[int, ...]:
    """Numbers of steps from text: 16..128 is 16, 32, 64, 128, and 16,100 is 16 and 100."""
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split(".."))
            found = [first * 2**i for i in range(max(0, (last // max(first, 1)).bit_length()))]
            if found and found[-1] < last:
                found.append(last)
        else:
            found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        fix = "write 16..1024, which doubles, or 16,64,256"
        raise ConfigError(f"no numbers of steps in {text!r}", fix=fix, subject="steps")
    return tuple(dict.fromkeys(found))
