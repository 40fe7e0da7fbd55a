"""Freed tensors are used again: fresh pages are not paid for at every one."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from adlm.memory import keep_freed_memory
arranged = keep_freed_memory() if sys.argv[1] == "kept" else False
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    several = [np.ones(1 << 20, np.uint8) for _ in range(8)]
for _ in range(5):
    use()
before = faults()
for _ in range(50):
    use()
print(int(arranged), (faults() - before) / 50)
"""


def run(how, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    environment = {**kept, **more}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, env=environment
    )
    arranged, faults = done.stdout.split()
    return arranged == "1", float(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_freed_memory_is_used_again():
    arranged, kept = run("kept")
    if not arranged:
        pytest.skip("the C library is not glibc")
    assert kept < 20
    before = run("as it is")[1]
    if before < 100:
        pytest.skip(f"pages are large here: {before:.0f} faults without it")
    assert kept < before / 5


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
@pytest.mark.parametrize(
    "said", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_what_the_environment_says_holds(said):
    assert run("kept", **said)[0] is False


THREADS = """
import sys
import threading
from pathlib import Path
from adlm.memory import keep_freed_memory, release_freed_memory, share_freed_memory
arranged = (share_freed_memory if sys.argv[1] == "shared" else keep_freed_memory)()
import torch
torch.set_num_threads(1)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
weight, go = torch.randn(160, 4096), threading.Event()
def use(done):
    for _ in range(2):
        torch.randn(512, 160) @ weight
    done.set()
    go.wait()
torch.randn(512, 160) @ weight
before = resident()
for _ in range(12):  # one after another: no two of them compute at the same time
    done = threading.Event()
    threading.Thread(target=use, args=(done,)).start()
    done.wait()
release_freed_memory()
print(int(arranged), (resident() - before) / 2**20)
go.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_threads_that_have_computed_hold_nothing():
    def grown(how):
        done = subprocess.run([sys.executable, "-c", THREADS, how], capture_output=True, text=True, check=True)
        arranged, mebibytes = done.stdout.split()
        return arranged == "1", float(mebibytes)

    arranged, shared = grown("shared")
    if not arranged:
        pytest.skip("the C library is not glibc")
    assert shared < 16
    assert shared < grown("kept")[1] / 2
