import math

import pytest
import torch

from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.tokenizer import characters
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.likelihood import table_perplexity
from tests.conftest import Texts

TOKENIZER = characters("abcd")
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)


@pytest.fixture
def shards(tmp_path):
    return prepare(Texts(("abcd" * 9, "dcba" * 7)), "train", TOKENIZER, Wrapped(8), cache=tmp_path)


@pytest.mark.parametrize("causal", [False, True])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(shards, causal):
    model = OneStageConfig(StackConfig(width=8, heads=2, layers=1, attention="causal" if causal else "full")).build(
        VOCABULARY
    )
    result = table_perplexity(model, shards, draws=3)  # heads start at zero
    assert result.perplexity == pytest.approx(VOCABULARY.size - 1, rel=1e-4)
    assert result.nats_per_token.draws == (0 if causal else 3)
    assert result.error == pytest.approx(0, abs=1e-3)


def test_the_result_does_not_depend_on_the_batch_size(shards):
    torch.manual_seed(0)
    model = OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(VOCABULARY)
    torch.nn.init.normal_(model.head.weight)
    first, second = (table_perplexity(model, shards, draws=4, batch=batch) for batch in (1, 5))
    assert first.nats_per_row.mean == pytest.approx(second.nats_per_row.mean, rel=1e-5)
    assert first.nats_per_row.error == pytest.approx(second.nats_per_row.error, rel=1e-4)


def test_predicted_padding_costs_nats_but_is_no_text(tmp_path):
    texts, model = Texts(("ab", "abcd")), OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(VOCABULARY)
    nats = {}
    for counted in (False, True):
        packing = Padded(8, begin=False, predict_padding=counted)
        shards = prepare(texts, "train", TOKENIZER, packing, cache=tmp_path)
        result = table_perplexity(model, shards, draws=2)
        nats[counted] = result.nats_per_row.mean
        assert result.nats_per_row.mean / result.nats_per_token.mean == pytest.approx(4)  # 3 and 5 tokens with the end
    assert nats[False] == pytest.approx(4 * math.log(VOCABULARY.size - 1), rel=1e-4)
    assert nats[True] == pytest.approx(8 * math.log(VOCABULARY.size - 1), rel=1e-4)
