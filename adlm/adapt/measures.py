"""What is measured before and after: the bound at each block size, and speed and quality of each way to decode."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from adlm.data.table import Table
from adlm.distributed import DistributedContext
from adlm.models.language_model import LanguageModel
from adlm.objectives.likelihood import table_perplexity
from adlm.text_model import TextModel
from adlm.types import Estimate

_TEXTS, _TOKENS, _ROUNDS = 4, 64, 2
EXACT = ("left-to-right", "draft-and-verify")  # samplers of one distribution


class Decoding(NamedTuple):
    """The speed and quality of one way to decode: tokens per second, and nats per token under the source."""

    name: str
    options: dict[str, Any]
    tokens_per_second: float
    judged_nats: float
    sample: str


def bounds(
    network: LanguageModel,
    table: Table,
    sizes: Sequence[int],
    *,
    num_rows: int,
    draws: int,
    batch: int,
    context: DistributedContext,
) -> dict[int, Estimate]:
    """Nats per token of held-out rows, read in blocks of each size: exact for 1, else a bound."""
    return {
        size: table_perplexity(
            network.in_blocks(size), table, num_rows=num_rows, draws=draws, batch=batch, context=context
        ).nats_per_token
        for size in sizes
    }


def ways_to_decode(sizes: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The ways in which a model with these block sizes can write, as options of `TextModel.generate`."""
    found: dict[str, dict[str, Any]] = {}
    for size in sizes:
        if size == 1:
            found["left to right"] = {"sampler": "left-to-right"}
            continue
        read = f"blocks of {size}" if size else "whole rows"
        for count in (1, 2):
            options = {"sampler": "confidence", "block_size": size, "tokens_per_step": count}
            found[f"{read}, {count} per pass"] = options
    if (largest := max(sizes)) > 1 and 1 in sizes:
        found[f"draft and verify {largest}"] = {"sampler": "draft-and-verify", "block_size": largest}
    return found


def decodings(source: TextModel, adapted: TextModel, sizes: Sequence[int], *, seed: int = 0) -> list[Decoding]:
    """Speed and quality of the source and of each way to write with the adapted model, timed in turns."""
    limit = min(_TOKENS, source.config.packing.length // 2)
    ways: dict[str, tuple[TextModel, dict[str, Any]]] = {
        "source, left to right": (source, {"sampler": "left-to-right"})
    }
    ways |= {name: (adapted, options) for name, options in ways_to_decode(sizes).items()}

    def write(model: TextModel, options: dict[str, Any], *, stop: bool) -> list[str]:
        return model.generate(n=_TEXTS, seed=seed, max_new_tokens=limit, stop=stop, **options)

    texts = {name: write(*way, stop=True) for name, way in ways.items()}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):  # in turns: other load then meets all of them
        for name, way in ways.items():
            start = time.perf_counter()
            write(*way, stop=False)
            best[name] = min(best[name], time.perf_counter() - start)
    return [
        Decoding(name, options, _TEXTS * limit / best[name], _judged(source, texts[name]), texts[name][0])
        for name, (_, options) in ways.items()
    ]


def _judged(judge: TextModel, texts: Sequence[str]) -> float:
    """Nats per token of texts under a left-to-right model, without the end, which texts of limited length may lack."""
    end = len(judge.config.packing.frame(judge.tokenizer.roles)[1])
    fitting = [_fitting(judge, text) for text in texts]
    surprises = [judge.score(text).surprise for text in fitting if text]
    nats = [each for surprise in surprises for each in surprise[: len(surprise) - end]]
    return sum(nats) / max(1, len(nats))


def _fitting(judge: TextModel, text: str) -> str:
    """The beginning of a text that fits the judge's rows: bytes that make no character are more tokens when read."""
    room = judge.rows.room(()) - len(judge.rows.end)
    while (count := len(judge.tokenizer.encode_known(text))) > room:
        text = text[: len(text) * room // count]
    return text
