"""How much of a run's rows is computed and scored, known before any text is read.

Some of it depends on the text: how much of a padded row is padding, how many of its tokens are anchors. What was
counted on the corpora of the recipes is in a table here; for any other, rows are taken as full and every token as an
anchor, so that work and time are at their highest.
"""

from pathlib import Path
from typing import NamedTuple

from adlm.anchors.rules import AnchorRule, NoToken, RandomFraction, RareInSequence
from adlm.data.anchored_process import AnchoredProcess
from adlm.data.config import Corpus
from adlm.data.prompts import Prompts
from adlm.data.synthetic import Synthetic
from adlm.data.table import DataConfig
from adlm.data.together import Together
from adlm.data.tokenizer import load_tokenizer
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ConfigError
from adlm.models.network import Vocabulary
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo
from adlm.objectives.objective import MaskedObjective, Objective
from adlm.train.run import Run

VOCABULARIES = {
    "gpt2": Vocabulary(50_258, 50_257),
    "bert-base-uncased": Vocabulary(30_522, 103),
    "characters": Vocabulary(30, 29),
}
_STORIES = Vocabulary(331, 330)  # the words of the grammar


class Known(NamedTuple):
    """Counted on a corpus: `anchors` is the fraction of the text that occurs at most five times in its row, `text` the
    fraction of positions that are not padding."""

    anchors: float = 1.0
    text: float = 1.0


# By source, tokenizer and length of rows.
KNOWN = {
    ("books", "bpe:2048", 128): Known(0.94),
    ("stories", "words", 64): Known(0.79),
    ("text8", "characters", 256): Known(0.10),
    ("wikitext2", "bpe:8192", 128): Known(0.87),
    ("tinystories", "bpe:4096", 256): Known(0.51),
    ("lm1b", "bert-base-uncased", 128): Known(0.99, text=0.24),
    ("openwebtext", "gpt2", 1024): Known(0.60),
}


def known_vocabulary(data: DataConfig) -> Vocabulary:
    """The vocabulary that `data` will have, before any of it is read."""
    if isinstance(data, Synthetic | AnchoredProcess):
        return Vocabulary(data.vocabulary, data.vocabulary - 1)
    if isinstance(data, Together):
        return known_vocabulary(data.parts[0])
    assert isinstance(data, Corpus | Prompts)
    name = data.tokenizer
    if name in VOCABULARIES:
        return VOCABULARIES[name]
    if name.startswith("bpe:") and name[4:].isdigit():
        return Vocabulary(int(name[4:]), int(name[4:]) - 1)
    if name == "words" and isinstance(data, Corpus) and data.source.startswith("stories"):
        return _STORIES
    if Path(name).exists():
        roles = load_tokenizer(name).roles
        return Vocabulary(roles.vocab_size, roles.mask_id)
    if isinstance(data, Corpus):
        data.open()  # if the file is missing, that is the error to tell
    raise ConfigError(
        f"cannot plan a run with the tokenizer {name!r}",
        "the size of its vocabulary is not known here",
        f"name a file or folder with it, bpe:SIZE, or one of {', '.join(VOCABULARIES)}",
        subject=name,
    )


def row_length(data: DataConfig) -> int:
    """The number of tokens per row."""
    if isinstance(data, Corpus):
        return data.packing.length
    if isinstance(data, Together):
        return row_length(data.parts[0])
    assert isinstance(data, AnchoredProcess | Synthetic | Prompts)
    return data.length


class WorkFractions(NamedTuple):
    """Of the positions of a batch: those that are computed at all, those whose loss is taken, those whose anchor
    loss is taken."""

    computed: float
    scored: float
    anchors: float


def fractions(run: Run) -> WorkFractions:
    """About: masked models score one half of the text on average, left-to-right ones all of it, and block diffusion
    (b + 1) / 2b.

    Padding is left out of the work (`models/unpadded.py`), except if it is predicted and in time-conditioned networks.
    Block diffusion is counted with it: how much is left out depends on the sizes of blocks.
    """
    known = Known()
    if isinstance(run.data, Corpus):
        source = run.data.source.split(":")[0]  # stories:40000 are stories
        known = KNOWN.get((source, run.data.tokenizer, run.data.packing.length), known)
    scored = 1.0 if run.network.causal else 0.5
    if sizes := block_sizes(run):
        scored = sum(map(masked_fraction, sizes)) / len(sizes)
    anchors = _anchors(run.objective, known, scored) * known.text
    computes_all = run.network.time_conditioned or run.network.attention == "block"
    return WorkFractions(1.0 if computes_all else known.text, scored * known.text, anchors)


def block_sizes(run: Run) -> tuple[int, ...]:
    """The sizes of the blocks that are read in equal parts of a run, 0 for whole rows; empty if rows are not read in
    blocks. If sizes are drawn for each row, all rows of a batch take as much work as those with the smallest."""
    masking = run.objective.corruption if isinstance(run.objective, MaskedObjective) else None
    if not isinstance(masking, BlockMasking):
        return ()
    if masking.progressive:
        return masking.sizes
    return (min((size for size in masking.sizes if size), default=0),)


def copies(run: Run) -> int:
    """How often each row is read in a step."""
    return run.objective.corruption.copies if isinstance(run.objective, MaskedObjective) else 1


def masked_fraction(block_size: int) -> float:
    """The mean fraction of a block that is masked: of 1 / b, ..., b / b."""
    return (block_size + 1) / (2 * block_size) if block_size else 0.5


def _anchors(objective: Objective, known: Known, scored: float) -> float:
    """Fraction of the text at which the anchor term is taken."""
    if not isinstance(objective, Anelbo | AnchoredCrossEntropy) or objective.gamma == 0:
        return 0.0
    among = scored if isinstance(objective, Anelbo) and objective.masked_only else 1.0
    return among * objective.fraction * _marked(objective.rule, known)


def _marked(rule: AnchorRule, known: Known) -> float:
    if rule == RareInSequence(5):
        return known.anchors
    if isinstance(rule, RandomFraction):
        return rule.fraction
    return 0.0 if isinstance(rule, NoToken) else 1.0
