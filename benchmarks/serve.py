"""Does sharing passes pay? Requests at once against the same requests one after another, with one model.

    python -m benchmarks.serve [MODEL] [--requests 16] [--steps 64] [--rounds 3]

Both sides write the same texts with the same seeds, in this process, in turns. The naive side is a loop over
`TextModel.generate`; the other is the engine, with all requests submitted at once, as `/v1/generate` does it. The time
to the first canvas event is from submission to that event, as a share of the time until the request is done.
"""

import argparse
import os
import statistics
import time

from adlm.serve.engine import Engine
from adlm.serve.events import Appearance
from adlm.serve.limits import Limits
from adlm.serve.requests import GenerateRequest
from adlm.text_model import TextModel, load
from benchmarks._record import record


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
    asks = [GenerateRequest(seed=i, steps=given.steps, sampler="ancestral", guesses=0) for i in range(given.requests)]
    engine = Engine({"model": model}, Limits(running=given.requests))
    engine.start()
    batcher = engine.batchers["model"]
    plain, together = [], []
    shared(engine, asks)  # threads start, weights are derived
    before = batcher.passes, batcher.rows
    for _ in range(given.rounds):
        together.append(shared(engine, asks))
        plain.append(naive(model, asks))
    passes, rows = batcher.passes - before[0], batcher.rows - before[1]
    engine.close()
    slow, quick = (min(each[0] for each in side) for side in (plain, together))
    first = statistics.median(a / b for side in together for a, b in zip(side[3], side[1], strict=True))
    same = all(side[2] == plain[0][2] for side in [*plain, *together])
    rows_of = [
        _row("one after another", plain, slow, given.requests),
        _row("sharing passes", together, quick, given.requests),
    ]
    conclusion = {
        "throughput, times that of the loop": round(slow / quick, 2),
        "rows a pass": round(rows / passes, 2),
        "first event, share of the whole (median)": round(first, 4),
        "the same texts": same,
        "answered": f"{sum(len(side[2]) for side in together)} of {given.requests * given.rounds}",
        "load of the machine at the end": round(os.getloadavg()[0], 1),
    }
    record("serve", rows_of, conclusion=conclusion, method=f"best of {given.rounds} rounds in turns, {given.requests} "
           f"requests, ancestral, {given.steps} steps, model {given.model}")  # fmt: skip


def _row(name: str, rounds: list, best: float, requests: int) -> dict[str, object]:
    ends = sorted(end for each in rounds for end in each[1])
    return {
        "how": name,
        "seconds": best,
        "requests/s": requests / best,
        "median latency": statistics.median(ends),
        "latency, 95%": ends[int(0.95 * (len(ends) - 1))],
    }


if __name__ == "__main__":
    main()
