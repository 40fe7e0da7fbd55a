"""Put a trained model into the package, in half precision, with the figures of its matched baseline in its card.

    adlm train box-adlm && adlm train box-mdlm-same-cost && python docs/box.py runs/box-adlm runs/box-mdlm-same-cost

Both are scored in half precision, as the one is shipped, on the same held-out paragraphs with the same masks.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import adlm
from adlm.data.config import Corpus
from adlm.models.card import Facts
from adlm.objectives.likelihood import table_perplexity
from adlm.text_model import TextModel
from adlm.train.run_folder import read_run
from adlm.types import Estimate
from adlm_studies.experiments.training import held_out

BOX = Path(adlm.__file__).parent / "box"
DRAWS, LIMIT = 8, 20_000_000
# What reads best, by eye: see docs/log.md.
SAMPLING = {"sampler": "ancestral", "steps": 256, "top_p": 0.8, "block_size": 8}
NAMES = {"box-adlm": "ADLM (this model)", "box-mdlm-same-cost": "MDLM of equal cost, its matched baseline"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs=2, help="of the model and of its matched baseline")
    parser.add_argument("--data", required=True, help="a sentence for the card: which part of the corpus this was")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    figures: dict[str, Estimate | float] = {}
    models = []
    for folder in options.folders:
        model = TextModel.from_pretrained(folder)
        model.network.half().float()  # rounded as it will be stored
        run = read_run(folder)
        assert isinstance(run.data, Corpus)
        table = held_out(run.data, model.tokenizer, options.cache)
        score = table_perplexity(model.network, table, draws=DRAWS)
        name = f"{NAMES[run.name]}, {sum(each.numel() for each in model.network.parameters()):,} parameters"
        figures[f"{name}: bound, nats per token of {len(table):,} held-out paragraphs"] = score.nats_per_token
        figures[f"{name}: perplexity, at most"] = score.perplexity
        models.append(model)
    model = models[0]
    facts = Facts(licence="cdla-sharing-1.0", language="en", data=options.data, figures=figures, notes=NOTES)
    if BOX.exists():
        shutil.rmtree(BOX)
    TextModel(model.network.half(), replace(model.config, sampling=SAMPLING), model.tokenizer).save(BOX, facts=facts)
    size = sum(path.stat().st_size for path in BOX.iterdir())
    if size > LIMIT:
        raise SystemExit(f"{size / 1e6:.1f} MB: the box holds {LIMIT / 1e6:.0f}")
    print(json.dumps({name: str(value) for name, value in figures.items()}, indent=1))
    print(f"{BOX}: {size / 1e6:.1f} MB")
    print(*TextModel.from_pretrained("box").generate(n=2, seed=0), sep="\n\n")


NOTES = """
A small model of small stories: it shows how anchored diffusion writes and fills in, and is fit for nothing else. It was
trained on a CPU by the recipe `box-adlm`, its matched baseline by `box-mdlm-same-cost`, on the same
stories in the same order.
"""


if __name__ == "__main__":
    main()
