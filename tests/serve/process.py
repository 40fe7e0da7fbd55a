"""A server in a process of its own."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

_ROOT = Path(__file__).resolve().parents[2]


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def server(
    folder: Path, *options: str, ready: bool = True, log: list[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`adlm serve FOLDER --port 0`, and its address once it answers. The lines of its log are added to `log`."""
    command = [sys.executable, "-m", "adlm", "serve", str(folder), "--port", "0", "--device", "cpu", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=_ROOT, env=environment)
    assert process.stderr is not None
    reader = None
    try:
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        address = found[0]
        # A pipe that nobody reads fills up, and then the server waits for it.
        lines = [] if log is None else log
        reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
        reader.start()
        if ready:
            deadline = time.monotonic() + 300  # a busy machine takes its time to import torch
            while not _is_ready(address):
                assert process.poll() is None, lines
                assert time.monotonic() < deadline, lines
                time.sleep(0.05)
        yield process, address
    finally:
        process.kill()
        process.wait()
        if reader is not None:
            reader.join(20)
        process.stderr.close()
