"""Memory: of the C library, in processes that are our own (commands and workers, not programs that import us); of the
machine."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

# glibc's names for mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory(mebibytes: int = 256) -> bool:
    """Let freed tensors be used again instead of going back to the system; whether that could be arranged.

    By default glibc returns every block above some hundred kilobytes at once, and the next tensor of that size pays for
    fresh pages: 4 to 8 % of a training step or of a pass for several rows (docs/log.md). What a user has set in the
    environment holds.
    """
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ or "glibc.malloc." in tuned:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another system, or another C library
        return False
    return bool(mallopt(_TRIM_THRESHOLD, mebibytes << 20)) and bool(mallopt(_MMAP_THRESHOLD, 32 << 20))


def share_freed_memory() -> bool:
    """As `keep_freed_memory`, for a process with many threads that compute in turn.

    By default each thread keeps what it has freed, and MKL's buffers, for itself: 16 threads held 0.4 GB that nothing
    used (docs/log.md). Here they share one heap, of which `release_freed_memory` returns what is free, and MKL frees
    its buffers, if torch is not loaded yet: `adlm serve` tells it at its start.
    """
    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")
    return keep_freed_memory(64) and bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, 1))


def release_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can: some milliseconds, and fresh pages afterwards."""
    with suppress(AttributeError, OSError, TypeError):  # another system, or another C library
        ctypes.CDLL(None).malloc_trim(0)


def available_bytes() -> int | None:
    """Memory that a process could take without swapping, as Linux estimates it; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
