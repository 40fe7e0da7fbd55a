"""One door for all that can be converted: what a path holds decides who reads it."""

from pathlib import Path

from adlm.convert.from_official import Converted, from_official
from adlm.convert.from_transformers import from_transformers
from adlm.convert.options import Options
from adlm.convert.published import settings_of
from adlm.models.transformers_causal import KINDS


def converted(source: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """The model in a checkpoint of ADLM, MDLM, AR or SEDD, or in a folder of a causal model of transformers."""
    if source.is_dir() and settings_of(source, f"asked to convert {source}").get("model_type") in KINDS:
        return from_transformers(source, options)
    return from_official(source, options)
