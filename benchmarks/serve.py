"""Does sharing passes pay? Requests at once against the same requests one after another, with one model.

    python -m benchmarks.serve [MODEL] [--requests 16] [--steps 64] [--rounds 3] [--workers CORES]
        [--sampler NAME [--block-size N]] [--tokens N] [--against CHECKOUT]

Both sides write the same texts with the same seeds, in turns: four samplers, each with a quarter, a half, three
quarters and all of the steps, or with `--sampler` one sampler and all of the steps. The naive side is a loop over
`TextModel.generate`, with one thread or with all, whichever is quicker here. The other is `adlm serve`, a process of
its own that every request reaches at once by HTTP and answers with a stream (`/v1/generate`); with `--against` also
that of another checkout of this repository, in turns. The time to the first canvas event is from the request to that
event, as a fraction of the time until it is done. Seconds of the clock hang on what else the machine does; seconds of
processor time, the server's with those of its workers, do so less.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from adlm.serve.requests import GenerateRequest
from adlm.text_model import TextModel, load
from benchmarks._record import record

UNMASKING = ("ancestral", "confidence", "first-hitting", "remdm-cap")


def mixed(requests: int, steps: int, tokens: int | None) -> list[GenerateRequest]:
    """What people who do not know of each other may ask for at once."""
    asks = []
    for i in range(requests):
        sampler, own = UNMASKING[i % 4], max(1, steps * (1 + i // 4 % 4) // 4)
        counted = own if sampler != "first-hitting" else None
        asks.append(GenerateRequest(seed=i, steps=counted, sampler=sampler, max_tokens=tokens, predictions=0))
    return asks


def alike(requests: int, sampler: str, steps: int, tokens: int | None, block_size: int | None) -> list[GenerateRequest]:
    """Requests that differ in nothing but their seeds."""
    counted = steps if sampler not in ("left-to-right", "first-hitting") else None
    options = {"sampler": sampler, "steps": counted, "max_tokens": tokens, "block_size": block_size, "predictions": 0}
    return [GenerateRequest.model_validate({**options, "seed": i}) for i in range(requests)]


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
        texts += model.generate(
            ask.prompt, seed=ask.seed, max_new_tokens=ask.max_tokens, sampler=ask.sampler, **ask.options
        )
        ends.append(time.perf_counter() - began)
    return ends[-1], ends, texts


@contextlib.contextmanager
def served(model: str, workers: int, requests: int, root: Path) -> Iterator[tuple[int, int]]:
    """Process and port of a server with the package of one checkout."""
    command = [sys.executable, "-m", "adlm", "serve", model, "--port", "0", "--workers", str(workers)]
    command += ["--limits.running", str(requests), "--limits.seconds", "3600"]
    here = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(command, cwd=root, env=here, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://[^ ]*:(\d+)", process.stderr.readline())
        if found is None:
            raise SystemExit("the server did not say where it is")
        # It logs every request; the log is not read here, and a full pipe would block it.
        threading.Thread(target=collections.deque, args=(process.stderr, 0), daemon=True).start()
        port = int(found[1])
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60).close()
                break
            except OSError:
                time.sleep(0.2)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


async def asked(port: int, ask: GenerateRequest) -> tuple[float, float, str]:
    """Seconds until the first event and until the last, and the text."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = ask.model_dump_json(exclude_none=True).encode()
    head = f"POST /v1/generate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    first, last = 0.0, ""
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - began
            last = line[6:].decode()
    writer.close()
    event: dict[str, Any] = json.loads(last)
    return first, time.perf_counter() - began, event["text"]


def shared(port: int, asks: list[GenerateRequest]) -> tuple[float, list[float], list[str], list[float]]:
    """As `naive`, and when each had its first event."""

    async def all_at_once() -> list[tuple[float, float, str]]:
        return await asyncio.gather(*(asked(port, ask) for ask in asks))

    began = time.perf_counter()
    found = asyncio.run(all_at_once())
    return time.perf_counter() - began, [e[1] for e in found], [e[2] for e in found], [e[0] for e in found]


def processor_seconds(pid: int) -> float:
    """Of a process and of those it started, so far."""
    found = {pid}
    for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) in found:
                found.add(int(path.parent.name))
    ticks = 0
    for each in found:
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?", default="box")
    options.add_argument("--requests", type=int, default=16)
    options.add_argument("--steps", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--workers", type=int, default=torch.get_num_threads())
    options.add_argument("--sampler", help="of all requests; by default four, or left-to-right if no other can")
    options.add_argument("--block-size", type=int, help="tokens per block, with --sampler; 0 for whole rows")
    options.add_argument("--tokens", type=int, help="of each text; by default as many as a row has")
    options.add_argument("--against", type=Path, help="another checkout, whose server is measured too")
    given = options.parse_args()
    model = load(given.model)
    model.network.eval()
    sampler = given.sampler or ("left-to-right" if model.network.causal else None)
    asks = mixed(given.requests, given.steps, given.tokens)
    if sampler is not None:
        asks = alike(given.requests, sampler, given.steps, given.tokens, given.block_size)
    threads, cores = quickest_threads(model, asks[0]), torch.get_num_threads()
    torch.set_num_threads(threads)
    roots = {"adlm serve": Path(__file__).parents[1].resolve()}
    if given.against is not None:
        roots["adlm serve before"] = given.against.resolve()
    plain: list[Any] = []
    answers: dict[str, list[Any]] = {name: [] for name in roots}
    processor: dict[str, list[float]] = {name: [] for name in ["loop", *roots]}
    with contextlib.ExitStack() as servers:
        found = {
            name: servers.enter_context(served(given.model, given.workers, given.requests, root))
            for name, root in roots.items()
        }
        for _, port in found.values():
            shared(port, asks)  # every worker starts its threads, and derives what it needs from the weights
        for _ in range(given.rounds):
            for name, (pid, port) in found.items():
                began = processor_seconds(pid)
                answers[name].append(shared(port, asks))
                processor[name].append(processor_seconds(pid) - began)
            began = time.process_time()
            plain.append(naive(model, asks))
            processor["loop"].append(time.process_time() - began)
    together = answers["adlm serve"]
    slow, quick = (min(each[0] for each in side) for side in (plain, together))
    first = {
        name: statistics.median(a / b for side in each for a, b in zip(side[3], side[1], strict=True))
        for name, each in answers.items()
    }
    same = all(side[2] == plain[0][2] for side in [*plain, *together])
    rows_of = [
        _row("one after another", plain, slow, min(processor["loop"]), given.requests),
        *(
            _row(name, each, min(side[0] for side in each), min(processor[name]), given.requests)
            for name, each in answers.items()
        ),
    ]
    conclusion = {
        "throughput, times that of the loop": round(slow / quick, 2),
        "in each round": [round(a[0] / b[0], 2) for a, b in zip(plain, together, strict=True)],
        "processor time, times less than the loop's": {
            name: round(min(processor["loop"]) / min(processor[name]), 2) for name in roots
        },
        "first event, fraction of the whole (median)": {name: round(each, 4) for name, each in first.items()},
        "first event, seconds (median)": {
            name: round(statistics.median(event for side in each for event in side[3]), 3)
            for name, each in answers.items()
        },
        "the same texts": same,
        "answered": f"{sum(len(side[2]) for side in together)} of {given.requests * given.rounds}",
        "threads of the loop": threads,
        "workers": given.workers,
        "load of the machine at the end": round(os.getloadavg()[0], 1),
    }
    kind = f"requests of {sampler}" if sampler else f"requests of mixed samplers, up to {given.steps} steps"
    length = f", {given.tokens} tokens" if given.tokens else ""
    if sampler and given.block_size is not None:
        kind += f" in blocks of {given.block_size}" if given.block_size else " over whole rows"
    method = (
        f"best of {given.rounds} rounds in turns, {given.requests} {kind}{length}, model {given.model}, {cores} cores"
    )
    name = "serve" if given.sampler is None else f"serve_{given.sampler.replace('-', '_')}"
    if given.block_size is not None:
        name += f"_{given.block_size}"
    record(name, rows_of, conclusion=conclusion, method=method)


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
