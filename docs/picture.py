"""Makes docs/unmasking.svg, a moving picture of a model writing: a token is gray as soon as the anchor stage expects it
and colored once it is written.

python docs/picture.py [MODEL] [--seed N] [--out FILE]
"""

import argparse
from html import escape
from pathlib import Path
from typing import NamedTuple

import adlm
from adlm_studies.report.recording import record_generation
from adlm_studies.report.sections import Player

COLUMNS, CHARACTER, LINE, MARGIN = 64, 8.4, 30, 24
SECONDS, PAUSE = 9.0, 3.0
# From early to late; readable on light and dark.
EARLY, LATE = (217, 119, 6), (37, 99, 235)
END = "·"


class Word(NamedTuple):
    """A token, and the fractions of the run after which it is expected for good and written."""

    text: str
    expected: float
    written: float


def words_of(player: Player) -> list[Word]:
    expected, written, text = dict[int, int](), dict[int, int](), dict[int, str]()
    for frame in player.frames:
        text.update((position, token) for position, token in frame.tokens if token is not None)
    for number, frame in enumerate(player.frames):
        written.update((position, number) for position, token in frame.tokens if token is not None)
        for position, ranking, _ in frame.predictions:
            if ranking and ranking[0][0] == text[position]:
                expected.setdefault(position, number)
            else:
                expected.pop(position, None)  # it changed its mind
    last = len(player.frames) - 1
    positions = range(next((position for position in sorted(text) if text[position] == END), len(text)))
    return [Word(text[i], min(expected.get(i, last), written[i]) / last, written[i] / last) for i in positions]


def colour(fraction: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * fraction):02x}" for a, b in zip(EARLY, LATE, strict=True))


def svg(words: list[Word]) -> str:
    x, y, body, total = 0.0, 1, [], SECONDS + PAUSE
    for word in words:
        text = word.text
        if x and x + len(text) > COLUMNS:
            x, y, text = 0.0, y + 1, text.lstrip()
        width, left, top = len(text) * CHARACTER, MARGIN + x * CHARACTER, MARGIN + y * LINE
        expected, written = (max(0.001, fraction * SECONDS / total) for fraction in (word.expected, word.written))
        body.append(
            f'<rect x="{left + 1:.1f}" y="{top - 17}" width="{max(4.0, width - 2):.1f}" height="22" rx="4" '
            f'fill="#94a3b8" opacity=".3">{_animated("opacity", ".3", "0", written, total)}</rect>'
            f'<text x="{left:.1f}" y="{top}" fill="#94a3b8" opacity="0" xml:space="preserve">{escape(text)}'
            f"{_animated('opacity', '0', '1', expected, total)}"
            f"{_animated('fill', '#94a3b8', colour(word.written), written, total)}</text>"
        )
        x += len(text)
    width, height = 2 * MARGIN + COLUMNS * CHARACTER, 2 * MARGIN + (y + 1) * LINE
    legend = (
        f'<text x="{MARGIN}" y="{height - 14}" font-size="12" fill="#94a3b8">expected by the anchor stage; written '
        f'<tspan fill="{colour(0)}">early</tspan> to <tspan fill="{colour(1)}">late</tspan></text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">'
        f"{''.join(body)}{legend}</svg>\n"
    )


def _animated(what: str, before: str, after: str, at: float, total: float) -> str:
    times = f"0;{at:.3f};{min(1, at + 0.012):.3f};1"
    return (
        f'<animate attributeName="{what}" values="{before};{before};{after};{after}" keyTimes="{times}" dur="{total}s" '
        'repeatCount="indefinite"/>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="box")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("unmasking.svg"))
    options = parser.parse_args()
    model = adlm.load(options.model)
    way = {"sampler": "confidence", "block_size": 4, "tokens_per_step": 1, "top_p": 0.8, "max_new_tokens": 64}
    player = record_generation(model, title="", seed=options.seed, frames=65, **way)
    words = words_of(player)
    options.out.write_text(svg(words), encoding="utf-8")
    print("".join(word.text for word in words), f"-> {options.out}", sep="\n")


if __name__ == "__main__":
    main()
