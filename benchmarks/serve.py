"""Does sharing passes pay? Requests at once against the same requests one after another, with one model.

    python -m benchmarks.serve [MODEL] [--requests 16] [--steps 64] [--rounds 3]

Both sides write the same texts with the same seeds, in this process, in turns: four samplers, each with a quarter, a
half, three quarters and all of the steps. The naive side is a loop over `TextModel.generate`, with one thread or with
all, whichever is quicker here; the other is the engine, with all requests submitted at once, as `/v1/generate` does
it. The time to the first canvas event is from submission to that event, as a share of the time until the request is
done. Seconds of the clock hang on what else the machine does; seconds of processor time do so less.
"""

import argparse
import os
import statistics
import time

import torch

from adlm.serve.engine import Engine
from adlm.serve.events import Appearance
from adlm.serve.limits import Limits
from adlm.serve.requests import GenerateRequest
from adlm.text_model import TextModel, load
from benchmarks._record import record

UNMASKING = ("ancestral", "confidence", "first-hitting", "remdm-cap")


def mixed(requests: int, steps: int, causal: bool) -> list[GenerateRequest]:
    """What people who do not know of each other may ask for at once."""
    asks = []
    for i in range(requests):
        sampler = "left-to-right" if causal else UNMASKING[i % 4]
        counted = sampler not in ("left-to-right", "first-hitting")
        own = max(1, steps * (1 + i // 4 % 4) // 4) if counted else None
        asks.append(GenerateRequest(seed=i, steps=own, sampler=sampler, guesses=0))
    return asks


def quickest_threads(model: TextModel, ask: GenerateRequest) -> int:
    """One or all: small products may lose by a second core."""
    every, seconds = torch.get_num_threads(), {}
    for threads in {1, every}:
        torch.set_num_threads(threads)
        naive(model, [ask])
        seconds[threads] = naive(model, [ask])[0]
    torch.set_num_threads(every)
    return min(seconds, key=lambda threads: seconds[threads])


def naive(model: TextModel, asks: list[GenerateRequest]) -> tuple[float, list[float], list[str]]:
    """Seconds in all, until each is done, and the texts."""
    began, ends, texts = time.perf_counter(), [], []
    for ask in asks:
        texts += model.generate(ask.prompt, seed=ask.seed, sampler=ask.sampler, **ask.options)
        ends.append(time.perf_counter() - began)
    return ends[-1], ends, texts


def shared(engine: Engine, asks: list[GenerateRequest]) -> tuple[float, list[float], list[str], list[float]]:
    """As `naive`, and when each had its first event."""
    began = time.perf_counter()
    events: list[list[tuple[float, dict]]] = [[] for _ in asks]
    works = [
        Appearance(ask, engine.limits, lambda event, own=own: own.append((time.perf_counter() - began, event)))
        for ask, own in zip(asks, events, strict=True)
    ]
    for job in engine.submit(next(iter(engine.models)), works):
        job.future.result()
    took = time.perf_counter() - began
    ends = [own[-1][0] for own in events]
    return took, ends, [own[-1][1]["text"] for own in events], [own[0][0] for own in events]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?", default="box")
    options.add_argument("--requests", type=int, default=16)
    options.add_argument("--steps", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    model = load(given.model)
    model.network.eval()
    asks = mixed(given.requests, given.steps, model.network.causal)
    engine = Engine({"model": model}, Limits(running=given.requests))
    engine.start()
    batcher = engine.batchers["model"]
    threads, cores = quickest_threads(model, asks[0]), torch.get_num_threads()
    plain, together = [], []
    shared(engine, asks[:4])  # threads start, weights are derived
    before = batcher.passes, batcher.rows
    processor = {"loop": [], "engine": []}
    for _ in range(given.rounds):
        began = time.process_time()
        together.append(shared(engine, asks))
        processor["engine"].append(time.process_time() - began)
        torch.set_num_threads(threads)
        began = time.process_time()
        plain.append(naive(model, asks))
        processor["loop"].append(time.process_time() - began)
        torch.set_num_threads(cores)
    passes, rows = batcher.passes - before[0], batcher.rows - before[1]
    engine.close()
    slow, quick = (min(each[0] for each in side) for side in (plain, together))
    first = statistics.median(a / b for side in together for a, b in zip(side[3], side[1], strict=True))
    same = all(side[2] == plain[0][2] for side in [*plain, *together])
    rows_of = [
        _row("one after another", plain, slow, min(processor["loop"]), given.requests),
        _row("sharing passes", together, quick, min(processor["engine"]), given.requests),
    ]
    conclusion = {
        "throughput, times that of the loop": round(slow / quick, 2),
        "processor time, times less than the loop's": round(min(processor["loop"]) / min(processor["engine"]), 2),
        "rows a pass": round(rows / passes, 2),
        "first event, share of the whole (median)": round(first, 4),
        "the same texts": same,
        "answered": f"{sum(len(side[2]) for side in together)} of {given.requests * given.rounds}",
        "threads of the loop": threads,
        "load of the machine at the end": round(os.getloadavg()[0], 1),
    }
    method = f"best of {given.rounds} rounds in turns, {given.requests} requests of mixed samplers, up to {given.steps}"
    record("serve", rows_of, conclusion=conclusion, method=f"{method} steps, model {given.model}, {cores} cores")


def _row(name: str, rounds: list, best: float, processor: float, requests: int) -> dict[str, object]:
    ends = sorted(end for each in rounds for end in each[1])
    return {
        "how": name,
        "seconds": best,
        "processor seconds": processor,
        "requests/s": requests / best,
        "median latency": statistics.median(ends),
        "latency, 95%": ends[int(0.95 * (len(ends) - 1))],
    }


if __name__ == "__main__":
    main()
