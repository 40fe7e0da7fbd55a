import math

import pytest
import torch

from adlm.errors import ConfigError
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.randomness import Noise
from adlm.samplers.hole_lengths import ContextMasking, context_nats
from adlm.types import Batch
from tests.conftest import TableModel
from tests.errors import raises

MASK = 3
VOCABULARY = Vocabulary(4, MASK)


def joint_model():
    """Rows of three tokens with a joint law: predictions are its exact conditionals."""
    joint = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    joint /= joint.sum()

    def table(tokens):
        out = torch.full((len(tokens), 3, 4), -math.inf, dtype=torch.float64)
        for b, row in enumerate(tokens.tolist()):
            for position in range(3):
                for value in range(3):
                    seen = [slice(None) if token == MASK else token for token in row]
                    seen[position] = value
                    out[b, position, value] = joint[tuple(seen)].sum().log()
        return out

    return joint, TableModel(VOCABULARY, table)


def test_the_nats_of_a_context_are_those_of_its_marginal_likelihood():
    joint, model = joint_model()
    rows = [[0, MASK, 2], [1, MASK, 1], [MASK, MASK, 2], [MASK, 0, MASK]]
    exact = [joint[0, :, 2].sum(), joint[1, :, 1].sum(), joint[:, :, 2].sum(), joint[:, 0].sum()]
    nats = context_nats(model, rows, [[True] * 3] * 4, draws=200, noise=Noise(0))
    assert nats.tolist() == pytest.approx([-p.log().item() for p in exact], abs=0.03)


def test_a_longer_hole_is_no_worse_by_itself():
    model = TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, 4))
    rows = [[0, 1, *[MASK] * length, 2, 2, 0] for length in range(1, 30)]
    nats = context_nats(model, rows, [[True] * len(row) for row in rows], noise=Noise(0))
    assert nats.tolist() == pytest.approx([5 * math.log(3)] * len(rows), rel=1e-5)


def test_the_context_is_masked_alike_whatever_the_length_of_the_hole():
    rows = [[0, 1, MASK, 2, 0, 1, 0, 0], [0, 1, MASK, MASK, MASK, 2, 0, 1]]
    tokens = torch.tensor(rows)
    valid = torch.tensor([[True] * 6 + [False] * 2, [True] * 8])
    same = torch.zeros(2, dtype=torch.long)
    batch = Batch(tokens, valid, same, same, tokens == MASK)
    for level in torch.arange(0, 1, 0.1):
        corrupted = ContextMasking().at(level.expand(2), batch, MASK, Noise(int(level * 10)))
        first, second = (corrupted.masked[i][batch.scored[i]] for i in range(2))
        assert torch.equal(first, second)
        assert first.any()
        assert not corrupted.masked[~batch.scored].any()
        assert corrupted.x_t[corrupted.masked].eq(MASK).all()


def test_a_model_that_knows_the_text_knows_the_length():
    target = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(3))

    def table(tokens):
        logits = 3.0 * torch.nn.functional.one_hot(target, 4)[: tokens.shape[1]]
        return logits.expand(len(tokens), -1, -1)

    model = TableModel(VOCABULARY, table)
    row = target.tolist()
    for start, length in ((3, 1), (5, 4), (10, 6)):
        rows = [[*row[:start], *[MASK] * k, *row[start + length :]] for k in range(1, 7)]
        rows = [each[:20] for each in rows]
        nats = context_nats(model, rows, [[True] * len(each) for each in rows], draws=8, noise=Noise(0))
        assert int(nats.argmin()) + 1 == length


def test_padding_and_other_candidates_change_no_score():
    torch.manual_seed(0)
    model = OneStageConfig(StackConfig(width=16, heads=2, layers=1)).build(VOCABULARY).eval()
    torch.nn.init.normal_(model.head.weight)
    rows = [[0, *[MASK] * length, 1, 2, 0] for length in (1, 4, 2)]
    counts = [[True] * len(row) for row in rows]
    together = context_nats(model, rows, counts, draws=4, noise=Noise(1))
    alone = [
        context_nats(model, [row], [count], draws=4, noise=Noise(1)) for row, count in zip(rows, counts, strict=True)
    ]
    padded = context_nats(model, [[*rows[0], 0, 0]], [[*counts[0], False, False]], draws=4, noise=Noise(1))
    assert together.tolist() == pytest.approx(torch.cat(alone).tolist(), rel=1e-4)
    assert padded.item() == pytest.approx(together[0].item(), rel=1e-4)


def test_a_text_that_is_all_hole_costs_nothing():
    model = TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, 4))
    assert context_nats(model, [[MASK], [MASK] * 2], [[True], [True] * 2], noise=Noise(0)).tolist() == [0, 0]


def test_left_to_right_models_are_refused():
    model = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal")).build(VOCABULARY)
    with raises(ConfigError, subject="lengths"):
        context_nats(model, [[MASK, 0]], [[True, True]], noise=Noise(0))
