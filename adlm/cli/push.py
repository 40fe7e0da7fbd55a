"""`adlm push`: a model folder to the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import tyro

from adlm.cli.progress import console
from adlm.models.hub import push_folder


def command(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
    /,
    *,
    private: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Put the model in a folder on the Hub, with its card; `hf auth login` comes first.

    Checkpoints, metrics and other files stay here. A card on the Hub that somebody edited stays as it is there.

    Args:
        folder: that `adlm train` or `TextModel.save` wrote.
        name: on the Hub; others load the model by it.
        private: where it is new, only its owner sees it.
    """
    address = push_folder(folder, name, private=private or None)
    console().print(address, highlight=False, markup=False, soft_wrap=True)
