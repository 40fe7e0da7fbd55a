"""Log-probabilities of the tokens of a text, as OpenAI's clients read them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from adlm.samplers.filters import Sites
from adlm.samplers.state import Prediction


class Logprobs:
    """How likely the model found the token drawn last at each position, before any filter; and its likeliest ones.

    Args:
        count: how many of the most likely tokens are kept.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.drawn: Tensor | None = None  # [B, L]
        self.top: Tensor  # [B, L, k]
        self.ids: Tensor

    def __call__(self, sites: Sites, prediction: Prediction) -> None:
        logs = prediction.raw.log_softmax(-1)
        top = logs.topk(min(self.count, logs.shape[-1] - 1))
        if self.drawn is None:
            shape, k = sites.tokens.shape, top.values.shape[-1]
            self.drawn, self.top = logs.new_zeros(shape), logs.new_zeros(*shape, k)
            self.ids = sites.tokens.new_zeros(*shape, k)
        where = sites.row, sites.position
        self.drawn[where] = logs.gather(-1, prediction.drawn[:, None])[:, 0]
        self.top[where], self.ids[where] = top.values, top.indices

    def of(self, row: int, positions: Sequence[int], name: Callable[[int], str]) -> dict[str, Any]:
        """Of the tokens at these positions of a row."""
        if self.drawn is None or not positions:
            return {"token_logprobs": [], "top_logprobs": [] if self.count else None}
        names: list[dict[str, float]] = []
        for ids, values in zip(self.ids[row, positions].tolist(), self.top[row, positions].tolist(), strict=True):
            named: dict[str, float] = {}
            for i, value in zip(ids, values, strict=True):
                named.setdefault(name(i), round(value, 6))  # parts of characters may look the same
            names.append(named)
        drawn = [round(value, 6) for value in self.drawn[row, positions].tolist()]
        return {"token_logprobs": drawn, "top_logprobs": names if self.count else None}


def from_token(logprobs: dict[str, Any] | None, first: int) -> dict[str, Any] | None:
    """The part from a token on; None if there is none."""
    if logprobs is None or first >= len(logprobs["tokens"]):
        return None
    return {name: values if values is None else values[first:] for name, values in logprobs.items()}
