"""Evaluation: functions that take a model (or its folder or name) and return a `Result`.

    perplexity   bits and perplexity of held-out text: exact, or a clean bound
    zero_shot    perplexity on seven texts of other kinds
    generation   generative perplexity, entropy, repetition, copies and MAUVE of texts
    frontier     the same over samplers and steps, with speed
    anchors      what the anchors of a two-stage model do
    decisions    whether the probabilities of decisions are calibrated
    infilling    words, phrases and sentences that a model restores in held-out texts
    stories      exact measures on generated stories
    compare      two results of the same text, paired item by item

Long evaluations take `out`, the file of the result: partial results are kept beside it, and a second call with the same
arguments resumes. Under `torchrun` processes share the work and return the same result; call several evaluations inside
one `adlm.distributed.joined()`.
"""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

if TYPE_CHECKING:
    from adlm.evaluate.anchor_study import anchors
    from adlm.evaluate.comparison import compare
    from adlm.evaluate.decision_calibration import decisions
    from adlm.evaluate.generated_text import generation
    from adlm.evaluate.hole_filling import infilling
    from adlm.evaluate.judge import Judge, open_judge
    from adlm.evaluate.likelihoods import perplexity
    from adlm.evaluate.result import Figure, Result, read_result
    from adlm.evaluate.sampler_frontier import frontier
    from adlm.evaluate.story_measures import stories
    from adlm.evaluate.zero_shot_sets import zero_shot

__all__ = [
    "Figure",
    "Judge",
    "Result",
    "anchors",
    "compare",
    "decisions",
    "frontier",
    "generation",
    "infilling",
    "open_judge",
    "perplexity",
    "read_result",
    "stories",
    "zero_shot",
]

# Fetched when first used, so that comparing stored results does not wait for torch.
__getattr__ = lazy_names(
    __name__,
    {
        "anchor_study": ("anchors",),
        "comparison": ("compare",),
        "decision_calibration": ("decisions",),
        "generated_text": ("generation",),
        "hole_filling": ("infilling",),
        "judge": ("Judge", "open_judge"),
        "likelihoods": ("perplexity",),
        "result": ("Figure", "Result", "read_result"),
        "sampler_frontier": ("frontier",),
        "story_measures": ("stories",),
        "zero_shot_sets": ("zero_shot",),
    },
)
