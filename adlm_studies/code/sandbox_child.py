"""What runs in the process of its own that `sandbox.run` starts: gives up every right it can, then runs a program.

Started as `python -I -S sandbox_child.py FD`, with a job as JSON on its standard input; it answers on that descriptor.
Only the standard library is imported. What the kernel offers is taken: a network namespace, Landlock, another user.
An audit hook refuses the same inside Python, for kernels that offer less. It stops accidents, not attackers.
"""

import contextlib
import ctypes
import json
import os
import resource
import struct
import sys
from types import CodeType
from typing import Any

NOBODY = 65534
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_KEEP_CAPS, _NO_NEW_PRIVILEGES = 8, 38
_READ_ANYWHERE = 1 << 2  # CAP_DAC_READ_SEARCH
# Of Landlock: its system calls have the same numbers on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ, _WRITE_FILE = 0b1101, (1 << 1) | (1 << 14)
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/localtime", "/dev/urandom", "/dev/null")
_PATHS = {"remove", "rename", "rmdir", "truncate", "chmod", "chown", "link", "symlink", "mkdir", "utime"}
_REFUSED = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "os.kill",
    "os.killpg",
    "signal.pthread_kill",
    "os.setxattr",
    "os.removexattr",
    "os.chflags",
    "os.lchflags",
    "syslog.syslog",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Read a program from stdin, give up rights, run the program and report the outcome."""
    job = json.load(sys.stdin.buffer)
    answer, folder = int(sys.argv[1]), os.getcwd()  # noqa: PTH109
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the job is in there
    held = confine(folder, job["limits"])
    _say(answer, {"ready": held})
    error = judge(job["code"], job["tests"])
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    _say(answer, {"token": job["token"], "error": error})
    os._exit(0)


def judge(code: str, tests: str) -> str | None:
    """The error of a program or of its tests; None if both finish. They run apart, so no code can skip its tests."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for text, name in ((code, "<solution>"), (tests, "<tests>")):
            program: CodeType = compile(text, name, "exec")
            exec(program, names)
    except BaseException as error:
        try:
            return f"{type(error).__name__}: {error}"[:500]
        except BaseException:
            return type(error).__name__
    return None


def confine(folder: str, limits: dict[str, tuple[int, int]]) -> list[str]:
    """Give up what can be given up; in words, what holds now."""
    held = []
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.geteuid() == 0
    unshare = getattr(libc, "unshare", None)
    if unshare is not None and unshare(_NEW_NET if root else _NEW_NET | _NEW_USER) == 0:
        held.append("network: a namespace without one")
    else:
        held.append("network: sockets refused inside Python")
    if sys.platform == "linux":
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if root:
            libc.prctl(_KEEP_CAPS, 1, 0, 0, 0)
        landlocked = _landlock(libc, folder)
    else:
        landlocked = False
    held.append("files: read-only outside the folder, by " + ("Landlock" if landlocked else "an audit hook in Python"))
    if root:
        # No process limit holds for root. Python itself may lie where nobody can read, so reading stays.
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        held.append("user: nobody")
    if sys.platform == "linux":
        _keep_capabilities(libc, _READ_ANYWHERE if root else 0)
    for name, (soft, hard) in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (soft, hard))
        except (ValueError, OSError):
            held.append(f"{name} not limited: the system refuses")
    sys.dont_write_bytecode = True
    sys.addaudithook(_hook(os.path.realpath(folder)))
    return held


def _keep_capabilities(libc: ctypes.CDLL, kept: int) -> None:
    header = struct.pack("Ii", 0x20080522, 0)
    libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0))


def _landlock(libc: ctypes.CDLL, folder: str) -> bool:
    """Read Python and the system's libraries, write in the folder: the kernel refuses all other files."""
    version = libc.syscall(_CREATE, None, 0, 1)
    if version < 1:
        return False
    handled = (1 << 13) - 1
    handled |= sum(1 << bit for bit, since in ((13, 2), (14, 3), (15, 5)) if version >= since)
    # The connections of TCP since version 4; signals and abstract sockets to others since 6.
    rules = struct.pack("QQQ", handled, 0b11, 0b11)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = libc.syscall(_CREATE, rules, len(rules), 0)
    readable = [*_SYSTEM, sys.base_prefix, sys.base_exec_prefix]
    grants = [*((path, _READ) for path in readable), (os.devnull, 0b111), (folder, (1 << 15) - 1)]
    for path, access in grants:
        if not os.path.exists(path):  # noqa: PTH110
            continue
        place = os.open(path, os.O_PATH)
        if not os.path.isdir(path):  # noqa: PTH112
            access &= 0b111 | _WRITE_FILE
        rule = struct.pack("=Qi", access & handled, place)
        if libc.syscall(_ADD, ruleset, 1, rule, 0) != 0:
            return False
        os.close(place)
    held = bool(libc.syscall(_RESTRICT, ruleset, 0) == 0)
    os.close(ruleset)
    return held


def _hook(folder: str) -> Any:
    inside = folder + os.sep
    realpath, fsdecode = os.path.realpath, os.fsdecode

    def is_inside(path: object) -> bool:
        return isinstance(path, str | bytes) and realpath(fsdecode(path)).startswith(inside)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        area, _, verb = event.partition(".")
        refused = event in _REFUSED or area in ("socket", "ctypes")
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITING) if isinstance(flags, int) else mode not in (None, "r", "rb")
            # A number is a file that is open already.
            refused = writes and not isinstance(path, int) and path != os.devnull and not is_inside(path)
        elif area == "os" and verb in _PATHS:
            paths = arguments[:2] if verb in ("rename", "link", "symlink") else arguments[:1]
            relative = any(isinstance(each, int) and each >= 0 for each in arguments[-1:]) and verb != "truncate"
            refused = relative or not all(map(is_inside, paths))
        if refused:
            raise PermissionError(f"{event} is not allowed here")

    return hook


def _say(answer: int, value: dict[str, Any]) -> None:
    os.write(answer, json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    main()
