import itertools
import subprocess
import sys

import pytest
import torch

import adlm
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError, OutOfRange
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.bound import enumerated_nats
from adlm.text_model import TextModel
from adlm.types import Batch
from tests.errors import raises

TOKENIZER = train_words(["the cat sat on the mat. the dog sat on the log."])


@pytest.fixture(
    params=itertools.product([False, True], [Wrapped(12), Wrapped(12, framed=True), Padded(12, predict_padding=True)]),
    ids=repr,
)
def model(request):
    causal, rows = request.param
    stack = StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full")
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
    if model.network.causal:  # it would not see what follows
        with raises(ConfigError, subject="text"):
            model.infill("the cat[MASK] on the[MASK].")
        assert model.infill("the cat[MASK:2]")[0].startswith("the cat")
        return
    (text,) = model.infill("the cat[MASK] on the[MASK].")
    first, second = text.split(" on the", 1)
    assert first.startswith("the cat")
    assert second.endswith(".")
    assert "[MASK]" not in text


def test_a_score_is_exact_or_carries_its_error(model):
    score = model.score("the cat sat on the mat.", draws=16)
    nats = score.nats
    assert nats.mean > 0
    if model.network.causal:
        assert (nats.error, nats.draws) == (0, 0)
    else:
        assert 0 < nats.error < nats.mean
        assert nats.draws == 16
        other = model.score("the cat sat on the mat.", draws=16, seed=1).nats
        assert abs(other.mean - nats.mean) < 6 * (nats.error + other.error)


def test_a_text_without_a_token_has_no_score():
    config = ModelConfig(
        OneStageConfig(StackConfig(width=16, heads=2, layers=1)),
        Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id),
        Wrapped(12, separated=False),
    )
    with raises(ConfigError, subject="text"):
        TextModel(config.build().eval(), config, TOKENIZER).score("")


def test_the_surprise_of_the_tokens_adds_up_to_the_score(model):
    score = model.score("the cat sat on the mat.")
    assert sum(score.surprise) == pytest.approx(score.nats.mean, rel=1e-5)
    assert len(score.tokens) == len(score.surprise)
    assert "the cat sat on the mat.<|endoftext|>" in "".join(score.tokens)


def test_a_part_is_scored_given_the_rest(model):
    text = "the cat sat on the mat."
    if model.network.causal:
        whole, last = model.score(text), model.score(text, span=" mat.")
        start = "".join(whole.tokens).index(" mat.")
        assert last.tokens == (" mat", ".")
        position = next(i for i in range(len(whole.tokens)) if len("".join(whole.tokens[:i])) == start)
        assert last.surprise == pytest.approx(whole.surprise[position : position + 2], rel=1e-4)
        with raises(ConfigError, subject="span"):
            model.score(text, span="cat")
        return
    part = model.score(text, span="cat sat", draws=64)
    assert part.tokens == (" cat", " sat")
    assert part == model.score(text, span=(4, 11), draws=64)
    # Two tokens: exactly the mean of both orders, each with all the rest in sight.
    exact = enumerated_nats(model.network, _batch(model, text, [1, 2])).sum().item()
    assert part.nats.mean == pytest.approx(exact, abs=4 * part.nats.error + 1e-4)


def _batch(model, text, chosen):
    ids, valid = model.rows.finished(model.tokenizer.encode(text).tolist())
    begin = len(model.config.packing.frame(model.tokenizer.roles)[0])
    fixed = torch.ones(1, len(ids), dtype=torch.bool)
    fixed[0, [begin + i for i in chosen]] = False
    number = torch.zeros(1, dtype=torch.long)
    return Batch(torch.tensor([ids]), torch.tensor([valid]), number, number, fixed)


def test_parts_that_are_not_there_are_refused(model):
    text = "the cat sat on the mat."
    with raises(ConfigError, subject="span"):
        model.score(text, span="the")
    with raises(ConfigError, subject="span"):
        model.score(text, span="dog")
    for span in ((3, 3), (-1, 2), (5, 99)):
        with raises(OutOfRange, subject="span", value=span):
            model.score(text, span=span)


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
        with raises(ConfigError, subject="text"):
            call(long)
    for call in (lambda: model.generate(n=0), lambda: model.infill("the[MASK]", n=0)):
        with raises(OutOfRange, subject="n", value=0):
            call()
    with raises(ConfigError, subject="text"):
        model.infill("the cat")
    with raises(ConfigError, subject="text"):
        model.infill(long + "[MASK]")
