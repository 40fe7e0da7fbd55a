r"""Put an adapted model into the package, in half precision, with its figures and those of its source in its card.

    adlm adapt STORIES15M --to anchored-block:4 --sizes 1 2 4 4 0 0 0 --adapter-rank 56 --prune-vocabulary \
        --length 256 --rows 16 --steps 1000 --data self:1280 --data STORIES --out runs/box-first
    adlm adapt runs/box-first --to anchored-block:4 --sizes 2 4 0 0 0 0 0 0 --holes 0.75 --adapter-rank 56 \
        --length 256 --rows 16 --steps 720 --seed 1 --data self:3072 --data STORIES --out runs/box-second
    adlm adapt runs/box-second --to anchored-block:4 --sizes 2 4 0 0 0 0 --holes 0.75 --adapter-rank 56 \
        --length 256 --rows 16 --steps 1300 --seed 2 --data self:4096 --data STORIES --out runs/box
    python docs/box.py runs/box-first runs/box-second runs/box --stories TEST.jsonl

STORIES15M is the folder of the llama2.c model (model.bin, tokenizer.bin); STORIES and TEST.jsonl are stories of
TinyStories to train on and to measure on. Everything is measured in half precision, as the model is shipped.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import adlm
from adlm.adapt.report import reading_name
from adlm.models.card import Facts
from adlm.text_model import TextModel
from adlm.types import Estimate

BOX = Path(adlm.__file__).parent / "box"
DRAWS, LIMIT = 4, 20_000_000
# See docs/results/box.md for what other samplers write.
SAMPLING = {"sampler": "left-to-right", "top_p": 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of each round of training; the last is bundled")
    parser.add_argument("--stories", type=Path, required=True, help="held-out stories (.jsonl, text)")
    parser.add_argument("--rows", type=int, default=64, help="texts of each to measure on")
    parser.add_argument(
        "--before", type=int, default=0, help="tokens read in earlier rounds, if `adlm adapt box` began"
    )
    options = parser.parse_args()
    folder = options.folders[-1]
    source, model = (TextModel.from_pretrained(each) for each in (options.folders[0] / "source", folder))
    own = folder / "self" / "valid.jsonl"
    model.network.half().float()  # rounded as it will be stored
    figures: dict[str, Estimate | float] = {}
    held_out = {"TinyStories, test": (options.stories, "text"), "samples of the source": (own, "response")}
    for name, (path, field) in held_out.items():
        figures[f"{name}: the source"] = nats(source, path, field, options.rows, 1 if source.block_sizes else None)
        for size in sorted(set(model.block_sizes), key=lambda size: (size == 0, size)):
            figures[f"{name}: {reading_name(size)}"] = nats(model, path, field, options.rows, size)
            print(name, reading_name(size), figures[f"{name}: {reading_name(size)}"], flush=True)
            if size > 1:
                label = f"{name}: {reading_name(size)}, lowest entropy first"
                figures[label] = nats(model, path, field, options.rows, size, "order:entropy")
                print(label, figures[label], flush=True)
    run = {"name": "box", "objective": (model.config.run or {})["objective"]}  # without the folders of this machine
    config = replace(model.config, sampling=SAMPLING, run=run)
    about = {f"nats per token, {name}": value for name, value in figures.items()}
    tokens = options.before + sum(json.loads((each / "adapt.json").read_text())["tokens"] for each in options.folders)
    data = DATA.format(tokens / 1e6)
    facts = Facts(licence="mit", language="en", data=data, figures=about, notes=NOTES)
    licence = (BOX / "LICENSE").read_text(encoding="utf-8")  # that of the source
    shutil.rmtree(BOX)
    TextModel(model.network.half(), config, model.tokenizer).save(BOX, facts=facts)
    (BOX / "LICENSE").write_text(licence, encoding="utf-8")
    size = sum(path.stat().st_size for path in BOX.iterdir())
    if size > LIMIT:
        raise SystemExit(f"{size / 1e6:.1f} MB: the box holds {LIMIT / 1e6:.0f}")
    print(json.dumps({name: str(value) for name, value in figures.items()}, indent=1))
    print(f"{BOX}: {size / 1e6:.1f} MB")
    print(*TextModel.from_pretrained("box").generate(n=2, seed=0), sep="\n\n")


def nats(
    model: TextModel, path: Path, field: str, rows: int, block_size: int | None, estimator: str | None = None
) -> Estimate:
    """Nats per token of the first texts of a file: exact from left to right and under an order, else a bound."""
    result = adlm.evaluate.perplexity(
        model,
        path,
        field=field,
        limit=rows,
        draws=DRAWS,
        block_size=block_size,
        estimator=estimator,
        documents=True,
        batch=8,
    )
    figure = result.figures["nats_per_token"]
    return Estimate(figure.value, figure.error or 0.0, figure.draws)


DATA = (
    "{:.1f} million tokens of stories of TinyStories (arXiv 2305.07759, CDLA-Sharing-1.0; its validation file and the "
    "beginning of its training file) and texts that the source sampled at temperature 1. The test file was held out."
)
NOTES = """
A small model of small stories: it shows how one network writes from left to right, in blocks and by filling holes, and
is fit for nothing else. It was adapted on a CPU from stories15M, a left-to-right model of karpathy's llama2.c (MIT):
6,952 of its 32,000 tokens are kept, its lower four layers are the anchor stage, its upper two the denoiser. From left
to right it is stories15M itself; low-rank adapters, all that was trained, read blocks and holes. Figures are of one
run. They are exact from left to right and where an order is named, else upper bounds.
"""


if __name__ == "__main__":
    main()
