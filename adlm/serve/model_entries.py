"""What a served model is and can do, for clients that show a choice."""

from adlm.serve.responses import ModelEntry
from adlm.text_model import TextModel


def model_entry(name: str, model: TextModel, created: int) -> ModelEntry:
    """A model as `/v1/models` lists it."""
    network = model.network
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "adlm",
        "sampling": model.config.sampling,
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "length": model.config.packing.length,
        "stages": network.stages,
        "attention": network.attention,
        "block_sizes": list(dict.fromkeys(model.block_sizes)),
        "fills_holes": not model.both_sides.rows.one_way,
        "knows_all_words": model.tokenizer.knows_all_words,
    }
