from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adlm import recipe
from adlm.config import from_json, to_json, with_changes
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ModelError
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.io import ModelConfig, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.randomness import Noise
from adlm.train.init import AnchorFrom, Finetune, Init, RandomInit, SplitFrom
from adlm.types import Batch
from tests.errors import raises

TOKENIZER = characters("abcdefghijklmnopqrstuvwxyz")
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
STACK = StackConfig(width=16, heads=2, layers=2, convolution=3, dropout=0.1)
ONE, TWO = OneStageConfig(STACK, positions=8), TwoStageConfig(STACK, 2, Continued(), positions=8)
TOKENS = torch.randint(0, VOCABULARY.size, (3, 8), generator=torch.Generator().manual_seed(1))


def saved(folder, network, tokenizer=TOKENIZER):
    """A model whose weights are all in use, as after training, and its folder."""
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(8))
    model = config.build()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5 if "head" in name or "embedding" in name else 0.2)
    save_model(folder, model, config, tokenizer)
    return model.eval(), str(folder)


def probabilities(model, t=None):
    model.eval()
    with torch.no_grad():
        return model.logits(model.features(TOKENS, t).final.flatten(0, 1)).softmax(-1)


@pytest.mark.parametrize("network", [ONE, TWO, replace(TWO, hand_over=Logits(), tied=True)], ids=["1", "2", "tied"])
def test_fine_tuning_starts_from_the_weights_of_the_other_model_to_the_bit(tmp_path, network):
    other, folder = saved(tmp_path, network)
    shape = "stack" if network is ONE else "anchor"
    model = replace(network, **{shape: replace(STACK, dropout=0.3)}).build(VOCABULARY)
    Finetune(folder).apply(model, TOKENIZER)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.requires_grad
    assert model.training
    assert torch.equal(probabilities(model), probabilities(other))


@pytest.mark.parametrize("stack", [STACK, replace(STACK, attention="causal"), replace(STACK, condition=8)], ids="ncm")
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("hand_over", "error"), [(Continued(), 1e-6), (Logits(), 1e-3)], ids=["continued", "logits"])
def test_two_stages_that_start_from_one_predict_the_same(tmp_path, stack, tied, hand_over, error):
    other, folder = saved(tmp_path, replace(ONE, stack=stack, tied=tied))
    model = TwoStageConfig(replace(stack, dropout=0.0), 2, hand_over, tied=tied, positions=8).build(VOCABULARY)
    AnchorFrom(folder).apply(model, TOKENIZER)
    expected = probabilities(other)
    assert expected.max() > 0.3
    assert (probabilities(model) - expected).abs().max() < error
    anchor = model.anchor_logits(model.features(TOKENS).anchor.flatten(0, 1))
    anchor[:, VOCABULARY.mask_id] = -torch.inf
    assert (anchor.softmax(-1) - expected).abs().max() < 1e-6


@pytest.mark.parametrize("attention", ["causal", "block"])
def test_a_model_that_is_split_into_two_stages_predicts_the_same(tmp_path, attention):
    causal = replace(STACK, layers=3, attention="causal")
    other, folder = saved(tmp_path, replace(ONE, stack=causal))
    size = 4 if attention == "block" else 0
    lower = replace(causal, layers=2, attention=attention)
    model = TwoStageConfig(lower, 1, Continued(), positions=8, block_size=size, shift=True).build(VOCABULARY)
    SplitFrom(folder).apply(model, TOKENIZER)
    assert sum(map(torch.numel, model.anchor.blocks.parameters())) > 0
    assert torch.equal(probabilities(model.in_blocks(1)), probabilities(other))
    assert not torch.equal(model.anchor.blocks[0].up.weight, model.denoiser.blocks[0].up.weight)


def test_without_the_anchor_loss_a_split_model_is_trained_exactly_as_the_whole_one(tmp_path):
    causal = replace(STACK, layers=3, attention="causal", dropout=0.0)
    _, folder = saved(tmp_path, replace(ONE, stack=causal, tied=True))
    blocks = replace(causal, attention="block")
    one = OneStageConfig(blocks, True, 8, block_size=4, shift=True)
    two = TwoStageConfig(replace(blocks, layers=2), 1, Continued(), True, 8, block_size=4, shift=True)
    numbers = torch.arange(len(TOKENS))
    batch = Batch(TOKENS, torch.ones_like(TOKENS, dtype=torch.bool), numbers, numbers)
    corruption = BlockMasking((4,))
    arms = [
        (one, Finetune(folder), Nelbo(corruption)),
        (two, SplitFrom(folder), Anelbo(corruption, gamma=0.0)),
        (two, SplitFrom(folder), Anelbo(corruption, gamma=0.1)),
    ]
    found = []
    for network, start, objective in arms:
        model = network.build(VOCABULARY)
        start.apply(model, TOKENIZER)
        terms = objective(model, batch, progress=1.0, noise=Noise(1))
        terms.loss_sum.backward()
        found.append((terms.loss_sum.item(), model.embedding.tokens.weight.grad))
    whole, split, anchored = found
    assert split[0] == whole[0]
    assert torch.equal(split[1], whole[1])
    assert anchored[0] > whole[0]
    assert not torch.equal(anchored[1], whole[1])


def test_a_split_needs_the_same_layers_and_a_residual_stream_that_continues(tmp_path):
    causal = replace(STACK, layers=3, attention="causal")
    _, folder = saved(tmp_path, replace(ONE, stack=causal))
    fitting = TwoStageConfig(replace(causal, layers=2), 1, Continued(), positions=8)
    for network, subject in (
        (replace(fitting, denoiser_layers=2), "network.anchor.layers"),
        (replace(fitting, hand_over=Hidden()), "network.hand_over"),
        (ONE, "init"),
        (replace(fitting, anchor=replace(STACK, layers=2)), "network.shift"),
    ):
        with raises(ModelError, subject=subject):
            SplitFrom(folder).apply(network.build(VOCABULARY), TOKENIZER)


def test_two_timed_stages_that_start_from_one_predict_the_same_at_any_time(tmp_path):
    stack = replace(STACK, condition=8, timed=True)
    other, folder = saved(tmp_path, replace(ONE, stack=stack))
    model = TwoStageConfig(stack, 1, Continued(), positions=8).build(VOCABULARY)
    AnchorFrom(folder).apply(model, TOKENIZER)
    t = torch.tensor([0.1, 0.5, 0.9])
    assert (probabilities(model, t) - probabilities(other, t)).abs().max() < 1e-6


def test_a_gated_hand_over_starts_much_nearer_to_one_stage_than_a_fresh_one(tmp_path):
    other, folder = saved(tmp_path, ONE)
    with torch.no_grad():
        other.embedding.tokens.weight.mul_(0.1)
    save_model(tmp_path, other, ModelConfig(ONE, VOCABULARY, Wrapped(8)), TOKENIZER)
    expected, apart = probabilities(other), []
    for start in (AnchorFrom(folder), RandomInit()):
        torch.manual_seed(0)
        model = replace(TWO, hand_over=Hidden()).build(VOCABULARY)
        start.apply(model, TOKENIZER)
        apart.append((probabilities(model) - expected).abs().sum(-1).mean())
    assert apart[0] < 0.5 * apart[1]


def test_a_hand_over_that_cannot_be_undone_leaves_the_second_stage_fresh(tmp_path):
    _, folder = saved(tmp_path, ONE)
    torch.manual_seed(0)
    fresh = replace(TWO, hand_over=Probabilities()).build(VOCABULARY)
    torch.manual_seed(0)
    model = replace(TWO, hand_over=Probabilities()).build(VOCABULARY)
    AnchorFrom(folder).apply(model, TOKENIZER)
    for (name, ours), theirs in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(ours, theirs) == (name.split(".")[0] not in ("embedding", "anchor", "anchor_head"))


def test_a_tied_model_can_start_an_untied_one_and_not_the_other_way_round(tmp_path):
    other, folder = saved(tmp_path / "tied", replace(ONE, tied=True))
    model = TWO.build(VOCABULARY)
    AnchorFrom(folder).apply(model, TOKENIZER)
    assert torch.equal(model.head.weight, other.embedding.tokens.weight)
    assert model.head.weight is not model.embedding.tokens.weight
    assert (probabilities(model) - probabilities(other)).abs().max() < 1e-6
    _, folder = saved(tmp_path / "untied", ONE)
    with raises(ModelError, subject="network.tied"):
        AnchorFrom(folder).apply(replace(TWO, tied=True).build(VOCABULARY), TOKENIZER)


@pytest.mark.parametrize(
    "changes",
    [{"width": 32}, {"layers": 3}, {"heads": 4}, {"layers": 1, "query_key_norm": True}],
    ids=str,
)
def test_fields_that_differ_are_named(tmp_path, changes):
    _, folder = saved(tmp_path, ONE)
    model = replace(TWO, anchor=replace(STACK, **changes)).build(VOCABULARY)
    with raises(ModelError, subject=", ".join(f"network.anchor.{name}" for name in changes)):
        AnchorFrom(folder).apply(model, TOKENIZER)
    model = replace(ONE, stack=replace(STACK, **changes)).build(VOCABULARY)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with raises(ModelError, subject=", ".join(f"network.stack.{name}" for name in changes)):
        Finetune(folder).apply(model, TOKENIZER)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_models_of_another_kind_are_named(tmp_path):
    _, one = saved(tmp_path / "one", ONE)
    _, two = saved(tmp_path / "two", TWO)
    for start, network, subject in [
        (Finetune(one), TWO, "init"),
        (Finetune(two), ONE, "init"),
        (Finetune(two), replace(TWO, hand_over=Logits()), "network.hand_over"),
        (Finetune(two), replace(TWO, positions=0), "network.positions"),
        (AnchorFrom(one), replace(TWO, positions=9), "network.positions"),
        (AnchorFrom(two), TWO, two),
        (AnchorFrom(one), ONE, "init"),
    ]:
        with raises(ModelError, subject=subject):
            start.apply(network.build(VOCABULARY), TOKENIZER)


def test_a_model_that_is_not_there_is_an_error_of_the_model(tmp_path):
    with raises(ModelError, subject=str(tmp_path / "nowhere")):
        Finetune(str(tmp_path / "nowhere")).apply(ONE.build(VOCABULARY), TOKENIZER)


def test_the_tokenizer_must_be_the_models(tmp_path):
    _, folder = saved(tmp_path, ONE)
    for other in (characters("abc"), characters("zyxwvutsrqponmlkjihgfedcba")):  # another size; the same, other ids
        network = ONE.build(Vocabulary(other.vocab_size, other.mask_id))
        with raises(ModelError, subject="data.tokenizer"):
            Finetune(folder).apply(network, other)


@pytest.mark.parametrize("start", [RandomInit(), Finetune("owner/name"), AnchorFrom("runs/mdlm")], ids=repr)
def test_starts_can_be_stored(start):
    assert from_json(Init, to_json(start)) == start


def test_a_recipe_of_one_stage_becomes_the_first_of_two_as_the_guide_says(tmp_path):
    """The pair of commands in docs/training.md: the second finds its anchor stage in what the first trains."""
    change = "network.stack.input_reinjection=0"
    assert change in Path("docs/training.md").read_text(encoding="utf-8")
    _, folder = saved(tmp_path, with_changes(recipe("wikitext2-mdlm"), [change]).network)
    AnchorFrom(folder).apply(recipe("wikitext2-adlm").network.build(VOCABULARY), TOKENIZER)
