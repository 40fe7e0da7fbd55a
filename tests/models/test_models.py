import itertools

import pytest
import torch
import torch.nn.functional as F

from adlm.errors import ConfigError
from adlm.models.language_model import Vocabulary
from adlm.models.layers import attend
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import Continued, Logits, TwoStageConfig

VOCABULARY = Vocabulary(19, 18)


def stack(**options):
    return StackConfig(width=16, heads=2, layers=2, convolution=3, query_key_norm=True, **options)


CONFIGS = [
    OneStageConfig(stack(), tied=True),
    OneStageConfig(stack(causal=True)),
    *(
        TwoStageConfig(stack(causal=causal), 1, hand_over, tied)
        for causal, hand_over, tied in itertools.product([False, True], [Logits(), Continued()], [False, True])
    ),
]


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


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_row_does_not_depend_on_the_batch_around_it(config, tokens):
    model = built(config)
    whole = model.features(tokens).final
    alone = torch.cat([model.features(row[None]).final for row in tokens])
    assert torch.allclose(whole, alone, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_the_mask_is_never_predicted_and_the_rest_is_a_distribution(config, tokens):
    model = built(config)
    features = model.features(tokens)
    probabilities = model.logits(features.final[:, 0]).softmax(-1)
    assert (probabilities[:, 18] == 0).all()
    assert torch.allclose(probabilities.sum(-1), torch.ones(3))


@pytest.mark.parametrize("config", [c for c in CONFIGS if "causal=True" in repr(c)], ids=repr)
def test_a_causal_model_sees_only_the_left(config, tokens):
    model = built(config)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 18
    before, after = model.features(tokens).final, model.features(changed).final
    assert torch.equal(before[:, :6], after[:, :6])  # position 5 predicts token 5 and must not see it
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("config", [c for c in CONFIGS if "causal=True" not in repr(c)], ids=repr)
def test_a_bidirectional_model_sees_both_sides(config, tokens):
    model = built(config)
    for place in (0, 9):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 18
        assert ((model.features(tokens).final - model.features(changed).final).abs().amax((0, 2)) > 1e-9).all()


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


def test_plain_attention_equals_the_fused_kernel():
    q, k, v = torch.randn(3, 2, 4, 20, 8, dtype=torch.float64)
    for causal in (False, True):
        fused = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert torch.allclose(attend(q, k, v, causal=causal), fused, atol=1e-12)


def test_rotary_attention_depends_on_distance_alone():
    model = built(OneStageConfig(StackConfig(width=16, heads=2, layers=1)))
    row = torch.tensor([[3, 7]])
    attention = model.stack.blocks[0]._attention
    h = model.embedding(row)
    results = []
    for shift in (0, 100):
        cos, sin = model.stack.rotary(torch.arange(2) + shift)
        results.append(attention(h, cos.double(), sin.double()))
    assert torch.allclose(*results, atol=1e-5)


def test_one_stage_has_no_anchor_logits():
    with pytest.raises(ConfigError, match="it has one stage"):
        built(CONFIGS[0]).anchor_logits(torch.zeros(1, 16))


def test_impossible_shapes_are_refused():
    with pytest.raises(ConfigError, match="multiple of 6"):
        StackConfig(width=16, heads=3)
    with pytest.raises(ConfigError, match="it lies outside"):
        Vocabulary(10, 10)
