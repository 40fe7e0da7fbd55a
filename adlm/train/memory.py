"""How much memory a process has needed."""

import sys

import torch


def peak_memory(device: torch.device) -> int:
    """Bytes, at most so far: of the device, or of the process where it computes in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
