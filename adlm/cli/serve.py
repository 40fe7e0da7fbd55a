"""`adlm serve`: models behind HTTP, for OpenAI's clients and others."""

import os
import sys
from pathlib import Path
from typing import Annotated

import tyro

from adlm.errors import optional_module
from adlm.serve.limits import ServerLimits


def command(
    model: Annotated[str, tyro.conf.Positional] = "box",
    /,
    *,
    beside: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    key_file: Path | None = None,
    workers: int = 1,
    device: str = "auto",
    studio: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    limits: ServerLimits = ServerLimits(),  # noqa: B008 # a frozen value
) -> None:
    """Serve models over HTTP: /v1/completions as OpenAI's clients expect, /v1/generate, /v1/infill, /v1/score.

    Stops on SIGTERM and Ctrl+C, after running requests have finished. The log has routes and times, never texts.

    Args:
        model: the folder of a model, its name on the Hugging Face Hub, or box, the bundled model.
        beside: another model, requested by its name; may be repeated.
        host: unless this is 127.0.0.1, other machines can reach the server and a key is needed.
        port: 0 takes any free one.
        key: key that requests must send as `Authorization: Bearer KEY`. ADLM_KEY is safer, because lists of processes
            do not show it.
        key_file: several keys, one per line: the name of a client, a space, its key.
        workers: processes behind the port, each with the models; with several GPUs each has its own, on a CPU a
            fraction of the cores.
        device: auto, cpu, cuda or mps.
        studio: also serve the page of `adlm studio`.
        limits: limits on requests.
    """
    for package in ("fastapi", "uvicorn"):
        optional_module(package, extra="serve", purpose="serving")
    from adlm.serve.server import Service, names_for, read_keys, serve

    service = Service(
        names_for([model, *beside]),
        host,
        port,
        key if key is not None else os.environ.get("ADLM_KEY"),
        workers,
        device,
        studio,
        {} if key_file is None else read_keys(key_file),
        limits,
    )
    with service.bound() as listening:
        # Told before anything is loaded: who connects now is answered as soon as the models are there.
        address = f"[{host}]" if ":" in host else host
        print(f"serving {', '.join(service.models)} on http://{address}:{listening.getsockname()[1]}", file=sys.stderr)
        serve(service, listening)
