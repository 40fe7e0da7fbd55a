import json
from dataclasses import replace

import pytest
import torch

from adlm.config import from_json, to_json
from adlm.errors import UnknownName
from adlm.models.costs import count_parameters
from adlm.models.one_stage import OneStageConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo
from adlm.objectives.objective import CrossEntropy
from adlm.recipes.matched import MATCHED_BASELINES
from adlm.recipes.named import FAMILIES, matched, recipe, recipes
from adlm.train.plan import EFFICIENCY, memory, summary
from adlm.train.run import Run
from adlm.train.workload import known_vocabulary, row_length
from tests.errors import raises

NAMES = [
    f"{corpus}-{kind}{size}"
    for corpus, family in FAMILIES.items()
    for kind in family.kinds
    for size in ("", *(f"-{size}" for size in family.sizes))
]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_can_be_stored_and_built_and_its_objective_fits_its_network(name):
    run = recipe(name)
    assert from_json(Run, json.loads(json.dumps(to_json(run)))) == run
    with torch.device("meta"):
        model = run.network.build(known_vocabulary(run.data))
    assert count_parameters(run.network, model.vocabulary).total == sum(p.numel() for p in model.parameters())
    assert model.causal == isinstance(run.objective, CrossEntropy)
    assert (model.anchor_head is not None) == isinstance(run.objective, Anelbo | AnchoredCrossEntropy)
    assert run.train.rows(row_length(run.data)) % 16 == 0
    assert run.validation.every % run.checkpoint.every == 0


@pytest.mark.parametrize("corpus", FAMILIES)
def test_the_runs_on_a_corpus_differ_in_their_model_alone(corpus):
    runs = [recipe(f"{corpus}-{kind}") for kind in FAMILIES[corpus].kinds]
    for run in runs:
        parts = 2 if run.network.block_size and corpus in ("lm1b", "openwebtext") else 1  # two copies of each row
        micro_batch_size = runs[0].train.micro_batch_size // parts
        assert run.data == runs[0].data
        assert run.train == replace(runs[0].train, micro_batch_size=micro_batch_size)
        assert run.validation == replace(runs[0].validation, micro_batch_size=micro_batch_size)


def test_the_list_has_each_run_once_under_its_own_name():
    listed = recipes()
    assert list(listed) == [run.name for run in listed.values()]
    assert {"demo-adlm", "text8-a2r", "wikitext2-mdlm-same-cost", "lm1b-sedd", "openwebtext-adlm-gamma0"} <= {*listed}


@pytest.mark.parametrize(("short", "long"), [("openwebtext-adlm", "small"), ("text8-mdlm-same-cost", "nano")])
def test_the_usual_size_may_be_named(short, long):
    assert recipe(f"{short}-{long}") == recipe(short)


def test_another_size_changes_the_network_and_the_name():
    small, medium = recipe("openwebtext-adlm"), recipe("openwebtext-adlm-medium")
    assert medium.name == "openwebtext-adlm-medium"
    assert medium.network.layers == (24, 12)
    assert (small.data, small.objective, small.train.tokens_per_step) == (
        medium.data,
        medium.objective,
        medium.train.tokens_per_step,
    )


@pytest.mark.parametrize(
    ("name", "kind", "known"),
    [
        ("openwebtext-adml", "recipe", "openwebtext-adlm"),
        ("openwebtext-adml-medium", "recipe", "openwebtext-adlm"),
        ("openwebtext-adlm-large", "recipe", "openwebtext-adlm"),
        ("text8-adlm-medium", "size of text8-adlm", "micro"),
        ("demo-adlm-small", "size of demo-adlm", None),
        ("adlm", "recipe", "demo-adlm"),
        ("", "recipe", "demo-adlm"),
    ],
)
def test_unknown_names_are_met_with_known_ones(name, kind, known):
    with raises(UnknownName, kind=kind) as caught:
        recipe(name)
    assert known in (caught.value.known or [None])


def test_twins_name_the_run_they_match_and_others_match_none():
    assert matched("openwebtext-mdlm-same-cost-tiny") == recipe("openwebtext-adlm-tiny")
    assert matched("text8-mdlm-same-parameters") == recipe("text8-adlm")
    for name in ("openwebtext-mdlm", "openwebtext-adlm-gamma0", "demo-mdlm"):
        assert matched(name) is None


@pytest.mark.parametrize(("corpus", "length", "vocabulary"), [("lm1b", 128, 30_522), ("openwebtext", 1024, 50_258)])
def test_published_runs_have_the_published_settings(corpus, length, vocabulary):
    run = recipe(f"{corpus}-adlm")
    train, optimizer, objective = run.train, run.train.optimizer, run.objective
    found = summary(run)
    assert (found.rows, found.length, found.vocabulary.size, found.steps) == (512, length, vocabulary, 1_000_000)
    assert (optimizer.lr, optimizer.betas, optimizer.weight_decay) == (3e-4, (0.9, 0.999), 0)
    assert [train.lr_schedule.fraction(step, train.steps) for step in (0, 2499, 999_999)] == [1 / 2500, 1, 1]
    assert (train.grad_clip, train.ema_decay, train.precision) == (1.0, 0.9999, "auto")
    assert (objective.gamma, objective.rule.most, objective.masked_only) == (3e-3, 5, False)
    assert (objective.corruption.first, objective.corruption.times.group) == (1e-3, 512)
    assert run.network.layers == (12, 6)
    assert run.network.stacks[0].dropout == 0.1
    assert recipe(f"{corpus}-adlm-gamma0").objective.gamma == 0
    assert recipe(f"{corpus}-d3pm").objective.corruption.steps == 1000
    assert [recipe(f"{corpus}-{kind}").network.stack.timed for kind in ("mdlm", "sedd", "d3pm")] == [False, True, True]


def test_the_published_sizes_are_those_of_the_papers():
    millions = {kind: round(summary(recipe(f"openwebtext-{kind}")).parameters.total / 1e6) for kind in ("mdlm", "adlm")}
    assert millions == {"mdlm": 170, "adlm": 293}


@pytest.mark.parametrize("corpus", ["lm1b", "openwebtext"])
@pytest.mark.parametrize("kind", ["adlm", "a2r", "sedd", "adlm-block4", "towers", *MATCHED_BASELINES])
@pytest.mark.parametrize("size", ["small", "medium"])
def test_published_micro_batches_fit_a_gpu_of_80_gb_and_are_the_same_on_eight(corpus, kind, size):
    if kind not in FAMILIES[corpus].kinds:
        pytest.skip("a kind of small runs")
    run = recipe(f"{corpus}-{kind}-{size}")
    assert memory(run, known_vocabulary(run.data), rows=run.train.micro_batch_size, bf16=True).total < 60e9
    assert 512 % (8 * run.train.micro_batch_size) == 0 or 512 // 8 % run.train.micro_batch_size == 0


def test_the_small_runs_take_two_hours_at_most_on_two_cores():
    cpu = 80e9 * EFFICIENCY
    for name, run in recipes().items():
        if not name.startswith(("lm1b", "openwebtext")):
            hours = summary(run).all_work / cpu / 3600
            assert hours < (0.1 if name.startswith("demo") else 2) * (2 if run.network.block_size else 1)


@pytest.mark.parametrize("corpus", ["lm1b", "openwebtext"])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_published_block_diffusion_is_mdlm_that_turns_to_blocks(corpus, size):
    mdlm, block = recipe(f"{corpus}-mdlm"), recipe(f"{corpus}-block{size}")
    network = block.network
    assert network.variant(attention="full", block_size=0) == mdlm.network
    assert (network.block_size, network.shifted, network.time_conditioned) == (size, False, False)
    masking = block.objective.corruption
    assert masking.progressive
    assert masking.sizes.count(0) / len(masking.sizes) == 0.85
    assert set(masking.sizes) == {0, size}
    assert recipe(f"{corpus}-adlm-block{size}").network.variant(attention="full", block_size=0) == (
        recipe(f"{corpus}-adlm").network
    )


def test_two_towers_are_a_causal_stage_over_finished_blocks_and_a_block_denoiser():
    for name in ("demo-towers", "text8-towers", "lm1b-towers"):
        network = recipe(name).network
        assert [stack.attention for stack in network.stacks] == ["causal", "block"]
        assert network.blind_anchor


def test_a_small_left_to_right_model_can_start_its_block_model():
    for corpus in ("text8", "demo"):
        ar, block = recipe(f"{corpus}-ar").network, recipe(f"{corpus}-block").network
        assert ar == replace(block, stack=replace(block.stack, attention="causal"), block_size=0, shift=False)


def test_the_demo_has_models_of_one_size_and_cost():
    ar, mdlm, adlm = (recipe(f"demo-{kind}") for kind in ("ar", "mdlm", "adlm"))
    assert isinstance(ar.network, OneStageConfig)
    assert isinstance(adlm.network, TwoStageConfig)
    assert adlm.network.layers == (3, 1)
    assert ar.network == replace(
        mdlm.network, stack=replace(mdlm.network.stack, attention="causal", input_reinjection=0)
    )
    assert summary(mdlm).parameters.total == pytest.approx(summary(adlm).parameters.total, rel=0.02)
    assert summary(mdlm).work == pytest.approx(summary(adlm).work, rel=0.02)
    assert (adlm.train.tokens_per_step, adlm.train.steps) == (1024, 1500)
