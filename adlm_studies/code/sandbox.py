"""Programs that a model wrote, run in a process of their own that can do little and not for long.

The process is a bare Python (`-I -S`) with an empty environment in a folder that is removed afterwards. It cannot start
others, its time, memory and files are limited, and it has no network. `ProgramOutcome.held` says what kept it: the
kernel where that can (a network namespace, Landlock, another user), an audit hook inside Python elsewhere. That is
enough for what a model writes by accident. Against a program meant to break out, use a virtual machine.
"""

import contextlib
import json
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from adlm.errors import ConfigError

_CHILD = Path(__file__).with_name("sandbox_child.py")
_NOBODY = 65534
_TO_START = 60.0  # seconds, on a busy machine


@dataclass(frozen=True)
class ProgramLimits:
    """The limits of one program.

    Args:
        seconds: CPU seconds, rounded up; they do not depend on how busy the machine is.
        clock: wall-clock seconds, for programs that only wait.
        memory: bytes of address space.
        file_size: bytes of each file it writes.
        output: bytes of its output that are kept.
    """

    seconds: float = 10.0
    clock: float = 30.0
    memory: int = 1 << 30
    file_size: int = 1 << 20
    output: int = 4096

    def __post_init__(self) -> None:
        if not (
            self.seconds > 0 and self.clock > 0 and self.memory >= 1 << 26 and self.file_size >= 0 and self.output >= 0
        ):
            raise ConfigError(
                f"{self} is too little to start a program",
                fix="give seconds and at least 64 MB",
                subject="limits",
            )


class ProgramOutcome(NamedTuple):
    """The outcome of a program.

    status: "passed" where it came to its end; "failed" by an exception, sys.exit among them; "timeout"; "ended" where
        the process was gone without a word, as after os._exit or a crash.
    """

    status: str
    error: str
    output: str
    held: tuple[str, ...]


def run(code: str, tests: str = "", *, limits: ProgramLimits | None = None) -> ProgramOutcome:
    """Run a program and then, with its names, the tests. Passed is what reaches the end of both."""
    if os.name != "posix":
        raise ConfigError(
            f"generated code cannot be confined on a system of the kind {os.name!r}",
            fix="use Linux",
            subject=os.name,
        )
    limits, token = limits or ProgramLimits(), secrets.token_hex(16)
    job = {"code": code, "tests": tests, "token": token, "limits": _resources(limits)}
    with tempfile.TemporaryDirectory(prefix="adlm-run-", ignore_cleanup_errors=True) as folder, _file(job) as standing:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        reading, writing = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(_CHILD), str(writing)],
            stdin=standing,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={},
            pass_fds=(writing,),
            start_new_session=True,
        ) as process:
            os.close(writing)
            try:
                said, output, in_time = _followed(process, reading, limits)
            finally:
                _kill(process)
                os.close(reading)
    return _outcome(said, token, output, in_time, process.returncode)


def _resources(limits: ProgramLimits) -> dict[str, tuple[int, int]]:
    """The soft and the hard limit of each; a process gets a signal at the soft time limit and killed at the other."""
    whole = math.ceil(limits.seconds)
    return {
        "RLIMIT_CPU": (whole, whole + 1),
        "RLIMIT_AS": (limits.memory, limits.memory),
        "RLIMIT_FSIZE": (limits.file_size, limits.file_size),
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_NOFILE": (64, 64),
        "RLIMIT_NPROC": (0, 0),  # no further ones, threads among them
    }


@contextlib.contextmanager
def _file(job: dict[str, Any]) -> Any:
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(job).encode())
        file.seek(0)
        yield file


def _followed(process: subprocess.Popen[bytes], reading: int, limits: ProgramLimits) -> tuple[bytes, bytes, bool]:
    """What it answers and prints until it ends or its time is over, which counts from when it is ready."""
    assert process.stdout is not None
    printed = process.stdout.fileno()
    kept, most = {reading: b"", printed: b""}, {reading: 1 << 16, printed: limits.output}
    deadline, ready = time.monotonic() + _TO_START, False
    with selectors.DefaultSelector() as selector:
        for each in kept:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return kept[reading], kept[printed], False
            for key, _ in selector.select(left):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fd)
                kept[key.fd] = (kept[key.fd] + part)[: most[key.fd]]
            if not ready and b"\n" in kept[reading]:
                deadline, ready = time.monotonic() + limits.clock, True
    try:
        process.wait(max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return kept[reading], kept[printed], False
    return kept[reading], kept[printed], True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With its group; and by itself, if it has left that."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _outcome(said: bytes, token: str, output: bytes, in_time: bool, code: int) -> ProgramOutcome:
    lines = [_read(line) for line in said.splitlines()]
    text = output.decode(errors="replace")
    if not lines or "ready" not in lines[0]:
        reason = text.strip() or f"the process ended with {code}"
        raise ConfigError(f"cannot run generated code in a process of its own: {reason}", subject="sandbox")
    held = tuple(lines[0]["ready"])
    last = next((line for line in lines if line.get("token") == token), None)
    if last is not None:
        error = last["error"]
        return ProgramOutcome("passed" if error is None else "failed", error or "", text, held)
    if not in_time or code == -signal.SIGXCPU:
        return ProgramOutcome("timeout", "out of time", text, held)
    return ProgramOutcome("ended", f"the process ended with {code} before the tests did", text, held)


def _read(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
