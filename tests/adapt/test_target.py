"""Targets: what users write, the networks they give, and that these start as the model they come from."""

import pytest
import torch

from adlm.adapt import Target
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ConfigError, OutOfRange, UnknownName
from adlm.models.network import Vocabulary
from adlm.objectives.nelbo import Anelbo
from adlm.train.init import AnchorFrom, Finetune, SplitFrom
from tests.adapt.models import A2R, ONE, left_to_right
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "attention", "layers", "init"),
    [
        ("block:4", "block", (3,), Finetune),
        ("masked", "full", (3,), Finetune),
        ("anchored", "full", (2, 1), SplitFrom),
        ("anchored-block:4", "block", (2, 1), SplitFrom),
        ("towers:4", "block", (3, 1), AnchorFrom),
    ],
)
def test_a_target_gives_a_shifted_network_that_starts_from_the_source(text, attention, layers, init, tmp_path):
    source, target = left_to_right(), Target.parse(text)
    source.save(tmp_path)
    network = target.network(source.config.network)
    assert (network.attention, network.layers, network.shifted) == (attention, layers, True)
    assert str(target) == text
    found = target.init(str(tmp_path), source.config.network)
    assert isinstance(found, init)
    model = network.build(source.config.vocabulary).eval()
    found.apply(model, source.tokenizer)
    tokens = torch.randint(0, 9, (2, 16), generator=torch.Generator().manual_seed(1))
    if text != "towers:4":  # whose hand-over starts near the source, not at it
        with torch.no_grad():
            theirs, ours = source.network(tokens), model.in_blocks(1)(tokens)
        torch.testing.assert_close(ours, theirs)


def test_sizes_are_powers_of_two_up_to_the_block():
    assert Target.parse("block:16").sizes == (1, 2, 4, 8, 16)
    assert Target.parse("block:6").sizes == (1, 2, 4, 6)
    chosen = Target.parse("block:8", (1, 4, 4, 8, 0), progressive=True)
    assert chosen.objective().corruption == BlockMasking((1, 4, 4, 8, 0), progressive=True)
    assert chosen.readings == (1, 4, 8, 0)
    assert chosen.network(ONE).block_size == 8


def test_anchored_kinds_train_the_anchor_term_and_finetune_two_stages():
    target = Target.parse("anchored-block:4")
    objective = target.objective()
    assert isinstance(objective, Anelbo)
    assert (objective.gamma, objective.masked_only, objective.rule.most) == (0.05, True, 2)
    assert target.init("folder", A2R) == Finetune("folder")
    assert target.network(A2R).layers == A2R.layers
    assert target.network(A2R).build(Vocabulary(9, 8)).reads_blocks


@pytest.mark.parametrize("text", ["blocks:4", "diffusion", ""])
def test_an_unknown_target_is_named(text):
    with raises(UnknownName, subject=text):
        Target.parse(text)


def test_what_makes_no_sense_is_refused():
    for text in ("block", "block:x", "masked:4"):
        with raises(ConfigError, subject="to"):
            Target.parse(text)
    with raises(OutOfRange, subject="to"):
        Target.parse("block:1")
    for sizes in ((1, 2), (4, 8), (-1, 4)):
        with raises(OutOfRange, subject="sizes"):
            Target.parse("block:4", sizes)
    for text, sizes in (("masked", (1, 2)), ("towers:4", (4, 0))):
        with raises(ConfigError, subject="sizes"):
            Target.parse(text, sizes)
    for text in ("block:4", "masked", "towers:4"):
        with raises(ConfigError, subject="to"):
            Target.parse(text).network(A2R)
