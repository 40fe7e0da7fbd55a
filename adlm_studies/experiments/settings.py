"""What the studies train, by scale: the corpora, the budget, and every kind of model under it.

nano: minutes a model on one core; small: the CPU recipes, an hour or two; paper: the published ones.
"""

from dataclasses import replace

from adlm.data.config import Corpus
from adlm.data.packing import Padded, Wrapped
from adlm.errors import UnknownName
from adlm.models.stack import StackConfig
from adlm.recipes import published, small
from adlm.train.run import Run
from adlm.train.workload import row_length
from adlm_studies.experiments.training import splits_of

# Rows of 64 and small vocabularies: a model reads as much as it can in the few minutes it has.
NANO: dict[str, Corpus] = {
    "kjv": Corpus("kjv", "bpe:1024", Wrapped(64)),
    "wikitext2": Corpus("wikitext2", "bpe:1024", Wrapped(64)),
    "tinystories": Corpus("tinystories", "bpe:1024", Wrapped(64)),
    "text8": Corpus("text8", "characters", Wrapped(128, separated=False)),
    "stories": Corpus("stories:40000", "words", Padded(64, begin=False, crop=True, predict_padding=True)),
}
_SMALL = {"wikitext2": small.wikitext2, "tinystories": small.tinystories, "text8": small.text8}
_PAPER = {"openwebtext": published.openwebtext, "lm1b": published.lm1b}
# A million tokens for half a million weights: a larger network would see so few of them in the time that masked models
# hardly get beyond what single tokens tell. As published, an MDLM is as deep as the anchor stage.
STACK, STAGES = StackConfig(width=96, heads=4, layers=3), (3, 1)
STEPS, TOKENS = 600, 2048


def default_corpus(scale: str) -> str:
    """The corpus of studies of one: the King James Bible if the scale has it."""
    known = corpora(scale)
    return "kjv" if "kjv" in known else known[0]


def corpora(scale: str) -> tuple[str, ...]:
    """The corpora that a scale has runs for."""
    return tuple(NANO if scale == "nano" else _SMALL if scale == "small" else _PAPER)


def study_run(
    scale: str, corpus: str, kind: str, *, seed: int = 0, steps: int | None = None, rows_per_step: int = 0
) -> Run:
    """A run of a kind that recipes have, on a corpus of this scale; steps and rows per step are the recipe's own if
    they are not given."""
    if corpus not in corpora(scale):
        raise UnknownName(f"corpus at {scale} scale", corpus, corpora(scale))
    if scale == "nano":
        # Of some corpora only the smaller splits lie about; then the first of them is trained on.
        run = nano_run(replace(NANO[corpus], train=splits_of(NANO[corpus].open())[0]), kind)
    else:
        run = (_SMALL if scale == "small" else _PAPER)[corpus](kind)
    train = replace(run.train, seed=seed, steps=steps or run.train.steps)
    if rows_per_step:
        train = replace(train, tokens_per_step=rows_per_step * row_length(run.data), micro_batch_size=rows_per_step)
    return replace(run, train=train)


def nano_run(data: Corpus, kind: str) -> Run:
    """Two or three minutes on one core."""
    source = data.source.split(":")[0]
    run = small.cpu_run(
        f"{source}-{kind}",
        kind,
        data,
        STACK,
        STAGES,
        steps=STEPS,
        warmup=50,
        draws=4,
        rows=TOKENS // data.packing.length,
    )
    validation = replace(run.validation, every=200, num_rows=128)
    return replace(run, validation=validation, checkpoint=replace(run.checkpoint, every=200))
