import itertools
import json
from dataclasses import replace

import pytest
import torch

from adlm.anchors.rules import EveryToken, NoToken, RandomFraction, RareInSequence
from adlm.config import with_changes
from adlm.data.catalog import open_source
from adlm.data.config import Corpus
from adlm.data.packing import NOTHING, Encoded, Padded, Wrapped
from adlm.data.prompts import Prompts
from adlm.data.stories import Stories
from adlm.data.synthetic import Synthetic
from adlm.data.tokenizer import characters, load_tokenizer, train_bpe, train_words
from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import UniformMasking
from adlm.diffusion.masks_in_training import MirrorMasking
from adlm.errors import ConfigError
from adlm.models.costs import activation_bytes, forward_work, training_work
from adlm.models.hand_over import Continued, Hidden, Logits
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.randomness import Noise
from adlm.recipes.named import recipe
from adlm.train.optimizers import AdamW, Muon
from adlm.train.plan import EFFICIENCY, check_memory, lasting_memory, matmul_speed, memory, plan, summary
from adlm.train.run import Run, TrainConfig
from adlm.train.workload import KNOWN, VOCABULARIES, Known, block_sizes, fractions, known_vocabulary, row_length
from adlm.types import Batch
from tests.errors import raises

STACK = StackConfig(width=32, heads=2, layers=2)
TWO = TwoStageConfig(STACK, 1, Logits())
RUN = Run(
    "a run",
    Synthetic(vocabulary=70, length=16),
    TWO,
    Anelbo(gamma=0.01),
    TrainConfig(steps=10, tokens_per_step=16 * 16, micro_batch_size=4, optimizer=AdamW(), precision="float32"),
)
WORDS = Vocabulary(70, 69)


def batch_of(rows, length):
    tokens = torch.randint(0, 63, (rows, length), generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(rows)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), numbers, numbers)


def kept_bytes(model, objective, batch, bf16):
    """What autograd keeps for the backward pass besides the weights, storages counted once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held on to, so that no address is used twice
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        objective(model, batch, progress=0.5, noise=Noise(0))
    return sum(storage.nbytes() for storage in kept.values())


SHAPES = {
    "published": OneStageConfig(replace(STACK, condition=8, dropout=0.1)),
    "timed": OneStageConfig(replace(STACK, condition=8, dropout=0.1, timed=True)),
    "small": OneStageConfig(replace(STACK, convolution=5, query_key_norm=True), tied=True),
    "narrow MLP": OneStageConfig(replace(STACK, mlp_ratio=2)),
    "causal": OneStageConfig(replace(STACK, attention="causal")),
    "two stages": TWO,
    "two stages, continued": TwoStageConfig(STACK, 2, Continued()),
    "blocks": OneStageConfig(replace(STACK, attention="block"), block_size=8),
    "shifted blocks": OneStageConfig(
        replace(STACK, attention="block", convolution=5, query_key_norm=True), tied=True, block_size=16, shift=True
    ),
    "anchored blocks": TwoStageConfig(replace(STACK, attention="block"), 1, Hidden(), block_size=16),
}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("rows", "length", "layers"), [(16, 64, 2), (32, 128, 4)])
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_are_what_autograd_keeps(shape, rows, length, layers, bf16):
    network = SHAPES[shape]
    if isinstance(network, OneStageConfig):
        network = replace(network, stack=replace(network.stack, layers=layers))
    else:
        network = replace(network, anchor=replace(network.anchor, layers=layers))
    causal, two = shape == "causal", isinstance(network, TwoStageConfig)
    masking = BlockMasking((network.block_size,)) if network.block_size else UniformMasking()
    objective = CrossEntropy() if causal else Anelbo(masking, rule=EveryToken()) if two else Nelbo(masking)
    model = network.build(Vocabulary(64, 63)).train()
    kept = kept_bytes(model, objective, batch_of(rows, length), bf16)
    fractions = {"scored": 1.0 if causal else 0.5, "anchors": float(two)}
    options = {"length": length, "cpu": True, "short": 2 if bf16 else 4, **fractions}
    estimate = activation_bytes(network, **options) * rows * length
    assert estimate == pytest.approx(kept, rel=0.25)


def test_blocks_that_are_computed_again_keep_their_input_alone():
    network = OneStageConfig(replace(STACK, layers=8))
    model = network.build(Vocabulary(64, 63)).train()
    model.checkpoint_activations()
    kept = kept_bytes(model, Nelbo(), batch_of(16, 64), bf16=False)
    estimate = activation_bytes(network, activation_checkpointing=True) * 16 * 64
    assert kept < estimate < activation_bytes(network) * 16 * 64 / 2


def test_a_summary_counts_rows_tokens_and_the_work_of_every_micro_batch():
    found = summary(RUN)
    assert (found.rows, found.length, found.tokens, found.all_tokens) == (16, 16, 256, 2560)
    assert found.vocabulary == WORDS
    once = 3 * forward_work(TWO, WORDS, 16).once
    step = training_work(TWO, WORDS, length=16, rows=16, scored=0.5, anchors=1.0)
    assert found.work == step + 3 * once
    assert found.all_work == 10 * found.work
    assert summary(RUN, world_size=4).work == step + 3 * once  # four micro-batches, wherever they are computed
    assert summary(RUN, world_size=8).work == step + 7 * once


def test_a_plan_shares_the_step_among_processes():
    alone, four = plan(RUN), plan(RUN, world_size=4)
    assert (alone.micro_batch_size, alone.micro_batches) == (4, 4)
    assert (four.micro_batch_size, four.micro_batches) == (4, 1)
    assert plan(RUN, world_size=8).micro_batch_size == 2
    assert alone.seconds == pytest.approx(alone.summary.work / (EFFICIENCY * matmul_speed("cpu", False)))
    assert four.seconds == pytest.approx(alone.seconds / 4)
    assert alone.all_seconds == pytest.approx(10 * alone.seconds)
    with raises(ConfigError, subject="train.tokens_per_step"):
        plan(RUN, world_size=3)
    with raises(ConfigError, subject="train.tokens_per_step"):
        plan(RUN, world_size=32)


def test_memory_holds_weights_gradients_states_and_averages():
    weights = sum(parameter.numel() for parameter in TWO.build(WORDS).parameters())
    found = memory(RUN, WORDS, rows=4, bf16=False)
    assert found[:4] == (4 * weights, 4 * weights, 8 * weights, 0)
    assert found.total == sum(found)
    averaged = with_changes(RUN, ["train.ema_decay=0.999"])
    assert memory(averaged, WORDS, rows=4, bf16=False).ema == 4 * weights
    parts = memory(averaged, WORDS, rows=4, bf16=False, parts=4)
    assert parts[:4] == (weights, weights, 2 * weights, weights)
    assert parts[4:] == found[4:]


def test_muon_keeps_one_state_for_matrices_and_frozen_parts_keep_none():
    (adamw,) = AdamW().build(TWO.build(WORDS))
    numbers = sum(parameter.numel() for group in adamw.param_groups for parameter in group["params"])
    matrices = 3 * 12 * 32 * 32
    muon = replace(RUN, train=replace(RUN.train, optimizer=Muon()))
    assert memory(muon, WORDS, rows=4, bf16=False).optimizer == 4 * (2 * numbers - matrices)
    frozen = with_changes(RUN, ['train.freeze=["anchor"]'])
    assert memory(frozen, WORDS, rows=4, bf16=False).gradients < 4 * numbers
    assert memory(frozen, WORDS, rows=4, bf16=False).weights == 4 * numbers


def test_more_rows_need_more_memory_and_shorter_numbers_less():
    few, many, short = (memory(RUN, WORDS, rows=rows, bf16=bf16) for rows, bf16 in ((4, False), (8, False), (8, True)))
    assert many.activations == 2 * few.activations
    assert short.activations < many.activations
    assert short.weights == 1.5 * many.weights


@pytest.mark.parametrize(
    ("objective", "anchors"),
    [
        (Nelbo(), 0),
        (Anelbo(), 0.6),
        (Anelbo(gamma=0), 0),
        (Anelbo(fraction=0.5), 0.3),
        (Anelbo(masked_only=True), 0.3),
        (Anelbo(rule=EveryToken()), 1),
        (Anelbo(rule=RareInSequence(9)), 1),  # not counted: at its highest
        (Anelbo(rule=NoToken()), 0),
        (Anelbo(rule=RandomFraction(0.2)), 0.2),
        (AnchoredCrossEntropy(), 0.6),
    ],
)
def test_the_anchor_loss_is_taken_where_the_objective_says(objective, anchors):
    causal = isinstance(objective, CrossEntropy)
    run = Run(
        "a run",
        Corpus("openwebtext", "gpt2", Wrapped(1024, framed=True)),
        replace(TWO, anchor=replace(STACK, attention="causal" if causal else "full")),
        objective,
    )
    assert fractions(run) == (1, 1 if causal else 0.5, pytest.approx(anchors))


def test_blocks_are_scored_and_computed_as_their_sizes_say():
    network = TwoStageConfig(replace(STACK, attention="block"), 1, Hidden(), block_size=4)
    run = replace(RUN, network=network, objective=Nelbo(BlockMasking((4,))))
    assert fractions(run) == (1, 5 / 8, 0)
    anchored = replace(run, objective=Anelbo(BlockMasking((4,)), EveryToken(), masked_only=True))
    assert fractions(anchored) == (1, 5 / 8, 5 / 8)
    assert block_sizes(run) == (4,)
    assert block_sizes(RUN) == ()
    drawn = replace(run, objective=Nelbo(BlockMasking((16, 0, 2))))
    assert block_sizes(drawn) == (2,)
    turning = replace(run, objective=Nelbo(BlockMasking((0, 4), progressive=True)))
    assert block_sizes(turning) == (0, 4)
    assert fractions(turning).scored == (1 / 2 + 5 / 8) / 2
    whole = replace(run, objective=Nelbo(BlockMasking((0,))))
    assert summary(whole).work < summary(turning).work < summary(run).work
    assert memory(run, WORDS, rows=4, bf16=False).activations > memory(RUN, WORDS, rows=4, bf16=False).activations


def test_padding_is_left_out_of_the_work_except_by_timed_networks():
    data = Corpus("lm1b", "bert-base-uncased", Padded(128, crop=True))
    run = Run("a run", data, OneStageConfig(STACK), Nelbo(), TrainConfig(tokens_per_step=128 * 64))
    timed = replace(run, network=OneStageConfig(replace(STACK, condition=8, timed=True)))
    text = KNOWN["lm1b", "bert-base-uncased", 128].text
    assert fractions(run) == (text, text / 2, 0)
    assert fractions(timed) == (1, text / 2, 0)
    full = replace(run, data=replace(data, packing=Padded(64, crop=True)), train=TrainConfig(tokens_per_step=64 * 128))
    assert fractions(full) == (1, 0.5, 0)  # rows of a length that nobody counted
    assert 0.2 < summary(run).work / summary(full).work < 0.3


def test_vocabularies_are_known_before_data_is_read(tmp_path):
    assert known_vocabulary(Synthetic(vocabulary=100)) == Vocabulary(100, 99)
    assert known_vocabulary(Corpus("kjv", "bpe:300")) == Vocabulary(300, 299)
    assert row_length(Synthetic(length=32)) == 32
    assert row_length(Prompts("file", "gpt2", 48)) == 48
    tokenizer = characters("abc")
    tokenizer.save(tmp_path)
    expected = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    assert known_vocabulary(Corpus("kjv", str(tmp_path))) == expected
    for unknown in ("words", "somebody/tokenizer", "bpe:many"):
        with raises(ConfigError, subject=unknown):
            known_vocabulary(Corpus("kjv", unknown))


def roles_as_vocabulary(tokenizer):
    return Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)


def test_the_table_of_vocabularies_holds_for_tokenizers_made_here():
    assert VOCABULARIES["characters"] == roles_as_vocabulary(characters())
    words = train_words(Stories(train=2000).beginning("train"))
    assert known_vocabulary(Corpus("stories:40000", "words")) == roles_as_vocabulary(words)
    bpe = train_bpe(Stories(train=200).beginning("train"), 300)
    assert known_vocabulary(Corpus("stories", "bpe:300")) == roles_as_vocabulary(bpe)


def test_the_table_of_vocabularies_holds_for_published_tokenizers(shared):
    folder = shared / "data" / "vocab"
    assert VOCABULARIES["gpt2"] == roles_as_vocabulary(load_tokenizer(folder))
    bert = load_tokenizer(folder / "bert-base-uncased-vocab.txt")
    assert VOCABULARIES["bert-base-uncased"] == roles_as_vocabulary(bert)


def counted(texts, tokenizer, packing):
    """What the table says of a corpus, counted on some of its text."""
    packed = packing.pack(NOTHING, [Encoded(ids) for ids in tokenizer.encode_batch(texts)], tokenizer.roles)
    tokens, lengths = torch.from_numpy(packed.rows), torch.from_numpy(packed.lengths)
    valid = torch.arange(packing.length) < (packing.length if packing.padding_counts else lengths[:, None])
    valid = valid.expand(tokens.shape)
    numbers = torch.arange(len(tokens))
    anchors = RareInSequence(5).mark(Batch(tokens, valid, numbers, numbers)).sum() / valid.sum()
    return Known(anchors.item(), valid.float().mean().item())


def first(source, split, count):
    return [piece.text for piece in itertools.islice(source.pieces(split), count)]


def check_known(key, texts, tokenizer, packing):
    assert counted(texts, tokenizer, packing) == pytest.approx(KNOWN[key], abs=0.04)


def test_the_table_of_shares_holds_for_stories():
    source = Stories(train=2000)
    packing = Padded(64, begin=False, crop=True, predict_padding=True)
    check_known(("stories", "words", 64), first(source, "test", 300), train_words(source.beginning("train")), packing)


def test_the_table_of_shares_holds_for_published_corpora(shared):
    data = shared / "data"
    gpt2, bert = (load_tokenizer(data / "vocab" / name) for name in ("", "bert-base-uncased-vocab.txt"))
    with (data / "openwebtext" / "openwebtext_1000.jsonl").open(encoding="utf-8") as lines:
        pages = [json.loads(line)["text"] for line in itertools.islice(lines, 200)]
    check_known(("openwebtext", "gpt2", 1024), pages, gpt2, Wrapped(1024, framed=True))
    sentences = first(open_source("lm1b", folder=data / "lm1b"), "test", 1000)
    check_known(("lm1b", "bert-base-uncased", 128), sentences, bert, Padded(128, crop=True))
    letters = first(open_source("text8", folder=data / "text8"), "valid", 1)
    check_known(("text8", "characters", 256), [letters[0][:200_000]], characters(), Wrapped(256, separated=False))
    articles = open_source("wikitext2", folder=data / "wikitext2")
    check_known(
        ("wikitext2", "bpe:8192", 128),
        first(articles, "valid", 30),
        train_bpe(articles.beginning("test"), 8192),
        Wrapped(128),
    )
    stories = first(open_source("tinystories", folder=data / "tinystories"), "valid", 500)
    packing = Padded(256, begin=False, crop=True, predict_padding=True)
    check_known(("tinystories", "bpe:4096", 256), stories, train_bpe(stories, 4096), packing)


def test_rows_that_are_read_twice_cost_twice():
    plain = replace(RUN, network=OneStageConfig(STACK), objective=Nelbo())
    mirrored = replace(plain, objective=Nelbo(MirrorMasking()))
    assert summary(mirrored).work == pytest.approx(2 * summary(plain).work, rel=0.01)
    assert summary(mirrored).tokens == summary(plain).tokens
    once, twice = (memory(run, WORDS, rows=4, bf16=False) for run in (plain, mirrored))
    assert twice.activations == 2 * once.activations
    assert twice.weights == once.weights


def test_a_run_that_memory_cannot_hold_is_refused_before_anything_is_made(monkeypatch, tmp_path):
    run = recipe("demo-adlm")
    words = Vocabulary(1000, 999)
    needed = memory(run, words, rows=1, bf16=False).lasting
    assert needed == lasting_memory(run, words, bf16=False).total
    monkeypatch.setattr("adlm.train.plan.available_bytes", lambda: needed - 1)
    with raises(ConfigError, subject="memory"):
        check_memory(run, words)
    check_memory(run, words, parts=2)
    monkeypatch.setattr("adlm.train.plan.available_bytes", lambda: None)
    check_memory(run, words)
