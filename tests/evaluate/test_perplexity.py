import itertools
import math

import pytest
import torch

from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.tokenizer import characters
from adlm.evaluate.perplexity import perplexity, row_nats
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.randomness import Noise
from tests.conftest import TableModel, Texts, batch_of

TOKENIZER = characters("abcd")
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
LENGTH, MASK = 3, 3


def hashed_table(tokens):
    """Some fixed conditional law for every state of a row of three: not consistent with any joint law."""
    state = (tokens * torch.tensor([1, 5, 25])).sum(-1)
    angles = torch.outer(state + 1, torch.arange(1, LENGTH * 4 + 1)).double()
    return (2 * angles.sin()).view(-1, LENGTH, 4)


def exact_bound(model, row):
    """-log p averaged over all orders: each order's chain rule, summed over every masked subset it passes."""
    total = 0.0
    for count in range(1, LENGTH + 1):
        subsets = list(itertools.combinations(range(LENGTH), count))
        for subset in subsets:
            x_t = torch.tensor([[MASK if i in subset else token for i, token in enumerate(row)]])
            log_p = model.logits(model.features(x_t).final[0]).log_softmax(-1)
            total -= sum(log_p[i, row[i]].item() for i in subset) / count / len(subsets)
    return total


def test_the_estimate_converges_to_the_exact_any_order_average():
    model = TableModel(Vocabulary(4, MASK), hashed_table)
    for row in ([0, 1, 2], [2, 2, 0]):
        many = batch_of([row] * 4000)
        nats = row_nats(model, many, draws=6, noise=Noise(0))
        error = nats.std().item() / math.sqrt(len(nats))
        assert nats.mean().item() == pytest.approx(exact_bound(model, row), abs=5 * error)
        assert error < 0.02


def test_the_bound_lies_above_the_exact_likelihood():
    """The law of sampling in random order is the average of the orders' laws: Jensen puts the bound above it."""
    model = TableModel(Vocabulary(4, MASK), hashed_table)
    for row in itertools.product(range(3), repeat=LENGTH):
        likelihood = 0.0
        for order in itertools.permutations(range(LENGTH)):
            x_t, chance = [MASK] * LENGTH, 1.0
            for place in order:
                logits = model.logits(model.features(torch.tensor([x_t])).final[0, place])
                chance *= logits.softmax(-1)[row[place]].item()
                x_t[place] = row[place]
            likelihood += chance / math.factorial(LENGTH)
        assert exact_bound(model, row) >= -math.log(likelihood) - 1e-9


@pytest.fixture
def shards(tmp_path):
    return prepare(Texts(("abcd" * 9, "dcba" * 7)), "train", TOKENIZER, Wrapped(8), cache=tmp_path)


@pytest.mark.parametrize("causal", [False, True])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(shards, causal):
    model = OneStageConfig(StackConfig(width=8, heads=2, layers=1, causal=causal)).build(VOCABULARY)
    result = perplexity(model, shards, draws=3)  # heads start at zero
    assert result.perplexity == pytest.approx(VOCABULARY.size - 1, rel=1e-4)
    assert result.nats_a_token.draws == (0 if causal else 3)
    assert result.error == pytest.approx(0, abs=1e-3)


def test_the_result_does_not_depend_on_the_batch_size(shards):
    torch.manual_seed(0)
    model = OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(VOCABULARY)
    torch.nn.init.normal_(model.head.weight)
    first, second = (perplexity(model, shards, draws=4, batch=batch) for batch in (1, 5))
    assert first.nats_a_row.mean == pytest.approx(second.nats_a_row.mean, rel=1e-5)
    assert first.nats_a_row.error == pytest.approx(second.nats_a_row.error, rel=1e-4)


def test_predicted_padding_costs_nats_but_is_no_text(tmp_path):
    texts, model = Texts(("ab", "abcd")), OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(VOCABULARY)
    nats = {}
    for counted in (False, True):
        packing = Padded(8, begin=False, predict_padding=counted)
        shards = prepare(texts, "train", TOKENIZER, packing, cache=tmp_path)
        result = perplexity(model, shards, draws=2)
        nats[counted] = result.nats_a_row.mean
        assert result.nats_a_row.mean / result.nats_a_token.mean == pytest.approx(4)  # 3 and 5 tokens with the end
    assert nats[False] == pytest.approx(4 * math.log(VOCABULARY.size - 1), rel=1e-4)
    assert nats[True] == pytest.approx(8 * math.log(VOCABULARY.size - 1), rel=1e-4)
