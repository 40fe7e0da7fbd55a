"""`adlm push`: a model folder to the Hugging Face Hub."""

from typing import Annotated

import tyro

from adlm.cli.progress import console
from adlm.models.hub import push_folder


def command(
    folder: Annotated[str, tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
    /,
    *,
    private: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Upload the model in a folder to the Hub, with its card. Run `hf auth login` first.

    Checkpoints, metrics and other files are not uploaded. A card that was edited on the Hub is kept.

    Args:
        folder: a folder that `adlm train` or `TextModel.save` wrote, or box, the bundled model.
        name: OWNER/NAME on the Hub.
        private: make a new repository private.
    """
    address = push_folder(folder, name, private=private or None)
    console().print(address, highlight=False, markup=False, soft_wrap=True)
