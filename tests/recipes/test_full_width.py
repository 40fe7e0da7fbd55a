"""Published runs take real steps at their real width, depth and vocabulary, on one short row of random words."""

import math

import numpy as np
import pytest
import torch

from adlm.data.loader import read_rows
from adlm.data.synthetic import Synthetic
from adlm.models.network import Vocabulary
from adlm.randomness import Noise
from adlm.recipes.named import FAMILIES, recipe
from adlm.train.workload import known_vocabulary


def first_losses(name, *, steps):
    """Losses of the first steps on one row, each with gradients for every parameter."""
    run = recipe(name)
    size = known_vocabulary(run.data).size
    vocabulary = Vocabulary(size, size - 1)  # random words may be any but the last
    table = Synthetic(size, length=64, count=1).prepare().train
    batch = read_rows(table, np.arange(1), first_sample_id=256)  # of 512: its noise level is near one half
    torch.manual_seed(0)
    model = run.network.build(vocabulary).train()
    losses = []
    for _ in range(steps):
        terms = run.objective(model, batch, progress=0.5, noise=Noise(0))
        (terms.loss_sum / terms.tokens).backward()
        losses.append((terms.nll_sum / terms.tokens).item())
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
        if len(losses) < steps:
            (optimizer,) = run.train.optimizer.build(model)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("kind", ["ar", "adlm"])
def test_a_published_run_has_a_gradient_for_every_parameter(kind):
    (loss,) = first_losses(f"lm1b-{kind}", steps=1)
    # A head of zeros guesses evenly; a masked row pays that where it is masked, 1/t times.
    assert loss == pytest.approx(math.log(30_521), rel=0 if kind == "ar" else 0.3, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES["openwebtext"].kinds if not {"4", "8"} & {*kind}])
def test_a_published_run_learns_from_its_first_step(kind):
    before, after = first_losses(f"openwebtext-{kind}", steps=2)
    assert after < before < 20
