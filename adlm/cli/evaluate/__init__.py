"""`adlm evaluate`: one file per evaluation, each of which calls the function of that name in `adlm.evaluate`."""

COMMANDS = {
    "anchors": "both stages of a two-stage model by noise level, and what the anchors tell the denoiser",
    "compare": "compare two results on the same text item by item: the difference, its error, z and p",
    "decisions": "how well decision probabilities are calibrated, for a hidden word and a few candidates",
    "frontier": "generative perplexity, entropy, MAUVE and speed over samplers and steps, with a chart",
    "generation": "generative perplexity, entropy, repetition, copying and MAUVE of generated text",
    "infilling": "how often a model restores words, phrases and sentences cut from held-out texts",
    "perplexity": "perplexity and bits of held-out text: exact for left-to-right models, otherwise a bound",
    "stories": "exact measures on generated stories: KL to the true process, flawless samples, common errors",
    "zero-shot": "perplexity on LAMBADA, PTB, WikiText, LM1B, AG News, PubMed and arXiv",
}
ABOUT = "Every evaluation writes its figures, their errors and its protocol as JSON, and resumes after an interruption."
