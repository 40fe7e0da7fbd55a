import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from adlm.errors import ConfigError
from adlm.models import layers
from adlm.models.hand_over import AnchorState, Continued, Hidden, Logits, Probabilities
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.conftest import batch_of
from tests.errors import raises

VOCABULARY = Vocabulary(19, 18)


def stack(**options):
    return StackConfig(width=16, heads=2, layers=2, convolution=3, query_key_norm=True, **options)


HAND_OVERS = [Logits(), Probabilities(), Hidden(), Continued()]
CONFIGS = [
    OneStageConfig(stack(), tied=True, positions=12),
    OneStageConfig(stack(condition=8)),
    OneStageConfig(stack(attention="causal")),
    *(
        TwoStageConfig(stack(attention="causal" if causal else "full"), 1, hand_over, tied)
        for causal, hand_over, tied in itertools.product([False, True], HAND_OVERS, [False, True])
    ),
]


def name(config):
    """A short name for a test."""
    parts = [type(config).__name__.removesuffix("Config")]
    shape = config.stack if isinstance(config, OneStageConfig) else config.anchor
    parts += ["causal"] * shape.causal + ["adaptive"] * bool(shape.condition) + ["tied"] * config.tied
    return "-".join([*parts, *([type(config.hand_over).__name__] if hasattr(config, "hand_over") else [])])


def built(config, dtype=torch.float64):
    """A model with every parameter away from zero, where it starts for many."""
    model = config.build(VOCABULARY).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) * 0.3)
    return model.eval()


@pytest.fixture
def tokens():
    return torch.randint(0, 18, (3, 10), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_a_row_does_not_depend_on_the_batch_around_it(config, tokens):
    model = built(config)
    whole = model.features(tokens).final
    alone = torch.cat([model.features(row[None]).final for row in tokens])
    assert torch.allclose(whole, alone, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_the_mask_is_never_predicted_and_the_rest_is_a_distribution(config, tokens):
    model = built(config)
    features = model.features(tokens)
    probabilities = model.logits(features.final[:, 0]).softmax(-1)
    assert (probabilities[:, 18] == 0).all()
    assert torch.allclose(probabilities.sum(-1), torch.ones(3).double())


@pytest.mark.parametrize("config", [c for c in CONFIGS if "causal" in name(c)], ids=name)
def test_a_causal_model_sees_only_the_left(config, tokens):
    model = built(config)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 18
    before, after = model.features(tokens).final, model.features(changed).final
    assert torch.equal(before[:, :6], after[:, :6])  # position 5 predicts token 5 and must not see it
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("config", [c for c in CONFIGS if "causal" not in name(c)], ids=name)
def test_a_bidirectional_model_sees_both_sides(config, tokens):
    model = built(config)
    for position in (0, 9):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % 18
        assert ((model.features(tokens).final - model.features(changed).final).abs().amax((0, 2)) > 1e-9).all()


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_padding_on_either_side_and_rows_of_padding_change_nothing(config, tokens):
    model = built(config)
    expected = model.features(tokens[:, :7]).final
    for left in (0, 2, 5):
        padded = torch.full((5, 12), 4)
        padded[:3, left : left + 7] = tokens[:, :7]
        valid = torch.zeros(5, 12, dtype=torch.bool)
        valid[:3, left : left + 7] = True
        found = model.features(padded, segments=batch_of(padded, valid).segments).final
        assert torch.allclose(found[:3, left : left + 7], expected, atol=1e-6)
        assert found.isfinite().all()


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_packed_documents_do_not_see_each_other(config, tokens):
    model = built(config)
    segments = torch.tensor([[0] * 4 + [1] * 6]).expand(3, 10)
    apart = [model.features(tokens[:, :4]).final, model.features(tokens[:, 4:]).final]
    packed = model.features(tokens, segments=segments).final
    assert torch.allclose(packed, torch.cat(apart, 1), atol=1e-6)
    assert not torch.allclose(packed, model.features(tokens).final, atol=1e-3)


@pytest.mark.parametrize("config", [*CONFIGS, OneStageConfig(stack(condition=8, timed=True))], ids=name)
def test_wanted_positions_are_those_of_all_positions(config, tokens):
    model = built(config)
    output_mask = torch.rand(3, 10, generator=torch.Generator().manual_seed(2)) < 0.4
    t = torch.tensor([0.1, 0.5, 0.9]).double()
    whole, part = model.features(tokens, t), model.features(tokens, t, output_mask=output_mask)
    assert torch.allclose(part.final, whole.final[output_mask], atol=1e-12)
    assert (part.anchor is None) == (whole.anchor is None)
    assert part.anchor is None or torch.equal(part.anchor, whole.anchor)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_a_frozen_model_gives_the_same_features_and_thaws(config, tokens):
    model = built(config)
    before = model.features(tokens).final
    with model.inference_weights():
        for _ in range(2):
            with model.inference_weights():
                inside = model.features(tokens)
        assert not inside.final.requires_grad
        assert torch.allclose(inside.final, before, atol=1e-12)
        with torch.no_grad():
            next(iter(model.parameters())).mul_(1.5)  # not allowed inside; shows that derived weights were kept
    after = model.features(tokens).final
    assert after.requires_grad
    assert not torch.allclose(after, before)


def test_derived_weights_are_made_once_while_frozen(tokens):
    model = built(TwoStageConfig(stack(condition=8), 1))
    made = []
    original = model.hand_over._joint
    model.hand_over._joint = lambda head: made.append(1) or original(head)
    with model.inference_weights():
        for _ in range(3):
            model.features(tokens)
    assert len(made) == 1
    model.features(tokens)
    model.features(tokens)
    assert len(made) == 3


def test_a_constant_modulation_is_folded_exactly(tokens):
    """A timed model at t = 0 has the modulation that an untimed one folds: features and gradients agree."""
    config = TwoStageConfig(stack(condition=8, timed=True), 1)
    model, plain = built(replace(config, anchor=stack(condition=8))), built(config)
    t = torch.zeros(3).double()
    gradients = []
    for m, features in ((model, model.features(tokens)), (plain, plain.features(tokens, t))):
        features.final.square().sum().backward()
        gradients.append([torch.zeros_like(p) if p.grad is None else p.grad for p in m.parameters()])
    assert torch.allclose(model.features(tokens).final, plain.features(tokens, t).final, atol=1e-12)
    for folded, unfolded in zip(*gradients, strict=True):
        assert torch.allclose(folded, unfolded, rtol=1e-9, atol=1e-9)


def test_a_timed_model_wants_the_time(tokens):
    with raises(ConfigError, subject="t"):
        built(OneStageConfig(stack(condition=8, timed=True))).features(tokens)


@pytest.mark.parametrize("config", [CONFIGS[1], TwoStageConfig(stack(dropout=0.3), 1)], ids=name)
def test_checkpointed_activations_give_the_same_gradients(config, tokens):
    model = built(config).train()
    gradients = []
    for on in (False, True):
        model.checkpoint_activations(on)
        model.zero_grad()
        torch.manual_seed(0)  # dropout
        model.features(tokens).final.square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[2], CONFIGS[3]], ids=name)
def test_compiled_blocks_give_the_same_features_and_gradients(config, backend, tokens):
    model = built(config, torch.float32)
    segments = torch.tensor([[0] * 4 + [1] * 6]).expand(3, 10)
    results = []
    for compiled in (False, True):
        if compiled:
            torch._dynamo.reset()
            model.compile(backend=backend, fullgraph=True)
        model.zero_grad()
        for given in (None, segments):
            model.features(tokens, segments=given).final.square().sum().backward()
        with model.inference_weights():
            frozen = [model.features(tokens).final for _ in range(2)]
        results.append([*frozen, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for plain, fast in zip(*results, strict=True):
        assert torch.allclose(plain, fast, rtol=1e-3, atol=1e-4 * plain.abs().max().item())


def test_weights_start_as_published():
    """Uniform embeddings in +-1/sqrt(D), zero heads, blocks that start as the identity."""
    torch.manual_seed(0)
    model = TwoStageConfig(StackConfig(width=64, heads=4, layers=2, condition=16), 1).build(Vocabulary(500, 499))
    table = model.embedding.tokens.weight
    assert table.abs().max() <= 1 / 8
    assert table.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.02)
    assert not any(p.any() for head in (model.head, model.anchor_head) for p in head.parameters())
    for stage in (model.anchor, model.denoiser):
        assert not any(p.any() for block in stage.blocks for p in block.modulation.parameters())
        assert not any(p.any() for p in stage.modulation.parameters())
    tokens = torch.randint(0, 499, (2, 8))
    embedded = model.embedding(tokens)
    assert torch.equal(model.anchor(embedded)[0], embedded)


def test_the_soft_hand_over_is_the_mean_embedding_and_slices_do_not_show(tokens, monkeypatch):
    for tied in (False, True):
        model = built(TwoStageConfig(stack(), 1, Probabilities(), tied))
        embedded = model.embedding(tokens)
        stage = AnchorState(embedded, *model.anchor(embedded))
        logits = model.anchor_head(stage.anchor)
        expected = logits.softmax(-1) @ model.hand_over.table
        assert (model.hand_over.table is model.embedding.tokens.weight) == tied
        for size in (1 << 24, 40):
            monkeypatch.setattr(type(model.hand_over), "SLICE", size)
            assert torch.allclose(model.hand_over(stage, model.anchor_head), expected, atol=1e-12)


def dense(model, tokens):
    """The paper's forward pass, plainly: anchor logits over the vocabulary, projected into the denoiser."""
    logits = model.anchor_head.raw(model.anchor(model.embedding(tokens))[1])
    return model.denoiser(F.linear(logits, model.hand_over.project.weight, model.hand_over.project.bias))[1]


@pytest.mark.parametrize("tied", [False, True])
def test_the_small_hand_over_equals_the_dense_one_in_features_and_gradients(tied, tokens):
    model = built(TwoStageConfig(stack(), 2, Logits(), tied))
    gradients = []
    for forward in (lambda x: model.features(x).final, lambda x: dense(model, x)):
        model.zero_grad()
        out = forward(tokens)
        out.square().sum().backward()
        # No probability reads the biases of the first head but the hand-over; those without gradient count as 0.
        gradients.append([p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()])
    assert torch.allclose(model.features(tokens).final, dense(model, tokens), atol=1e-10)
    for fast, plain in zip(*gradients, strict=True):
        assert torch.allclose(fast, plain, rtol=1e-10, atol=1e-9)


def test_attention_is_softmax_over_what_is_not_hidden():
    q, k, v = torch.randn(3, 2, 4, 20, 8, dtype=torch.float64)
    triangle = torch.ones(20, 20, dtype=torch.bool).triu(1)
    apart = (torch.randn(2, 1, 20, 20) > 0) & ~torch.eye(20, dtype=torch.bool)
    for causal, hidden in ((False, None), (True, triangle), (False, apart)):
        scores = q @ k.transpose(-1, -2) / 8**0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        assert torch.allclose(layers.attend(q, k, v, causal=causal, hidden=hidden), scores.softmax(-1) @ v, atol=1e-12)


def test_rotary_attention_depends_on_distance_alone():
    model = built(OneStageConfig(StackConfig(width=16, heads=2, layers=1)))
    h = model.embedding(torch.tensor([[3, 7]]))
    results = []
    for shift in (0, 100):
        cos, sin = model.stack.rotary((torch.arange(2) + shift)[:, None, None])
        results.append(model.stack.blocks[0]._attention(h, layers.Layout(cos.double(), sin.double(), None, None)))
    assert torch.allclose(*results, atol=1e-5)


def test_one_stage_has_no_anchor_logits():
    with raises(ConfigError, subject="stages"):
        built(CONFIGS[0]).anchor_logits(torch.zeros(1, 16))


def test_impossible_shapes_are_refused():
    with raises(ConfigError, subject="width"):
        StackConfig(width=16, heads=3)
    with raises(ConfigError, subject="mask_id"):
        Vocabulary(10, 10)
