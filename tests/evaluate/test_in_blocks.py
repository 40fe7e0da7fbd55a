"""Evaluation of models that read blocks: the size is asked for, stored, and decides what is exact."""

import math
from dataclasses import replace

import pytest
import torch

from adlm import evaluate
from adlm.cli import main
from adlm.config import to_json
from adlm.data.packing import Padded, Wrapped
from adlm.data.stories import Stories
from adlm.data.tokenizer import train_words
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ConfigError
from adlm.evaluate.continuations import Continuation, Scorer
from adlm.evaluate.result import read_result
from adlm.evaluate.story_measures import gives_length
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.bound import enumerated_nats
from adlm.objectives.nelbo import Nelbo
from adlm.text_model import TextModel
from adlm.types import Batch
from tests.errors import raises

CORPUS = ["the cat sat on the mat. the dog sat on the log. the red cat", "a red cat ate a fish. the dog"]
WORDS = train_words(CORPUS)
STORIES = train_words(Stories(train=200).beginning("train"))


def build(tokenizer=WORDS, packing=None, *, shift=True, size=4):
    stack = StackConfig(width=16, heads=2, layers=2, attention="block")
    network = OneStageConfig(stack, block_size=size, shift=shift)
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), packing or Wrapped(12))
    torch.manual_seed(0)
    model = config.build().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return TextModel(model, config, tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    build().save(path)
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(CORPUS * 3))
    return path


def scorer(model, **settings):
    return Scorer(model.network, model.config.packing, WORDS.roles, **{"length": 12, "draws": 64, **settings})


ITEMS = [Continuation(tuple(range(4, 4 + n)), given) for n, given in ((7, 3), (5, 1), (10, 6), (2, 0))]


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("packing", [Wrapped(12), Padded(12)], ids=["wrapped", "padded"])
def test_a_continuation_that_ends_within_a_block_is_scored_with_the_rest_of_it_blank(shift, packing):
    model = build(packing=packing, shift=shift)
    together = scorer(model)(ITEMS)
    begin, _ = packing.frame(WORDS.roles)
    for item, found in zip(ITEMS, together, strict=True):
        row = torch.full((1, 12), WORDS.mask_id)
        length = len(begin) + len(item.tokens)
        row[0, :length] = torch.tensor([*begin, *item.tokens])
        position = torch.arange(12)
        scored = (position >= len(begin) + item.given) & (position < length)
        number = torch.zeros(1, dtype=torch.long)
        batch = Batch(row, torch.ones_like(row, dtype=torch.bool), number, number, frozen=~scored[None])
        assert found.nats == pytest.approx(float(enumerated_nats(model.network, batch).sum()), rel=1e-5)
        assert scorer(model, batch=1)([item]) == [pytest.approx(found, rel=1e-5)]


def test_estimates_of_continuations_converge_to_the_exact_bound():
    model = build()
    exact = scorer(model)(ITEMS[:1], greedy=False)[0].nats
    found = [scorer(model, draws=8, seed=seed)(ITEMS[:1], greedy=False)[0].nats for seed in range(60)]
    error = torch.tensor(found).std() / math.sqrt(60)
    assert abs(sum(found) / 60 - exact) < 4.5 * float(error)


def test_a_result_says_the_size_of_blocks_and_whether_it_is_exact(folder, text):
    own, one, whole = (evaluate.perplexity(str(folder), text, block_size=size) for size in (None, 1, 0))
    assert [result.model["block_size"] for result in (own, one, whole)] == [4, 1, 0]
    assert [result.figures["perplexity"].kind for result in (own, one, whole)] == ["bound", "exact", "bound"]
    assert own.protocol["estimator"]["objective"]["corruption"]["sizes"] == [4]
    left = build().in_blocks(1)
    assert one.figures == evaluate.perplexity(left, text).figures
    compared = evaluate.compare(own, one)
    assert compared.notes


def test_whole_rows_are_scored_as_such_whatever_sizes_were_trained(text):
    """The objective of the run masks blocks: left to itself it would score those."""
    plain = build()
    run = {"objective": to_json(Nelbo(BlockMasking((1, 4))))}
    trained = TextModel(plain.network, replace(plain.config, run=run), WORDS)
    found = {size: evaluate.perplexity(trained, text, block_size=size).figures for size in (4, 0)}
    assert found[4] == evaluate.perplexity(plain, text, block_size=4).figures
    assert found[0] == evaluate.perplexity(plain, text, block_size=0).figures
    assert found[0] != found[4]


def test_the_commands_take_a_block_size(folder, text, tmp_path, capsys):
    out = tmp_path / "result.json"
    words = ["evaluate", "perplexity", str(folder), str(text), "--out", str(out)]
    assert main([*words, "--block-size", "2", "--draws", "2"]) == 0
    assert "read in blocks of 2" in capsys.readouterr().out
    assert read_result(out).model["block_size"] == 2


def test_a_model_of_whole_rows_cannot_be_read_in_blocks(text):
    stack = StackConfig(width=16, heads=2, layers=1)
    config = ModelConfig(OneStageConfig(stack), Vocabulary(WORDS.vocab_size, WORDS.mask_id), Wrapped(12))
    model = TextModel(config.build(), config, WORDS)
    with raises(ConfigError, subject="block_size"):
        evaluate.perplexity(model, text, block_size=4)


def test_stories_are_scored_in_the_blocks_in_which_they_are_written():
    model = build(STORIES, Padded(64, begin=False, crop=True, predict_padding=True))
    kinds = {}
    for size in (1, 4):
        result = evaluate.stories(model, count=4, samples=2, draws=2, block_size=size)
        kinds[size] = result.figures["cross-entropy"].kind, result.protocol["likelihood"].split(",")[0]
        assert result.model["block_size"] == size
    assert kinds == {1: ("exact", "exact"), 4: ("bound", "a bound")}
    assert not gives_length(model.network, Padded(64))
