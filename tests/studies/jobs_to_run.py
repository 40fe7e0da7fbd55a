"""Jobs for processes of their own. Without torch, so that those start at once."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from adlm.errors import DataError


def double(tell, number: int) -> int:
    tell(number)
    return 2 * number


def describe(tell) -> dict[str, Any]:
    import torch

    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "parent": os.getppid()}


def fail(tell, kind: str) -> None:
    if kind == "error":
        raise DataError("no such text", subject="text")
    if kind == "bug":
        raise ZeroDivisionError("told to")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("written", flush=True)
    os.system("echo by a process of its own")


def hold(tell, folder: Path, name: str, others: int) -> float:
    """Ends when so many jobs run at the same time: with too few workers it never would."""
    (folder / name).touch()
    until = time.monotonic() + 60
    while len(list(folder.iterdir())) < others:
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.01)
    return time.monotonic()


def unsendable(tell):
    return lambda: None
