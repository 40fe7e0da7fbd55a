import itertools
import subprocess
import sys

import pytest
import torch

import adlm
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError
from adlm.models.io import ModelConfig
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel

TOKENIZER = train_words(["the cat sat on the mat. the dog sat on the log."])


@pytest.fixture(
    params=itertools.product([False, True], [Wrapped(12), Wrapped(12, framed=True), Padded(12, predict_padding=True)]),
    ids=repr,
)
def model(request):
    causal, rows = request.param
    stack = StackConfig(width=16, heads=2, layers=1, causal=causal)
    config = ModelConfig(OneStageConfig(stack), Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id), rows)
    torch.manual_seed(0)
    network = config.build().eval()
    torch.nn.init.normal_(network.head.weight)
    return TextModel(network, config, TOKENIZER)


def test_generation_keeps_the_prompt_and_follows_the_seed(model):
    texts = model.generate("the cat", n=3, seed=1)
    assert all(text.startswith("the cat") for text in texts)
    assert texts == model.generate("the cat", n=3, seed=1)
    assert texts[:1] == model.generate("the cat", n=1, seed=1)
    assert texts != model.generate("the cat", n=3, seed=2)
    assert any(len(text) > len("the cat") for text in texts)


def test_infilling_changes_the_holes_alone(model):
    (text,) = model.infill("the cat[MASK] on the[MASK].")
    first, second = text.split(" on the", 1)
    assert first.startswith("the cat")
    assert second.endswith(".")
    assert "[MASK]" not in text


def test_a_score_is_exact_or_carries_its_error(model):
    score = model.score("the cat sat on the mat.", draws=16)
    assert score.mean > 0
    if model.network.causal:
        assert (score.error, score.draws) == (0, 0)
    else:
        assert 0 < score.error < score.mean
        other = model.score("the cat sat on the mat.", draws=16, seed=1)
        assert abs(other.mean - score.mean) < 6 * (score.error + other.error)


def test_a_saved_model_writes_the_same_text(model, tmp_path):
    model.save(tmp_path)
    assert adlm.load(tmp_path).generate(n=2, seed=3) == model.generate(n=2, seed=3)


def test_a_saved_model_is_read_by_a_process_that_knows_nothing_else(model, tmp_path):
    model.save(tmp_path)
    program = "import sys, adlm; print(adlm.load(sys.argv[1]).generate(seed=3)[0])"
    result = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == model.generate(seed=3)[0] + "\n"


def test_what_does_not_fit_is_refused(model):
    long = "the cat sat on the mat. the dog sat on the log."
    for call in (model.generate, model.score):
        with pytest.raises(ConfigError, match="shorten"):
            call(long)
    for call in (lambda: model.generate(n=0), lambda: model.infill("the[MASK]", n=0)):
        with pytest.raises(ConfigError, match="give 1 or more"):
            call()
    with pytest.raises(ConfigError, match=r"no \[MASK\]"):
        model.infill("the cat")
    with pytest.raises(ConfigError, match="shorten"):
        model.infill(long + "[MASK]")
