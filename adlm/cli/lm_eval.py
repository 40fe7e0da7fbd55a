"""`adlm lm-eval`: the command line of lm-evaluation-harness, with this package's models in it."""

import importlib
import sys
from collections.abc import Sequence

from adlm.errors import optional_module

ABOUT = """usage: adlm lm-eval run --model adlm --model_args pretrained=FOLDER --tasks TASK [options of the harness]

The command line of lm-evaluation-harness, which knows the model `adlm` here. pretrained is a folder or a name on the
Hugging Face Hub; further --model_args: draws=32, seed=0, max_length, max_gen_toks, sampler, steps, temperature,
block_size, full_rows, revision. Log-likelihoods of masked models are lower bounds from that many draws.

  adlm lm-eval run --help    the options of the harness
  adlm lm-eval ls tasks      its tasks; --include_path has your own"""


def passes_on(words: Sequence[str]) -> None:
    """Hand all words to the harness."""
    if not words or words[0] in ("-h", "--help"):
        print(ABOUT)
        return
    optional_module("lm_eval", extra="lm-eval", purpose="adlm lm-eval")
    harness = importlib.import_module("lm_eval.__main__")
    importlib.import_module("adlm.evaluate.lm_eval")  # which registers the model
    sys.argv = ["adlm lm-eval", *words]  # where the harness looks
    harness.cli_evaluate()
