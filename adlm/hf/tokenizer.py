"""This package's tokenizers as transformers' own."""

from transformers import PreTrainedTokenizerFast

from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer
from adlm.models.transformers_files import for_transformers


def fast_tokenizer(
    tokenizer: Tokenizer, packing: Packing, *, causal: bool, start: int | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers with the same ids: the one that `AutoTokenizer` loads from a model folder.

    Special tokens written out in a text are read as such: `[MASK]` is the mask. A text begins as the rows of training
    did.

    Args:
        causal: for a left-to-right model: texts begin with `start`, by default the mask token.
    """
    backend, settings = for_transformers(tokenizer, packing, causal=causal, start=start)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
