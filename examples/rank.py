"""Rank candidate sentences by likelihood. This model scores exactly from left to right; other readings give a bound."""

import adlm

CANDIDATES = (
    "The cat sat on the bed.",
    "The bed sat on the cat.",
    "Bed the on sat cat the.",
)

model = adlm.load("box")
scores = {text: model.score(text).nats for text in CANDIDATES}
for text, nats in sorted(scores.items(), key=lambda item: item[1].mean):
    print(f"{nats.mean:6.1f} nats  {text}")

# A single word, given all the others.
for word in ("happy", "purple"):
    text = f"The dog was very {word}."
    print(f"{word}: {model.score(text, span=word).nats.mean:.1f} nats")
