"""What a user may say of a checkpoint that is converted."""

from dataclasses import dataclass, fields
from typing import Literal

from adlm.errors import ModelError


@dataclass(frozen=True)
class Options:
    """What a user may say where a file does not, or to choose.

    Args:
        weights: the moving average (ema, where there is one) or the last step's (raw).
        heads: attention heads, where neither configuration nor buffers tell.
        length: tokens per row.
        rows: wrap: packed rows, of OpenWebText with a begin and an end token; crop: one document a row (LM1B).
        timed: the network follows the time.
        tokenizer: a name or folder, where the file carries none.
        mask_id: the mask token's id, if not the official one.
    """

    weights: Literal["ema", "raw"] | None = None
    heads: int | None = None
    length: int | None = None
    rows: Literal["wrap", "crop"] | None = None
    timed: bool | None = None
    tokenizer: str | None = None
    mask_id: int | None = None


def only(options: Options, known: tuple[str, ...], asked: str) -> Options:
    """The options, of which a file that says the rest itself leaves no more than `known` to choose."""
    idle = [
        field.name for field in fields(options) if field.name not in known and getattr(options, field.name) is not None
    ]
    if idle:
        raise ModelError(asked, f"the file says itself what {', '.join(idle)} would", "leave out these options")
    return options
