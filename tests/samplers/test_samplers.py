import itertools
import math
from collections import Counter

import pytest
import torch

from adlm.errors import ConfigError
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.randomness import Noise
from adlm.samplers import Ancestral, Canvas, LeftToRight, Temperature
from adlm.samplers.draw import inverse_cdf
from tests.conftest import TableModel

MASK = 3
VOCABULARY = Vocabulary(4, MASK)


def chi_square_limit(freedom: int) -> float:
    """Above this with chance about 1e-5 (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.3 * math.sqrt(2 / (9 * freedom))) ** 3


def test_inverse_cdf_draws_the_distribution():
    logits = torch.tensor([0.5, -1.0, 2.0, -math.inf], dtype=torch.float64)
    drawn = inverse_cdf(logits.expand(40_000, 4), Noise(0).uniform(torch.arange(40_000), 1)[:, 0])
    counts, expected = torch.bincount(drawn, minlength=4), 40_000 * logits.softmax(-1)
    assert counts[3] == 0
    assert ((counts - expected) ** 2 / expected)[:3].sum() < chi_square_limit(2)


def product_model():
    """Three tokens whose law given what is visible is a fixed table: the first decides the others' odds."""
    generator = torch.Generator().manual_seed(0)
    joint = torch.rand(3, 3, 3, generator=generator, dtype=torch.float64)
    joint /= joint.sum()

    def table(tokens):
        out = torch.full((len(tokens), 3, 4), -math.inf, dtype=torch.float64)
        for b, row in enumerate(tokens.tolist()):
            for place in range(3):
                for value in range(3):
                    seen = [slice(None) if token == MASK else token for token in row]
                    seen[place] = value
                    out[b, place, value] = joint[tuple(seen)].sum().log()
        return out

    return joint, TableModel(VOCABULARY, table)


def test_ancestral_sampling_has_the_law_of_its_process():
    """With steps so many that two reveals seldom coincide, exact conditionals give the joint law back."""
    joint, model = product_model()
    sample = Ancestral(steps=64).sample(model, Canvas.blank(4000, 3, MASK), noise=Noise(1))
    counts = Counter(map(tuple, sample.tokens.tolist()))
    cells = list(itertools.product(range(3), repeat=3))
    statistic = sum((counts[c] - 4000 * joint[c].item()) ** 2 / (4000 * joint[c].item()) for c in cells)
    assert statistic < chi_square_limit(26)


def test_an_oracle_is_reproduced_and_frozen_positions_never_change():
    target = torch.randint(0, 3, (1, 12), generator=torch.Generator().manual_seed(1))
    oracle = TableModel(
        VOCABULARY, lambda tokens: 1e4 * torch.nn.functional.one_hot(target, 4).expand(len(tokens), -1, -1)
    )
    rows = target.tolist()[0]
    prompt = [(token + 1) % 3 for token in rows[:4]]
    for steps in (1, 5, 50):
        sample = Ancestral(steps=steps).sample(oracle, Canvas.continuing([prompt] * 2, 12, MASK), noise=Noise(2))
        assert sample.tokens.tolist() == [[*prompt, *rows[4:]]] * 2


def networks():
    torch.manual_seed(0)
    for causal, sampler in ((False, Ancestral(steps=9)), (True, LeftToRight())):
        model = OneStageConfig(StackConfig(width=16, heads=2, layers=2, causal=causal)).build(VOCABULARY)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        yield model.eval(), sampler


def test_a_sample_is_the_same_alone_and_in_a_batch():
    for model, sampler in networks():
        canvas = Canvas.blank(6, 10, MASK)
        whole = sampler.sample(model, canvas, noise=Noise(3)).tokens
        assert MASK not in whole
        part = Canvas(canvas.tokens[4:5], canvas.frozen[4:5], canvas.rows[4:5])
        assert torch.equal(sampler.sample(model, part, noise=Noise(3)).tokens, whole[4:5])
        assert len({tuple(row) for row in whole.tolist()}) > 1


def test_rows_in_which_nothing_changes_are_not_computed():
    _, model = product_model()
    sample = Ancestral(steps=1000).sample(model, Canvas.blank(5, 3, MASK), noise=Noise(4))
    assert sample.row_calls <= 15  # three blanks a row at most
    assert model.calls <= 15


def test_watchers_see_every_reveal_once():
    for model, sampler in networks():
        views = []
        sampler.sample(
            model, Canvas.blank(2, 10, MASK), noise=Noise(5), watch=lambda view, views=views: views.append(view.fresh)
        )
        assert torch.stack(views).sum(0).eq(1).all()


def test_low_temperature_takes_the_likeliest():
    (masked, _), (causal, _) = networks()
    # In one step nothing depends on the order of reveals, so only the draws could differ between seeds.
    for model, cold in (
        (masked, Ancestral((Temperature(1e-4),), steps=1)),
        (causal, LeftToRight((Temperature(1e-4),))),
    ):
        one, two = (cold.sample(model, Canvas.blank(1, 10, MASK), noise=Noise(seed)).tokens for seed in (0, 1))
        assert torch.equal(one, two)
    hot = Ancestral(steps=1)
    one, two = (hot.sample(masked, Canvas.blank(1, 10, MASK), noise=Noise(seed)).tokens for seed in (0, 1))
    assert not torch.equal(one, two)


def test_the_wrong_sampler_and_nonsense_are_refused():
    (masked, ancestral), (causal, left) = networks()
    with pytest.raises(ConfigError, match="use LeftToRight"):
        ancestral.sample(causal, Canvas.blank(1, 4, MASK), noise=Noise(0))
    with pytest.raises(ConfigError, match="use Ancestral"):
        left.sample(masked, Canvas.blank(1, 4, MASK), noise=Noise(0))
    with pytest.raises(ConfigError, match="equally long"):
        Canvas.infilling([[1], [1, 2]], MASK)
