"""Models behind HTTP: requests share the network's passes, and a page shows texts while they are written.

A request is an ordinary call of `TextModel` in a thread of its own, with a network whose passes are computed together
with those of other requests (`BatchedNetwork`). So samplers stay what they are, and a new request joins at the next
pass. Texts that are written from left to right go further: they are rows of one batch, whose steps one thread takes
(`RowBatch`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.serve.app import make_app
    from adlm.serve.batched_network import BatchedNetwork
    from adlm.serve.batcher import Batcher
    from adlm.serve.engine import Engine
    from adlm.serve.limits import ServerLimits
    from adlm.serve.server import Service, serve

__all__ = ["BatchedNetwork", "Batcher", "Engine", "ServerLimits", "Service", "make_app", "serve"]

_MODULES = {
    "BatchedNetwork": "batched_network",
    "Batcher": "batcher",
    "Engine": "engine",
    "ServerLimits": "limits",
    "Service": "server",
    "make_app": "app",
    "serve": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
