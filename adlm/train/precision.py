"""Which number type is fast where."""

from functools import cache

import torch


@cache
def bf16_is_fast(device: torch.device | str) -> bool:
    """Whether the device multiplies bfloat16 in hardware; without that it is slower than float32, 100x on a CPU."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False
