"""The library that multiplies float32 matrices on a CPU: MKL, as PyTorch has it, or oneDNN.

On processors of other makers, MKL leaves AVX-512 unused; oneDNN does not, and is about twice as fast there
(`python -m benchmarks.core.products`). PyTorch gives float32 products to oneDNN only if they may be rounded to
bfloat16. Without AMX oneDNN multiplies them in float32 all the same, and only then is it used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Literal

import torch

Library = Literal["default", "onednn"]
# Multiplications of one product below which the time that oneDNN takes to begin outweighs what it gains.
_LEAST_WORK = 600_000
_turn, _inside, _before = Lock(), 0, "none"


@cache
def faster_library() -> tuple[Library, str]:
    """The library to use on this machine, and the reason. A rule, not a measurement: the same in every process."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return "default", "oneDNN is not faster without AVX-512"
    if _maker() in ("GenuineIntel", ""):
        return "default", "MKL is made for this processor"
    if not keeps_float32("onednn"):
        return "default", "oneDNN rounds float32 to bfloat16 on this processor"
    return "onednn", "MKL does not use AVX-512 on this processor, oneDNN does, in full float32"


@contextmanager
def multiplied_by(library: Library) -> Iterator[None]:
    """Inside, this process multiplies float32 matrices with the library, which "default" leaves as it is."""
    if library == "default":
        yield
        return
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def _change(by: int) -> None:
    """The setting is the process's: threads that want it at the same time are counted, and the last one restores it."""
    global _inside, _before
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # not in the stubs
    with _turn:
        if not _inside:
            _before = settings.fp32_precision
            settings.fp32_precision = "bf16"
        _inside += by
        if not _inside:
            settings.fp32_precision = _before


@contextmanager
def inference_products(x: torch.Tensor, outputs: int) -> Iterator[None]:
    """Inside, products of x [..., K] with matrices of about K x `outputs` take the faster library for their size.

    Where gradients are computed this does nothing: a training run chooses once, for its backward passes too.
    """
    small = x.numel() * outputs < _LEAST_WORK
    if small or torch.is_grad_enabled() or torch.compiler.is_compiling() or x.device.type != "cpu":
        yield
        return
    with multiplied_by(faster_library()[0]):
        yield


def keeps_float32(library: Library) -> bool:
    """Whether the library multiplies float32 matrices without rounding them to a shorter type."""
    x = 1 + torch.arange(256 * 256, dtype=torch.float32).view(256, 256) / 2**20  # neighbors are one number in bfloat16
    exact = torch.mm(x.double(), x.double())
    with multiplied_by(library):
        return bool(((x @ x).double() - exact).abs().max() < 1e-5 * exact.max())


def _maker() -> str:
    """The maker of the processor as Linux names it; empty if that is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")
