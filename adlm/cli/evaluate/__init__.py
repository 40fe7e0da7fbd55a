"""`adlm evaluate`: a file a measurement."""

COMMANDS = {
    "perplexity": "bits and perplexity of held-out text: exact left to right, a clean bound else",
}
ABOUT = "Every measurement writes its figure, its error and its protocol as JSON, and goes on after an interruption."
