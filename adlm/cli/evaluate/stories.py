"""`adlm evaluate stories`: exact measures on generated stories."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.table import Table

from adlm.cli.evaluate.perplexity import check_counts, partial_file, result_path
from adlm.cli.progress import bar, console
from adlm.cli.sample import options_of
from adlm.config import to_json
from adlm.data.stories import Stories
from adlm.distributed import joined
from adlm.evaluate.result import Result
from adlm.evaluate.stories import gives_length, likelihood_figures, sample_figures, story_nats, story_rows
from adlm.evaluate.work import checksum, each_of, weights_checksum
from adlm.text_model import load

_FRESH = 10_000  # added to the seed: models were trained on stories of small ones


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    stories: int = 1000,
    samples: int = 200,
    draws: int = 8,
    sampler: str | None = None,
    steps: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    batch: int = 64,
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    revision: str | None = None,
) -> None:
    """How far a model of generated stories is from the process that writes them, and what is wrong with its own.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        stories: fresh ones, to score.
        samples: stories that the model writes.
        draws: noise levels per story, for bounds.
        sampler: by name, as in `adlm sample`.
        steps: of the sampler.
        set: any option of the sampler, as in --set temperature=0.8.
        batch: stories that a process scores at a time.
        seed: of stories, masks and samples.
        out: the result, as JSON; by default in runs/evaluate. The samples go beside it, as .samples.jsonl.
        device: auto, cpu, cuda or mps.
        revision: of a model on the Hub.
    """
    check_counts(stories=stories, samples=samples, draws=draws, batch=batch)
    given = options_of(set, {"steps": steps})
    with joined(device) as world:
        writer = load(model, revision=revision)
        network, packing = writer.network.to(world.device), writer.config.packing
        chosen = writer.sampler(sampler, **given)
        source = Stories(seed=_FRESH + seed, test=stories)
        texts = list(source.documents("test"))
        rows = story_rows(texts, writer.tokenizer, packing)
        length = "given to the model, which its cost leaves out" if gives_length(network, packing) else "not given"
        about = {
            "text": "fresh stories, each with its end token on a row of its own",
            "length of a story": length,
            "likelihood": "exact" if network.causal else f"a bound, from {draws} stratified mask counts per story",
            "divergence": "mean of log p - log q over stories, log p exact",
            "samples": samples,
            "sampler": to_json(chosen),
            "errors": "over stories; of shares binomial",
        }
        named = {"name": model, "weights": weights_checksum(network)}
        data = {"name": source.name, "key": checksum(source.fingerprint("test")), **source.fingerprint("test")}
        out = out or result_path("stories", model)
        partial = partial_file(out, "stories")
        with bar("stories", stories) if world.first else nullcontext() as view:
            found = each_of(
                stories,
                story_nats(network, rows, draws=draws, seed=seed),
                width=1,
                batch=batch,
                world=world,
                partial=partial,
                made_of={"model": named, "data": data, "draws": draws, "seed": seed},
                watch=None if view is None else lambda done, count: view.update(done, f"scored {done:,} of {count:,}"),
            )[:, 0]
        written = world.on_first(lambda: writer.generate(n=samples, seed=seed, sampler=chosen))
        if not world.first:
            return
        exact = -np.array([source.log_likelihood(text) for text in texts])
        kind, counted = ("exact", 0) if network.causal else ("bound", draws)
        figures = likelihood_figures(found, exact, source, kind=kind, draws=counted) | sample_figures(written, source)
        items = {"nats": found.tolist(), "nats of the grammar": exact.tolist()}
        result = Result("stories", named, data, about, seed, figures, items)
        result.save(out)
        partial.unlink(missing_ok=True)
        lines = [json.dumps({"text": text, "problems": source.problems(text)}) for text in written]
        out.with_suffix(".samples.jsonl").write_text("\n".join(lines) + "\n")
        _show(result, out)


def _show(result: Result, out: Path) -> None:
    table = Table("", "", title=f"{result.model['name']} on stories", show_header=False)
    for name, figure in result.figures.items():
        table.add_row(name, f"{figure} {figure.unit}".strip())
    console().print(table)
    about = result.protocol
    for line in (
        f"{about['text']}; length {about['length of a story']}; likelihood: {about['likelihood']}; ≤ marks a bound",
        f"log-likelihood of flawless: by the grammar; its own stories have {-result.figures['entropy'].value:.2f}",
        f"{about['samples']:,} samples by {about['sampler']['kind']}; ± one standard error {about['errors']}",
        f"written to {out}, the samples beside it",
    ):
        console().print(line, highlight=False, markup=False, soft_wrap=True)
