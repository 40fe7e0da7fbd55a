"""The runs for a CPU take a step at their real size, on random words."""

import numpy as np
import pytest
import torch

from adlm.data.loader import read_rows
from adlm.data.synthetic import Synthetic
from adlm.models.network import Vocabulary
from adlm.randomness import Noise
from adlm.recipes.named import FAMILIES, recipe
from adlm.train.workload import known_vocabulary, row_length

NAMES = [f"{corpus}-{kind}" for corpus in ("demo", "text8", "wikitext2") for kind in FAMILIES[corpus].kinds]


@pytest.mark.parametrize("name", NAMES)
def test_a_small_run_has_a_gradient_for_every_parameter_that_its_loss_depends_on(name):
    run = recipe(name)
    size = known_vocabulary(run.data).size
    table = Synthetic(size, length=row_length(run.data), count=2).prepare().train
    torch.manual_seed(0)
    model = run.network.build(Vocabulary(size, size - 1)).train()
    terms = run.objective(model, read_rows(table, np.arange(2)), progress=0.5, noise=Noise(0))
    terms.loss_sum.backward()
    assert terms.loss_sum.isfinite()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    # Without an anchor term nobody reads what the anchor stage predicts; its state is handed over all the same.
    assert without == ({"anchor_head.bias"} if name.endswith("gamma0") else set())
