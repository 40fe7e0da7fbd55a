"""How much memory does a server hold? Resident memory of `adlm serve`, at the start and after mixed requests.

    python -m benchmarks.serve_memory [MODEL] [--requests 20 200] [--at-once 16] [--settle 12]

Requests go to all routes that compute: completions from left to right, in blocks and of whole rows, a stream with
predictions, holes, scores and decisions. The memory of libraries and weights that are mapped from files is told apart:
the system can take it back, and processes share it.
"""

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._record import record
from benchmarks.serve import served

TEXT = "Once upon a time there was a little dog who lived in a small house. " * 3


def mixed(number: int) -> tuple[str, dict[str, Any]]:
    """A route and a request to it."""
    size = (4, 0)[number % 12 > 6]
    start = "Once upon a time " + "there was a dog " * (number % 5)
    asks: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": start, "max_tokens": 24}),
        ("/v1/completions", {"prompt": start, "max_tokens": 24, "n": 4}),
        (
            "/v1/generate",
            {
                "prompt": start,
                "max_tokens": 40,
                "sampler": "confidence",
                "steps": 10,
                "block_size": size,
                "predictions": 3,
            },
        ),
        ("/v1/infill", {"text": f"{start}[MASK:8] went home. [MASK:4] was happy.", "n": 2}),
        ("/v1/score", {"text": TEXT}),
        ("/v1/decide", {"text": "Tom had a [MASK] dog.", "slots": [{"type": "choice", "options": ["big", "red"]}]}),
    ]
    route, body = asks[number % len(asks)]
    return route, body if route == "/v1/decide" else {**body, "seed": number}


def ask(port: int, number: int) -> None:
    """Send one request and read the answer; an error status is an error."""
    route, body = mixed(number)
    sent = urllib.request.Request(
        f"http://127.0.0.1:{port}{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=3600) as answer:
        answer.read()


def resident(process: int) -> dict[str, float]:
    """Megabytes of a process (10^6 bytes), in all and without pages of files; its threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    megabytes = {name: int(status[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon", "VmHWM")}
    return {
        "resident": round(megabytes["VmRSS"]),
        "own": round(megabytes["RssAnon"]),
        "peak": round(megabytes["VmHWM"]),
        "threads": int(status["Threads"]),
    }


def wait_ready(port: int) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60).close()
            return
        except OSError:
            time.sleep(0.1)


def measure(model: str, counts: list[int], at_once: int, settle: float) -> list[dict[str, Any]]:
    """Memory by the number of requests answered, some seconds after the last one."""
    rows: list[dict[str, Any]] = []
    sent = 0
    with served(model, 1, 32, Path(__file__).parents[1]) as (process, port), ThreadPoolExecutor(at_once) as pool:
        wait_ready(port)
        for count in [0, *counts]:
            list(pool.map(lambda number: ask(port, number), range(sent, count)))
            sent = count
            time.sleep(settle if count else 1)
            rows.append({"requests": count, **resident(process)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="box")
    parser.add_argument("--requests", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--settle", type=float, default=12.0)
    options = parser.parse_args()
    rows = measure(options.model, options.requests, options.at_once, options.settle)
    method = (
        f"adlm serve {options.model}, one worker, {options.at_once} mixed requests at a time; megabytes (10^6 bytes) "
        f"{options.settle:g} s after the last one"
    )
    growth = rows[-1]["resident"] - rows[0]["resident"]
    record("serve_memory", rows, conclusion={"grown by": growth}, method=method)


if __name__ == "__main__":
    main()
