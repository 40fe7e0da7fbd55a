"""Rows in which some positions read the features of the position before, as in Coconut (arXiv 2412.06769).

In place of the embedding of token c, position c + 1 reads the final feature of position c: everything the model had to
say there, instead of one token drawn from it. Such a token is called a thought. A position cannot be computed before
the one it reads, but all earlier ones are computed once and cached.

Shapes: B rows, L positions, D width, N output positions.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from adlm.errors import ConfigError, OutOfRange
from adlm.models.cache import Cache
from adlm.models.language_model import LanguageModel
from adlm.models.layers import shift_right, starts_of
from adlm.types import Features


def fed_features(
    model: LanguageModel,
    tokens: Tensor,
    first: int,
    count: int,
    t: Tensor | None = None,
    *,
    segments: Tensor | None = None,
    output_mask: Tensor | None = None,
) -> Features:
    """As `model.features`, but tokens first .. first + count - 1 of each row are thoughts.

    Each position is computed once, with gradients through all that it has read: those before the thoughts in one pass,
    thoughts one by one, the rest in one pass. These passes store their activations, whatever `checkpoint_activations`
    says. For models with a cache.

    Args:
        first: the same column in every row; texts of different lengths are padded on the left.
        t, segments, output_mask: as in `features`.
    """
    _check_span(tokens, first, count)
    model.check_cached("thoughts")
    if count == 0:
        return model.features(tokens, t, segments=segments, output_mask=output_mask)
    cache = Cache(len(tokens), tokens.shape[1], t, segments)
    inputs = shift_right(tokens, model.start_id, segments)
    # No weight changes between the passes, so what is derived from them is made once, with gradients of its own.
    with_gradients = torch.is_grad_enabled()
    with model.inference_weights(), torch.set_grad_enabled(with_gradients):
        return _read_in_passes(model, inputs, range(first + 1, first + count + 1), cache, output_mask)


@torch.no_grad()
def read_fed(model: LanguageModel, tokens: Tensor, first: int, count: int, cache: Cache) -> Features:
    """A first `model.extend` in which tokens first .. first + count - 1 are thoughts, as in `fed_features`.

    Returns `final` [B, count + 1, D]: after each thought, and after everything, which predicts the next token.
    """
    _check_span(tokens, first, count)
    if cache.length:
        raise ConfigError("thoughts need an empty cache: make a new one", subject="cache")
    inputs = model.cached_inputs(tokens, cache)
    fed = range(first + 1, first + count + 1)
    features = _read_in_passes(model, inputs, fed, cache, _at_columns(inputs, [*fed, -1]))
    final = features.final.unflatten(0, (len(tokens), -1))
    # If nothing follows the thoughts, the last of them is the end too.
    return features._replace(final=torch.cat([final[:, :count], final[:, -1:]], 1))


def _read_in_passes(
    model: LanguageModel, inputs: Tensor, fed: range, cache: Cache, output_mask: Tensor | None
) -> Features:
    """The features of new rows, in which positions `fed` read the final feature of the one before.

    A position at which a segment begins has none before it and reads its own token.

    Args:
        inputs: [B, L], what the other positions read.
        cache: an empty one; afterwards it has read all L positions.
        output_mask: [B, L] bool; with it `final` is [N, D].
    """
    vectors = model.embed_inputs(inputs)
    length = vectors.shape[1]
    segments = cache.segments_after(length)
    begins = None if segments is None else starts_of(segments)[..., None]
    numbers = torch.arange(inputs.numel(), device=inputs.device).view_as(inputs)
    bounds = [0, *range(fed.start, min(fed.stop, length)), length]
    parts: list[Features] = []
    read_at: list[Tensor] = []
    before: Tensor | None = None
    for start, end in pairwise(bounds):
        x = vectors[:, start:end]
        if before is not None:
            if begins is not None:
                before = torch.where(begins[:, start : start + 1], x[:, :1], before)
            x = torch.cat([before.to(x.dtype), x[:, 1:]], 1)
        # The last position is what the next part begins with.
        these = None if output_mask is None else output_mask[:, start:end] | _at_columns(x[..., 0], [-1])
        part = model.extend_vectors(x, cache, these)
        cache.length += end - start
        parts.append(part)
        if these is None:
            before = part.final[:, -1:]
        else:
            before = part.final[these.sum(-1).cumsum(-1) - 1][:, None]
            read_at.append(numbers[:, start:end][these])
    anchors = [part.anchor for part in parts if part.anchor is not None]
    anchor = torch.cat(anchors, 1) if anchors else None
    if output_mask is None:
        return Features(torch.cat([part.final for part in parts], 1), anchor)
    return Features(_chosen(torch.cat([part.final for part in parts]), torch.cat(read_at), output_mask), anchor)


def _chosen(final: Tensor, numbers: Tensor, output_mask: Tensor) -> Tensor:
    """The features [N, D] of the output positions [B, L], row by row, from those of positions with these numbers."""
    order = numbers.argsort()
    return final[order[output_mask.flatten()[numbers[order]]]]


def _at_columns(like: Tensor, columns: Sequence[int]) -> Tensor:
    """[B, L] bool, as large as `like`: True at these columns of every row."""
    chosen = torch.zeros_like(like, dtype=torch.bool)
    chosen[:, list(columns)] = True
    return chosen


def _check_span(tokens: Tensor, first: int, count: int) -> None:
    """Refuse thoughts that do not lie within the rows."""
    length = tokens.shape[1]
    if first < 0 or count < 0 or first + count > length:
        raise OutOfRange("thoughts", (first, first + count), f"columns of rows of {length} tokens")
