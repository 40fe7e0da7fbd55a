"""The data layer beside `datasets.map`, its memory against the size of the corpus, and the loader against training.

    python -m benchmarks.data [--megabytes 64 256 1024] [--text8 FILE]

The corpus is the standard library's source, a file a line of JSON, repeated to the size asked for; so anyone
with Python can repeat this. The peer does what language-model examples do: tokenize with `map`, batched, then
join and cut with a second `map`.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adlm.data.bundled import PythonDocs
from adlm.data.catalog import open_source
from adlm.data.packing import Wrapped
from adlm.data.prepare import prepare
from adlm.data.tokenizer import characters, load_tokenizer, train_bpe
from adlm.train.callbacks import Callback
from benchmarks._record import record

LENGTH = 1024
PARTS = ["throughput", "memory", "loading"]


def write_corpus(path: Path, megabytes: float) -> None:
    documents = [json.dumps({"text": text}) + "\n" for text in PythonDocs(kind="code").documents("train")]
    size = 0
    with path.open("w") as file:
        while size < megabytes * 1e6:
            for line in documents:
                if size >= megabytes * 1e6:
                    break
                size += file.write(line)


def ours(corpus: Path, tokenizer: Path, workers: int, cache: Path) -> int:
    return len(
        prepare(open_source(corpus), "train", load_tokenizer(tokenizer), Wrapped(LENGTH), cache=cache, workers=workers)
    )


def datasets_map(corpus: Path, tokenizer: Path, workers: int, cache: Path) -> int:
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = backend.token_to_id("<|endoftext|>")

    def tokenise(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"ids": [[*e.ids, end] for e in backend.encode_batch_fast(batch["text"], add_special_tokens=False)]}

    def join(batch: dict[str, list[list[int]]]) -> dict[str, Any]:
        stream = [i for ids in batch["ids"] for i in ids]
        return {"ids": [stream[i : i + LENGTH] for i in range(0, len(stream) // LENGTH * LENGTH, LENGTH)]}

    data = datasets.load_dataset("json", data_files=str(corpus), split="train", cache_dir=str(cache))
    tokens = data.map(tokenise, batched=True, num_proc=workers, remove_columns=["text"])
    return len(tokens.map(join, batched=True, num_proc=workers))


def _peak() -> float:
    """Peak MiB of this process. getrusage would also count what its parent had before it started."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024


def _child(function: Callable[..., int], arguments: tuple[Any, ...], queue: Any) -> None:
    started = time.perf_counter()
    rows = function(*arguments)
    seconds = time.perf_counter() - started
    peak = _peak()
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # the largest one
    queue.put((rows, seconds, peak, workers))


def measured(function: Callable[..., int], *arguments: Any) -> tuple[int, float, float, float]:
    """Rows, seconds, peak MiB of the process and of its largest worker; in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_child, args=(function, arguments, queue))
    process.start()
    result = queue.get()
    process.join()
    return result  # type: ignore[no-any-return]


def throughput(folder: Path, megabytes: float, rounds: int) -> None:
    corpus = folder / "train.jsonl"  # a name that says it is all training text
    write_corpus(corpus, megabytes)
    rows: list[dict[str, Any]] = []
    speeds: dict[tuple[str, int], float] = {}
    for workers in (1, 2):
        times: dict[str, list[float]] = {"adlm": [], "datasets.map": []}
        found: dict[str, tuple[int, float, float, float]] = {}
        for i in range(rounds):  # one after the other, so that both sides see the same machine
            for name, function in (("adlm", ours), ("datasets.map", datasets_map)):
                found[name] = measured(function, corpus, folder / "tokenizer", workers, folder / f"{name}{workers}{i}")
                times[name].append(found[name][1])
        for name, (count, _, peak, worker) in found.items():
            speed = megabytes / statistics.median(times[name])
            speeds[name, workers] = speed
            rows.append(
                {
                    "side": name,
                    "processes": workers,
                    "MB/s (median)": speed,
                    "fastest s": min(times[name]),
                    "slowest s": max(times[name]),
                    "peak MiB": peak,
                    "largest worker MiB": worker,
                    "rows": count,
                }
            )
    ratios = {f"{w} process(es)": round(speeds["adlm", w] / speeds["datasets.map", w], 2) for w in (1, 2)}
    record(
        "data_throughput",
        rows,
        conclusion={"adlm over datasets.map, speed": ratios},
        method=f"{megabytes:g} MB of JSON lines, BPE of 8,192, rows of {LENGTH}; {rounds} alternating rounds",
    )


def _characters(corpus: Path, cache: Path) -> int:
    source = open_source("text8", folder=corpus)
    return len(prepare(source, "train", characters(), Wrapped(256, separated=False), cache=cache, workers=2))


def memory(folder: Path, sizes: list[float], text8: Path | None) -> None:
    rows = []
    for megabytes in sizes:
        corpus = folder / f"{megabytes:g}.train.jsonl"
        write_corpus(corpus, megabytes)
        found = measured(ours, corpus, folder / "tokenizer", 2, folder / f"memory{megabytes:g}")
        corpus.unlink()
        rows.append(_memory_row(f"JSON lines, {megabytes:g} MB", *found))
    if text8 is not None:
        rows.append(_memory_row(f"text8 from {text8.name}", *measured(_characters, text8, folder / "text8")))
    peaks = [row["peak MiB"] for row in rows]
    record(
        "data_memory",
        rows,
        conclusion={"largest peak over smallest": round(max(peaks) / min(peaks), 2)},
        method="peak resident memory of the preparing process and of its largest worker, 2 workers",
    )


def _memory_row(name: str, rows: int, _: float, peak: float, worker: float) -> dict[str, Any]:
    # Seconds are left out: this part may run beside others.
    return {"corpus": name, "rows": rows, "peak MiB": peak, "largest worker MiB": worker}


class _Steps(Callback):
    """Keeps the metrics of every step."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []

    def on_step(self, metrics: Any) -> None:
        self.metrics.append(metrics)


def loading(folder: Path) -> None:
    """Tokens per second out of the loader, and into a training step of the demo's model."""
    import torch

    from adlm.data.loader import LoaderConfig
    from adlm.data.shards import Shards
    from adlm.train.fit import fit
    from adlm.train.run import FitOptions
    from adlm_studies.experiments.demo import Demo

    rows = []
    write_corpus(folder / "loading.train.jsonl", 8)
    ours(folder / "loading.train.jsonl", folder / "tokenizer", 2, folder / "loading")
    shards = Shards.open(next((folder / "loading").glob("*/")))
    for workers in (0, 2):
        loader = LoaderConfig(64, workers=workers).build(shards)
        batches = iter(loader)
        next(batches)
        started, tokens = time.perf_counter(), 0
        while time.perf_counter() - started < 5:
            tokens += next(batches).tokens.numel()
        rows.append(
            {
                "what": f"loader, {workers} workers, rows of {LENGTH}",
                "tokens/s": tokens / (time.perf_counter() - started),
            }
        )
        del batches
    run = Demo(corpus="kjv", training_steps=20).runs()["AR"]
    steps = _Steps()
    fit(run, folder / "demo", options=FitOptions(cache=folder / "kjv"), callbacks=[steps])
    first, last = steps.metrics[0], steps.metrics[-1]
    speed = (last.tokens - first.tokens) / (last.seconds - first.seconds)
    rows.append({"what": f"training {run.name} of the demo, {torch.get_num_threads()} threads", "tokens/s": speed})
    record(
        "data_loading",
        rows,
        conclusion={"loader without workers over training": round(rows[0]["tokens/s"] / speed)},
        method="shuffled rows from memory-mapped shards; the smallest model here trains fastest",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--text8", type=Path, help="text8 or its first part, plain or gzipped")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_bpe(PythonDocs(kind="code").documents("valid"), 8192).save(folder / "tokenizer")
        if "throughput" in options.parts:
            throughput(folder, 24, options.rounds)
        if "memory" in options.parts:
            memory(folder, options.megabytes, options.text8)
        if "loading" in options.parts:
            loading(folder)


if __name__ == "__main__":
    main()
