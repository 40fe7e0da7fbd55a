"""How often is another token drawn because a row was computed together with others?

    python -m benchmarks.sampling.rounding [MODEL] [--rows 16] [--block-size 4] [--texts 8]

The model writes texts. Then every block of them is predicted again from the blocks before it, alone and together with
rows at other blocks. A draw takes the token whose part of the interval from 0 to 1 holds a random number; the
probability of another token is what the two divisions of the interval do not share.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

import adlm
from adlm.samplers.filters import Filter, Sites, Temperature, TopP
from benchmarks._record import record

FILTERS: dict[str, tuple[Filter, ...]] = {
    "whole vocabulary": (),
    "top-p 0.9": (TopP(0.9),),
    "temperature 0.7": (Temperature(0.7),),
}


def intervals(logits: Tensor, sites: Sites, filters: tuple[Filter, ...]) -> tuple[Tensor, Tensor]:
    """Where the parts [N, V] of the tokens begin and end."""
    for each in filters:
        logits = each(logits, sites)
    p = logits.double().softmax(-1)
    ends = p.cumsum(-1)
    return ends - p, ends


def other_token(alone: Tensor, together: Tensor, sites: Sites, filters: tuple[Filter, ...]) -> Tensor:
    """The probability [N] that a random number gives another token."""
    (begin, end), (start, stop) = (intervals(logits, sites, filters) for logits in (alone, together))
    return 1 - (torch.minimum(end, stop) - torch.maximum(begin, start)).clamp_min(0).sum(-1)


@torch.no_grad()
def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?", default="box")
    options.add_argument("--rows", type=int, default=16)
    options.add_argument("--block-size", type=int, default=4)
    options.add_argument("--texts", type=int, default=8)
    given = options.parse_args()
    model = adlm.load(given.model)
    size, mask = given.block_size, model.tokenizer.mask_id
    network = model.in_blocks(size).network
    found = {name: torch.empty(0) for name in FILTERS}
    difference = 0.0
    with network.inference_weights():
        for text in model.generate(n=given.texts, max_new_tokens=48):
            ids = torch.from_numpy(model.tokenizer.encode(text)).long()[: size * 12]
            starts = [size * (1 + i % (len(ids) // size - 1)) for i in range(given.rows)]
            tokens = torch.stack(
                [F.pad(ids[: start + size], (0, len(ids) - start - size), value=mask) for start in starts]
            )
            columns = torch.arange(len(ids))
            where = torch.stack([(columns >= start) & (columns < start + size) for start in starts])
            tokens = tokens.masked_fill(where, mask)

            def logits(
                rows: slice, tokens: Tensor = tokens, starts: list[int] = starts, where: Tensor = where
            ) -> Tensor:
                own, count = tokens[rows], len(starts[rows])
                cache = network.finished_blocks(count, tokens.shape[1])
                return network.logits(network.read_block(own, starts[rows], cache, output_mask=where[rows]).final)

            together = logits(slice(None))
            alone = torch.cat([logits(slice(i, i + 1)) for i in range(given.rows)])
            sites = Sites(tokens, *where.nonzero(as_tuple=True))
            difference = max(difference, (alone - together).nan_to_num(0.0).abs().max().item())
            for name, filters in FILTERS.items():
                found[name] = torch.cat([found[name], other_token(alone, together, sites, filters)])
    rows = [
        {
            "drawn from": name,
            "probability of another token": float(p.mean()),
            "standard error": float(p.std() / len(p) ** 0.5),
            "texts of 64 tokens with one": float(1 - (1 - p.mean()) ** 64),
        }
        for name, p in found.items()
    ]
    record(
        "sampling_rounding",
        rows,
        conclusion={"largest difference of a logit": difference, "draws": len(found["top-p 0.9"])},
        method=f"{given.model} in blocks of {size}, {given.rows} rows together, {torch.get_num_threads()} threads",
    )


if __name__ == "__main__":
    main()
