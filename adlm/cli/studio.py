"""`adlm studio`: a page on which texts appear around their anchors."""

import sys
import threading
import webbrowser
from typing import Annotated

import tyro

from adlm.errors import optional_module
from adlm.serve.limits import ServerLimits


def command(
    model: Annotated[str, tyro.conf.Positional] = "box",
    /,
    *,
    beside: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    port: int = 8000,
    no_browser: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: str = "auto",
    limits: ServerLimits = ServerLimits(),  # noqa: B008 # a frozen value
) -> None:
    """Open a page on which you can watch a model write and edit the text. It is served to this machine only.

    Args:
        model: the folder of a model, its name on the Hugging Face Hub, or box, the bundled model.
        beside: another model to compare with; may be repeated.
        port: 0 takes any free one.
        no_browser: only print the address.
        device: auto, cpu, cuda or mps.
        limits: limits on requests.
    """
    for package in ("fastapi", "uvicorn"):
        optional_module(package, extra="serve", purpose="the studio")
    from adlm.serve.server import Service, names_for, serve

    service = Service(names_for([model, *beside]), port=port, device=device, studio=True, limits=limits)
    with service.bound() as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        print(f"the studio is at {address}", file=sys.stderr)
        if not no_browser:
            # The socket listens already: the page comes as soon as the models are there.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        serve(service, listening)
