"""The quality of texts that a model writes, or that a file holds, beside that of real texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from adlm.config import to_json
from adlm.data.source import Source
from adlm.errors import ConfigError
from adlm.evaluate.documents import open_held_out
from adlm.evaluate.judge import Ids, Judge, Judged, judge_texts, open_judge
from adlm.evaluate.mauve import FEW_TEXTS, check_mauve, mauve, mauve_protocol
from adlm.evaluate.measurement import Measurement, ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.text_figures import Copies, copies, copy_figures, figures, token_entropy
from adlm.evaluate.texts import Samples, draw_references, read_texts, write_samples
from adlm.resumable import checksum
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel

_DOCUMENTS = 512  # of a training text, tokenized together


def generation(
    model: ModelLike | None = None,
    *,
    texts: Sequence[str] | str | Path | None = None,
    references: str | Path | Source | None = None,
    split: str | None = None,
    folder: str | Path | None = None,
    field: str | None = None,
    training: str | Path | Source | None = None,
    n: int = 1000,
    sampler: Sampler | str | None = None,
    judge: Judge | str | None = None,
    length: int | None = None,
    begin: bool = False,
    mauve: bool = True,
    clusters: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Result:
    """Measure generative perplexity, entropy, variety, repetition, copies and MAUVE of texts and of references.

    Figures of real texts are named "references FIGURE".

    Args:
        model: writes the texts: a model, its folder, or its name on the Hugging Face Hub.
        texts: measure these instead, or the first `n` of a file: a "text" per object in .jsonl, else one per line.
        references: real texts to compare with, named as the data of `perplexity`. As many are drawn as there are texts,
            without replacement.
        split, folder, field: of the references, as for `perplexity`.
        training: text that the model was trained on; its split train is searched for what texts share with it.
        n: texts to write, or to read at most.
        sampler, options: as in `TextModel.generate`.
        judge, length, begin: see `open_judge`.
        mauve: measure it, if there are references.
        clusters: of MAUVE; by default a tenth of the texts.
        seed: of samples, and of the draw of references.
        out: write the result to this file and the texts beside it. Partial results are kept there, and a second call
            resumes.
    """
    check_counts(n=n, length=length)
    if (model is None) == (texts is None):
        raise ConfigError("generation needs either a model or texts", subject="texts")
    if texts is not None and (sampler or options):
        raise ConfigError("texts that are already written take no sampler", subject="sampler")
    with measuring(model, out, device, progress) as work:
        written = _given(work, texts, n)
        count = n if model is not None else len(written)
        bench = open_bench(
            work, judge, references, split, folder, field, length=length, begin=begin, mauve=mauve, seed=seed
        )
        bench.check(count, clusters)
        extra: dict[str, Figure] = {}
        about: dict[str, Any] = {**bench.judge.protocol, "texts": count}
        if model is None:
            name = str(texts) if isinstance(texts, str | Path) else "texts"
            subject: dict[str, Any] = {"name": name, "key": checksum(written)}
            real = bench.references(count)
        else:
            writer, subject = opened(model, work.context, revision)
            chosen = writer.sampler(sampler, **options)
            real = bench.references(count)
            samples = sampled(work, writer, chosen, n, seed, subject["weights"], "writing", samples_file(work.out))
            written, extra["tokens_per_second"] = samples.texts, speed(writer, samples)
            about["sampler"] = to_json(chosen)
        judged = bench.judged(written, "texts")
        measured, how = bench.measured(judged, real, clusters)
        own = {} if real is None else figures(real)
        about |= how
        if training is not None:
            about["training"], shared = _copied(bench, judged, real, training, folder)
            extra, own = extra | shared[0], own | shared[1]
        measured |= extra | {f"references {name}": figure for name, figure in own.items()}
        items = {"nats": judged.nats.tolist(), "tokens": judged.tokens.tolist()}
        items["entropy"] = [token_entropy(row) if len(row) else 0.0 for row in judged.rows]
        notes = bench.notes(count) if "mauve" in measured else []
        return work.finish(Result("generation", subject, bench.data, about, seed, measured, items, notes=notes))


def _given(work: Measurement, texts: Sequence[str] | str | Path | None, n: int) -> list[str]:
    """Texts that are measured instead of a model's."""
    if isinstance(texts, str | Path):
        return work.context.on_first(lambda: read_texts(Path(texts), n))
    return list(texts or ())[:n]


@dataclass(frozen=True)
class Bench:
    """The judge and the references with which sets of texts are measured."""

    work: Measurement
    judge: Judge
    source: Source | None
    split: str
    mauve: bool
    seed: int

    @property
    def data(self) -> dict[str, Any]:
        """What a result records about the references."""
        if self.source is None:
            return {}
        key = checksum({"source": self.source.fingerprint(self.split), "seed": self.seed})
        return {"name": self.source.name, "split": self.split, "key": key}

    @property
    def with_mauve(self) -> bool:
        return self.mauve and self.source is not None

    def check(self, count: int, clusters: int | None) -> None:
        """Refuse what cannot be measured, before texts are written."""
        if self.with_mauve:
            check_mauve(count, clusters)

    def notes(self, count: int) -> list[str]:
        """Notes on MAUVE for the reader of a result."""
        if count >= FEW_TEXTS:
            return []
        return [f"MAUVE of {count} texts says little: take {FEW_TEXTS} or more, better 1,000"]

    def references(self, count: int) -> Judged | None:
        """References, drawn by the seed, and judged."""
        if self.source is None:
            return None
        return self.judged(draw_references(self.source.documents(self.split), count, seed=self.seed), "references")

    def judged(self, texts: Sequence[str], label: str) -> Judged:
        """Texts, read by the judge."""
        return judge_texts(self.judge, texts, features=self.with_mauve, work=self.work, label=f"judging {label}")

    def measured(
        self, judged: Judged, real: Judged | None, clusters: int | None = None
    ) -> tuple[dict[str, Figure], dict[str, Any]]:
        """The figures of texts, with MAUVE if there are references, and the protocol of MAUVE."""
        found = figures(judged)
        if real is None or not self.mauve:
            return found, {}
        area = mauve(real.features, judged.features, clusters=clusters)
        return {**found, "mauve": Figure(area.mean, area.error, interval=area.interval)}, {
            "mauve": mauve_protocol(area)
        }


def open_bench(
    work: Measurement,
    judge: Judge | str | None,
    references: str | Path | Source | None,
    split: str | None,
    folder: str | Path | None,
    field: str | None,
    *,
    length: int | None,
    begin: bool,
    mauve: bool,
    seed: int,
) -> Bench:
    """A judge and the source of references, by name."""
    source, chosen = None, ""
    if references is not None:
        source, chosen = open_held_out(references, split, folder=folder, field=field)
    if not isinstance(judge, Judge):
        judge = open_judge(judge, length=length, begin=begin, device=work.context.device)
    return Bench(work, judge, source, chosen, mauve, seed)


def sampled(
    work: Measurement,
    model: TextModel,
    sampler: Sampler,
    n: int,
    seed: int,
    weights: str,
    label: str,
    path: Path | None,
) -> Samples:
    """`n` texts of a model, kept in a file if there is a path."""

    def write(count: int, number: int) -> list[str]:
        return model.generate(n=count, seed=number, sampler=sampler)

    return write_samples(
        write,
        n,
        path=path,
        seed=seed,
        made_of={"model": weights, "sampler": to_json(sampler)},
        prepare=lambda: write(1, 0),  # what only a first call pays for stays out of the speed
        context=work.context,
        progress=work.counts(label),
    )


def samples_file(out: Path | None, *parts: str) -> Path | None:
    """The file in which the texts of a result are stored."""
    return None if out is None else out.with_name("-".join([out.stem, *parts]) + ".samples.jsonl")


def speed(model: TextModel, samples: Samples) -> Figure:
    """Tokens of finished texts, in the model's own tokenizer, per second that a process wrote."""
    tokens = sum(map(len, model.tokenizer.encode_batch(samples.texts)))
    return Figure(tokens / max(samples.seconds, 1e-9), unit="tokens per second")


def _copied(
    bench: Bench, judged: Judged, real: Judged | None, training: str | Path | Source, folder: str | Path | None
) -> tuple[dict[str, Any], tuple[dict[str, Figure], dict[str, Figure]]]:
    """What the training text is, and what texts and references share with it. The first process searches."""
    source, _ = open_held_out(training, "train", folder=folder)
    rows = [*judged.rows, *([] if real is None else real.rows)]
    context, count = bench.work.context, len(judged.rows)
    found = context.on_first(lambda: copies(rows, _token_blocks(bench, source)))
    parts = [Copies(found.fraction[part], found.longest[part]) for part in (slice(count), slice(count, None))]
    about = {"name": source.name, "split": "train", "key": checksum(source.fingerprint("train"))}
    return about, (copy_figures(parts[0]), {} if real is None else copy_figures(parts[1]))


def _token_blocks(bench: Bench, source: Source) -> Iterator[list[Ids]]:
    pieces, done = (piece.text for piece in source.pieces("train")), 0
    progress = bench.work.counts("searching")
    while block := list(islice(pieces, _DOCUMENTS)):
        done += len(block)
        if progress is not None:
            progress(done, 0)
        yield bench.judge.encode(block)
