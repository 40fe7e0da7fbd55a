"""One network, read in several ways: the bundled model scores and continues a text from left to right and in blocks."""

import adlm

model = adlm.load("box")
text = "Tom had a red ball. He liked to play with his ball."

for size in sorted({1, *model.block_sizes} - {0}):
    name = "left to right" if size == 1 else f"blocks of {size}"
    # Exact from left to right; in blocks an upper bound, with its standard error.
    nats = model.in_blocks(size).score(text, draws=16).nats
    print(f"{name}: {nats.mean:.1f} ± {nats.error:.1f} nats")
    way = {"sampler": "confidence", "block_size": size, "top_p": 0.9, "max_new_tokens": 24}
    print("   ", model.generate("Once upon a time", seed=1, **way)[0])
