"""Makes docs/unmasking.svg, a moving picture of a model writing: each token appears when it was revealed.

python docs/picture.py [MODEL FOLDER] [--seed N]
"""

import argparse
from html import escape
from pathlib import Path

import adlm
from adlm.samplers import StepView

COLUMNS, CHARACTER, LINE, MARGIN = 64, 8.4, 30, 24
SECONDS, PAUSE = 6.0, 3.0
# From early to late; readable on light and dark.
EARLY, LATE = (217, 119, 6), (37, 99, 235)


def colour(share: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(EARLY, LATE, strict=True))


def svg(words: list[str], shares: list[float]) -> str:
    """Words with the share of the run after which each appears."""
    x, y, body, total = 0.0, 1, [], SECONDS + PAUSE
    for word, share in zip(words, shares, strict=True):
        if x and x + len(word) > COLUMNS:
            x, y = 0.0, y + 1
            word = word.lstrip()
        width, left, top = len(word) * CHARACTER, MARGIN + x * CHARACTER, MARGIN + y * LINE
        at = max(0.001, share * SECONDS / total)
        body.append(
            f'<rect x="{left + 1:.1f}" y="{top - 17}" width="{max(4.0, width - 2):.1f}" height="22" rx="4" '
            f'fill="#94a3b8" opacity=".35"><animate attributeName="opacity" values=".35;.35;0;0" '
            f'keyTimes="0;{at:.3f};{min(1, at + 0.01):.3f};1" dur="{total}s" repeatCount="indefinite"/></rect>'
            f'<text x="{left:.1f}" y="{top}" fill="{colour(share)}" xml:space="preserve">{escape(word)}'
            f'<animate attributeName="opacity" values="0;0;1;1" keyTimes="0;{at:.3f};{min(1, at + 0.02):.3f};1" '
            f'dur="{total}s" repeatCount="indefinite"/></text>'
        )
        x += len(word)
    width, height = 2 * MARGIN + COLUMNS * CHARACTER, 2 * MARGIN + (y + 1) * LINE
    legend = (
        f'<text x="{MARGIN}" y="{height - 14}" font-size="12" fill="#64748b">revealed '
        f'<tspan fill="{colour(0)}">early</tspan> to <tspan fill="{colour(1)}">late</tspan></text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">'
        f"{''.join(body)}{legend}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="runs/demo/adlm")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = adlm.load(options.model)
    revealed: dict[int, float] = {}
    last: list[int] = []

    def watch(view: StepView) -> None:
        for place in view.fresh[0].nonzero()[:, 0].tolist():
            revealed[place] = view.step / view.tokens.shape[1]
        last[:] = view.tokens[0].tolist()

    (text,) = model.generate(seed=options.seed, sampler="confidence", tokens_per_step=1, watch=watch)
    end = model.tokenizer.roles.eos_id
    places = range(last.index(end) if end in last else len(last))
    out = Path(__file__).with_name("unmasking.svg")
    out.write_text(svg([model.tokenizer.token(last[i]) for i in places], [revealed[i] for i in places]))
    print(text, f"-> {out}", sep="\n")


if __name__ == "__main__":
    main()
