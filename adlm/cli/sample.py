"""`adlm sample`: a model writes."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import tyro
from rich.panel import Panel
from rich.text import Text

from adlm import registry
from adlm.cli.live import LiveView, count_written
from adlm.cli.progress import console
from adlm.config import to_json
from adlm.distributed import device_for
from adlm.errors import ConfigError
from adlm.evaluate.texts import read_texts
from adlm.pieces import harmless
from adlm.samplers.blocks import BlockLayout, block_layout
from adlm.samplers.named import canonical
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import StepEvent
from adlm.text_model import TextModel, load

SamplerName = Annotated[str | None, tyro.conf.arg(help=f"by name: {', '.join(registry.names('sampler'))}.")]
Precision = Literal["float32", "bfloat16", "int8"]
_BETWEEN = "-" * 40


def command(
    model: Annotated[str, tyro.conf.Positional] = "box",
    text: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PROMPT]")] = None,
    /,
    *,
    prompt: str | None = None,
    prompts: Path | None = None,
    suffix: str = "",
    n: int = 1,
    seed: int = 0,
    sampler: SamplerName = None,
    steps: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    block_size: int | None = None,
    max_new_tokens: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    past_end: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    live: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    compile: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    revision: str | None = None,
) -> None:
    """Write texts, from a prompt or from scratch.

    Texts go to stdout, timing to stderr.

    Args:
        model: the folder of a model, its name on the Hugging Face Hub, or box, the bundled model.
        text: what the texts begin with; also --prompt.
        prompt: what the texts begin with.
        prompts: a file of prompts instead: one per line, or .jsonl with an object per line that has a "prompt".
        suffix: what the texts end with; for masked models.
        n: number of texts per prompt.
        seed: random seed. The same seed gives the same texts, together or one by one.
        steps: number of sampler steps.
        temperature: below 1, likely tokens become more likely; 0 always takes the most likely one.
        top_p: draw only from the most likely tokens that together have this probability.
        top_k: draw only from this many of the most likely tokens.
        block_size: write from left to right in blocks of this many tokens.
        max_new_tokens: write at most this many tokens after the prompt.
        set: any option of the sampler, as in --set eta=0.02 --set min_p=0.1.
        past_end: keep what is written after the end token.
        live: show the text while it is written, on a terminal.
        out: also write the texts to this file, one JSON object per line, with the sampler.
        device: auto, cpu, cuda or mps.
        precision: number format: bfloat16 is faster on processors that support it, int8 on any CPU; neither is exact.
        compile: compile the blocks with torch.compile; the first texts take longer.
        revision: a branch, tag or commit on the Hub.
    """
    if text is not None and prompt is not None:
        raise ConfigError("the prompt was given twice", subject="--prompt")
    prompt = prompt if text is None else text
    if prompt is not None and prompts is not None:
        raise ConfigError("a prompt and --prompts cannot be used together", subject="--prompts")
    direct = {"steps": steps, "temperature": temperature, "top_p": top_p, "top_k": top_k, "block_size": block_size}
    given = options_of(set, {**direct, "max_new_tokens": max_new_tokens, "n": None if n == 1 else n})
    n, limit = given.pop("n", 1), given.pop("max_new_tokens", None)
    beginnings = [prompt or ""] if prompts is None else read_texts(prompts, field="prompt")
    writer, chosen = opened(model, sampler, given, device, precision, compile, revision)
    reader, by = writer.read_for_holes(chosen) if suffix else (writer, chosen)
    layout = block_layout(by, reader.network)
    with output(out) as written, watching(writer, live=live, limit=limit, layout=layout) as meter:
        texts = writer.generate_each(
            beginnings,
            suffix=suffix,
            n=n,
            seed=seed,
            max_new_tokens=limit,
            sampler=chosen,
            stop=not past_end,
            on_step=meter,
        )
        for i, each in enumerate(texts):
            written.add(each, prompt=beginnings[i // n], seed=seed, index=i % n, sampler=chosen)
    meter.report(written.count)


def options_of(changes: Sequence[str], direct: dict[str, object]) -> dict[str, Any]:
    """Options of the command line under their names, from NAME=VALUE and from flags that are not None."""
    found = {name: value for name, value in direct.items() if value is not None}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set takes NAME=VALUE, as in --set eta=0.02, got {change!r}", subject="--set")
        if name in found:
            raise ConfigError(f"{name} was given twice: {found[name]!r} and {text}", subject=name)
        found[name] = _literal(text)
    return canonical(found)


def _literal(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def opened(
    name: str,
    sampler: str | None,
    given: dict[str, Any],
    device: str,
    precision: Precision,
    compiled: bool,
    revision: str | None,
) -> tuple[TextModel, Sampler]:
    """A model on its device, and the sampler to use with it."""
    model = load(name, revision=revision)
    model.network.eval().to(device_for(device))
    if precision == "int8":
        model.network.use_int8()
    elif precision == "bfloat16":
        model.network.bfloat16()
    if compiled:
        model.network.compile_blocks()
    return model, model.sampler(sampler, **given)


class Meter:
    """A step callback that counts what samplers write, and calls another.

    end: the token at which texts end.
    passes: through the network, counted per row: a row takes those of each step that writes in it.
    """

    def __init__(self, end: int, then: Callable[[StepEvent], None] | None = None) -> None:
        self.end, self.then, self.tokens, self.passes, self.seconds = end, then, 0, 0, 0.0

    def __call__(self, event: StepEvent) -> None:
        self.tokens += count_written(event, self.end)
        self.passes += event.passes * int(event.fresh.any(-1).sum())
        if self.then is not None:
            self.then(event)

    def report(self, texts: int) -> None:
        many, speed = "" if texts == 1 else "s", self.tokens / max(self.seconds, 1e-9)
        took = f"{texts:,} text{many}, {self.tokens:,} tokens in {self.seconds:.2f} s: {speed:,.0f} tokens/s"
        print(f"{took}, {self.passes:,} row passes through the network", file=sys.stderr)


@contextmanager
def watching(
    model: TextModel, *, live: bool, limit: int | None = None, layout: BlockLayout | None = None
) -> Iterator[Meter]:
    """A meter, with a view of the canvas if `live` and on a terminal."""
    with (
        LiveView(model, console(), limit=limit, layout=layout)
        if live and console().is_terminal
        else nullcontext() as view
    ):
        meter, began = Meter(model.tokenizer.roles.eos_id, view), time.perf_counter()
        yield meter
        meter.seconds = time.perf_counter() - began


@contextmanager
def output(path: Path | None) -> Iterator["Output"]:
    """The output for texts. A file is opened before sampling, to fail early, with a temporary name until complete."""
    if path is None:
        yield Output(None)
        return
    new = path.with_name(path.name + ".new")
    try:
        file = new.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error}", subject=str(path)) from error
    try:
        with file:
            yield Output(file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


class Output:
    """Texts go to the screen, in frames or with lines between them, and to a file if there is one."""

    def __init__(self, file: TextIO | None) -> None:
        self.file, self.count = file, 0

    def add(self, text: str, *, prompt: str, seed: int, index: int, sampler: Sampler) -> None:
        self.count += 1
        if self.file is not None:
            record = {"prompt": prompt, "text": text, "seed": seed, "index": index, "sampler": to_json(sampler)}
            self.file.write(json.dumps(record, ensure_ascii=False) + "\n")
        if console().is_terminal:
            shown = Text(harmless(text))
            if text.startswith(prompt):
                shown.stylize("dim", 0, len(prompt))
            console().print(Panel(shown, title=str(self.count), title_align="left"))
        else:
            print(f"{_BETWEEN}\n{text}" if self.count > 1 else text)
