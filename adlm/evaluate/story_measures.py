"""Exact measures on generated stories: the process that writes them is known, and so is a model's distance from it.

    KL(truth, model) = E over true stories of (log p(story) - log q(story)) >= 0

log p is exact for every story; -log q is exact for left-to-right models, else a bound, which then bounds the
divergence. Differences are paired story by story, since they vary far less than the costs do. Of samples: how many the
grammar could have written, what is wrong with the others, and how likely the grammar finds the good ones.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.config import to_json
from adlm.data.packing import Packing
from adlm.data.stories import Stories
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, ModelError
from adlm.evaluate.measurement import ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.result import Figure, Result
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import mean_of, position_nats
from adlm.randomness import Noise
from adlm.resumable import checksum
from adlm.samplers.sampler import Sampler
from adlm.types import Batch

Array = NDArray[np.float64]
_FRESH = 10_000  # added to the seed: models were trained on stories of small seeds
_KINDS = (
    (re.compile(r"sentence \d+: the (\w+) '.*' should be"), "wrong {}"),
    (re.compile(r"the (\w+) '.*' does not go with"), "{} that does not go with the rest"),
    (re.compile(r"sentence \d+ does not go with"), "sentence that does not go with the rest"),
    (re.compile(r"sentence \d+: unknown here"), "unknown sentence"),
    (re.compile(r"number of sentences"), "wrong number of sentences"),
    (re.compile(r"no word tells which (\w+)"), "{} never told"),
)


def stories(
    model: ModelLike,
    *,
    count: int = 1000,
    samples: int = 200,
    draws: int = 8,
    sampler: Sampler | str | None = None,
    batch: int = 64,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Result:
    """Measure how far a model of generated stories is from the true process, and what is wrong with its samples.

    Args:
        model: a model of stories, its folder, or its name on the Hugging Face Hub.
        count: fresh stories to score.
        samples: stories that the model writes.
        draws: noise levels per story, for bounds.
        sampler, options: as in `TextModel.generate`. A model that reads blocks is scored in those in which it writes.
        batch: stories that a process scores at a time.
        out: write the result to this file, and the samples beside it. A second call resumes.
    """
    check_counts(stories=count, samples=samples, draws=draws, batch=batch)
    with measuring(model, out, device, progress) as work:
        writer, named = opened(model, work.context, revision)
        chosen = writer.sampler(sampler, **options)
        network, packing = writer.network, writer.config.packing
        if network.reads_blocks:  # scored in the blocks in which it writes
            network = writer.read_by(chosen).network
            named["block_size"] = 1 if network.causal else network.block_size
        source = Stories(seed=_FRESH + seed, test=count)
        texts = list(source.documents("test"))
        rows = story_rows(texts, writer.tokenizer, packing)
        of = "block" if network.attention == "block" else "story"
        about = {
            "text": "fresh stories, each with its end token on a row of its own",
            "length of a story": "given, and not part of its cost" if gives_length(network, packing) else "not given",
            "likelihood": "exact" if network.causal else f"a bound, from {draws} stratified mask counts per {of}",
            "divergence": "mean of log p - log q over stories, log p exact",
            "samples": samples,
            "sampler": to_json(chosen),
            "errors": "over stories; binomial for fractions",
        }
        data = {"name": source.name, "key": checksum(source.fingerprint("test")), **source.fingerprint("test")}
        nats = work.each_of(
            "stories",
            count,
            story_nats(network, rows, draws=draws, seed=seed),
            width=1,
            batch=batch,
            made_of={"model": named, "data": data, "draws": draws, "seed": seed},
        )[:, 0]
        written = work.context.on_first(lambda: writer.generate(n=samples, seed=seed, sampler=chosen))
        exact = -np.array([source.log_likelihood(text) for text in texts])
        kind, counted = ("exact", 0) if network.causal else ("bound", draws)
        figures = likelihood_figures(nats, exact, source, kind=kind, draws=counted) | sample_figures(written, source)
        items = {"nats": nats.tolist(), "nats of the grammar": exact.tolist()}
        if work.out is not None and work.context.first:
            lines = [json.dumps({"text": text, "problems": source.problems(text)}) for text in written]
            work.out.parent.mkdir(parents=True, exist_ok=True)
            work.out.with_suffix(".samples.jsonl").write_text("\n".join(lines) + "\n")
        return work.finish(Result("stories", named, data, about, seed, figures, items))


def story_rows(texts: Sequence[str], tokenizer: Tokenizer, packing: Packing) -> Batch:
    """Each story on a row of its own, as in training. The noise of a row depends on its number."""
    begin, end = packing.frame(tokenizer.roles)
    ids = [[*begin, *row.tolist(), *end] for row in tokenizer.encode_batch(texts)]
    longest, fix = max(map(len, ids)), "name a model that was trained on stories"
    if longest > packing.length:
        asked = f"a story of {longest} tokens does not fit the model's rows of {packing.length}"
        raise ConfigError(asked, fix=fix, subject="length")
    for text, row in zip(texts, ids, strict=True):
        if (read := tokenizer.decode(row)).strip() != text:
            asked = f"the model's tokenizer reads {text[:30]!r} as {read[:30]!r}"
            raise ConfigError(asked, fix=fix, subject="tokenizer")
    counts = packing.pads and packing.padding_counts
    length = packing.length if counts else longest
    tokens = torch.tensor([row + [tokenizer.roles.pad_id] * (length - len(row)) for row in ids])
    valid = torch.stack([(torch.arange(length) < len(row)) | counts for row in ids])
    numbers = torch.arange(len(ids))
    return Batch(tokens, valid, numbers, numbers)


def gives_length(model: LanguageModel, packing: Packing) -> bool:
    """Whether the model is given the length of a story: masked models are, unless they have to write the padding.

    Block diffusion writes the padding up to the end of a block.
    """
    return model.attention == "full" and not (packing.pads and packing.padding_counts)


def story_nats(
    model: LanguageModel, rows: Batch, *, draws: int = 8, seed: int = 0
) -> Callable[[NDArray[np.int64]], Array]:
    """A function from story numbers to -log q of each story, or its bound, [n, 1]."""
    noise = Noise(seed).fork("stories")
    device = next(model.parameters(), torch.zeros(0)).device

    def compute(numbers: NDArray[np.int64]) -> Array:
        chosen = torch.from_numpy(numbers)
        batch = Batch(rows.tokens[chosen], rows.valid[chosen], chosen, chosen).to(device)
        with torch.no_grad():
            nats = position_nats(model, batch, draws=draws, noise=noise).double().sum(-1).cpu()
        if not nats.isfinite().all():
            raise ModelError("the model gives a story a cost that is not finite", fix="train it again", subject="nats")
        return nats.numpy()[:, None]

    return compute


def likelihood_figures(nats: Array, exact: Array, source: Stories, *, kind: str, draws: int) -> dict[str, Figure]:
    """Figures from the costs [n] of stories under a model and under the grammar, -log q and -log p."""

    def mean(values: Array) -> tuple[float, float]:
        found = mean_of(torch.from_numpy(values), draws)
        return found.mean, found.error

    return {
        "cross-entropy": Figure(*mean(nats), kind=kind, unit="nats per story", draws=draws),
        "entropy": Figure(source.entropy(), kind="exact", unit="nats per story"),
        "divergence": Figure(*mean(nats - exact), kind=kind, unit="nats per story", draws=draws),
    }


def sample_figures(texts: Sequence[str], source: Stories) -> dict[str, Figure]:
    """The fraction of samples that the grammar could have written, their likelihood, and the faults of the others."""
    found = [source.problems(text) for text in texts]
    flawless = [text for text, problems in zip(texts, found, strict=True) if not problems]
    figures = {"flawless": _fraction(len(flawless), len(texts))}
    if flawless:
        likely = mean_of(torch.tensor([source.log_likelihood(text) for text in flawless]), 0)
        figures["log-likelihood of flawless"] = Figure(likely.mean, likely.error, unit="nats per story")
        figures["distinct among flawless"] = Figure(len(set(flawless)) / len(flawless), None, "exact")
    kinds = Counter(kind for problems in found for kind in {kind_of(problem) for problem in problems})
    return figures | {f"fraction with {kind}": _fraction(count, len(texts)) for kind, count in kinds.most_common()}


def kind_of(problem: str) -> str:
    """The rule that a problem of `Stories.problems` breaks."""
    for pattern, kind in _KINDS:
        if found := pattern.match(problem):
            return kind.format(*found.groups())
    return "other"


def _fraction(count: int, of: int) -> Figure:
    """A fraction with its binomial error, for which one of each outcome is added: 0 of 100 is not certainly 0."""
    likely = (count + 1) / (of + 2)
    return Figure(count / of, math.sqrt(likely * (1 - likely) / of))
