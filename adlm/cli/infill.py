"""`adlm infill`: a model fills the holes of a text."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from adlm.cli.sample import Precision, opened, options_of, output, watching
from adlm.errors import ConfigError
from adlm.samplers.blocks import block_layout
from adlm.samplers.constraints import Choice, Digits, Pattern, Wording


def command(
    model: Annotated[str, tyro.conf.Positional],
    text: Annotated[str, tyro.conf.Positional],
    /,
    *,
    hole: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    n: int = 1,
    best_of: int = 1,
    seed: int = 0,
    sampler: str | None = None,
    steps: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    live: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    revision: str | None = None,
) -> None:
    """Fill the holes of a text and keep the rest.

    Texts go to stdout, timing to stderr.

    Args:
        model: the folder of a model, its name on the Hugging Face Hub, or box, the bundled model.
        text: with [MASK] for each missing token, [MASK:4] for four, [MASK:2-6] for two to six.
        hole: the constraint of a hole, once per hole in order: any, digits, 'choice:red|blue green', or
            'pattern:[A-Z][a-z]+', a regular expression.
        n: number of texts.
        best_of: fill the holes this many times per text and keep the text that is most likely from left to right.
        seed: random seed. The same seed gives the same texts.
        sampler: by name, as in `adlm sample`.
        steps: number of sampler steps.
        temperature: below 1, likely tokens become more likely; 0 always takes the most likely one.
        top_p: draw only from the most likely tokens that together have this probability.
        top_k: draw only from this many of the most likely tokens.
        set: any option of the sampler, as in --set eta=0.02 --set min_p=0.1.
        live: show the text while it is written, on a terminal.
        out: also write the texts to this file, one JSON object per line, with the sampler.
        device: auto, cpu, cuda or mps.
        precision: of the network, as in `adlm sample`.
        revision: a branch, tag or commit on the Hub.
    """
    direct = {"steps": steps, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = options_of(set, {**direct, "n": None if n == 1 else n})
    n = given.pop("n", 1)
    wordings = [_wording(each) for each in hole] or None
    writer, chosen = opened(model, sampler, given, device, precision, False, revision)
    reader, by = writer.read_for_holes(chosen)
    layout = block_layout(by, reader.network)
    with output(out) as written, watching(writer, live=live, layout=layout) as meter:
        filling: dict[str, Any] = {"n": n, "seed": seed, "constraints": wordings, "sampler": chosen, "on_step": meter}
        texts = writer.infill_each(text, **filling) if best_of == 1 else writer.infill(text, best_of=best_of, **filling)
        for i, filled in enumerate(texts):
            written.add(filled, prompt=text, seed=seed, index=i, sampler=chosen)
    meter.report(written.count)


def _wording(text: str) -> Wording | None:
    kind, colon, rest = text.partition(":")
    if kind == "choice" and colon:
        return Choice(tuple(rest.split("|")))
    if kind == "pattern" and colon:
        return Pattern(rest)
    if text in ("any", "digits"):
        return Digits() if text == "digits" else None
    raise ConfigError(f"--hole takes any, digits, choice:A|B or pattern:REGEX, got {text!r}", subject="--hole")
