"""Fill holes with the bundled model: freely, from a choice of words, and with a pattern."""

import adlm
from adlm.samplers import Choice, Pattern

model = adlm.load("box")

# [MASK] is one token; [MASK:1-3] is one to three, and the model chooses the length.
for text in model.infill("The little dog was [MASK:1-3] and went home.", n=3, seed=1):
    print(text)

# Constraints hold for one hole each, in the order of the holes.
holes = [Choice(("red", "blue", "green")), Pattern("one|two|three")]
print(model.infill("She had a [MASK] ball and [MASK] cats.", constraints=holes, seed=3)[0])
