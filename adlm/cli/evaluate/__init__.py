"""`adlm evaluate`: one file per evaluation, each of which calls the function of that name in `adlm.evaluate`."""

COMMANDS = {
    "anchors": "what the anchors of a two-stage model do: both stages by noise level, and what is handed over",
    "compare": "two results of the same text, paired item by item: the difference, its error, z and p",
    "frontier": "texts at each sampler and number of steps: generative perplexity, entropy, MAUVE, speed; a picture",
    "generation": "texts of a model or a file: generative perplexity, entropy, repetition, copies, MAUVE",
    "infilling": "words, phrases and sentences that a model restores in held-out texts",
    "perplexity": "bits and perplexity of held-out text: exact for left-to-right models, else a clean bound",
    "stories": "exact measures on generated stories: KL to the true process, flawless samples, what goes wrong",
    "zero-shot": "perplexity on texts of other kinds: LAMBADA, PTB, WikiText, LM1B, AG News, PubMed, arXiv",
}
ABOUT = "Every evaluation writes its figures, their errors and its protocol as JSON, and resumes after an interruption."
