"""Generate with several samplers from one seed, and print the time each one takes."""

import time

import adlm

model = adlm.load("box")
for sampler in ("ancestral", "confidence", "remdm-cap"):
    start = time.perf_counter()
    text = model.generate("One day", sampler=sampler, steps=16, seed=1, max_new_tokens=24)[0]
    print(f"{sampler}, {time.perf_counter() - start:.2f} s: {text}\n")
