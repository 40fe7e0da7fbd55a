"""This package's tokenizers as transformers' own: masks are read where they are written, rows begin as in training."""

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from adlm.data.packing import Packing
from adlm.data.tokenizer import MASK, Tokenizer


def fast_tokenizer(tokenizer: Tokenizer, rows: Packing, *, causal: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers with the same ids.

    Special tokens written out in a text are read as such, as is usual there: `[MASK]` is the mask. Where words and the
    spaces before them are one token, the space before a mask is part of it. A text begins as the rows of training did;
    the end token is not added, since a prompt has not ended.

    Args:
        causal: for a left-to-right model: texts begin with the mask token, from which it starts.
    """
    roles, backend = tokenizer.roles, Backend.from_str(tokenizer.backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    names = {index: token for token, index in vocabulary.items()}
    mask = names.get(roles.mask_id, MASK)
    spaced = any(len(token) > 1 and token[0] in " Ġ" for token in vocabulary)
    backend.add_special_tokens([AddedToken(mask, special=True, lstrip=spaced and not causal, normalized=False)])
    names[roles.mask_id] = mask
    begin = [*([roles.mask_id] if causal else []), *rows.frame(roles)[0]]
    backend.post_processor = processors.TemplateProcessing(
        single=[*(names[index] for index in begin), "$A"],
        pair=[*(names[index] for index in begin), "$A", "$B"],
        special_tokens=[(names[index], index) for index in dict.fromkeys(begin)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        mask_token=mask,
        pad_token=names[roles.pad_id],
        eos_token=names[roles.eos_id],
        bos_token=mask if causal else names[roles.bos_id],
        unk_token=next((token for token in ("<unk>", "[UNK]") if token in vocabulary), None),
        model_max_length=rows.length,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left" if causal else "right",
        clean_up_tokenization_spaces=False,
    )
