"""Generate texts with the bundled model, then watch one being written."""

import adlm

model = adlm.load("box")
for text in model.generate("Once upon a time", n=2, seed=1, max_new_tokens=32):
    print(text, end="\n\n")


def show(event: adlm.samplers.StepEvent) -> None:
    """Print the tokens that were written in this step."""
    fresh = event.tokens[0][event.fresh[0]].tolist()
    if fresh:
        print(f"step {event.step:3}: {model.tokenizer.decode(fresh)!r}")


print(model.generate("One day", seed=2, max_new_tokens=16, on_step=show)[0])
