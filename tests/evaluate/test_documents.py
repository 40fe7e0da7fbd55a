import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.loader import read_rows
from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.tokenizer import characters, load_tokenizer, train_bpe
from adlm.errors import ConfigError, DataError, ModelError, UnknownName
from adlm.evaluate.documents import document_rows, packed_rows, spelled, unknown_tokens
from adlm.evaluate.likelihoods import score_items
from adlm.evaluate.statistics import ratio
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.bound import enumerated_nats
from adlm.objectives.likelihood import AGREEING, ESTIMATORS, estimator
from tests.conftest import Texts
from tests.errors import raises

LETTERS = characters("abcd")
PIECES = train_bpe(["the cat sat on the mat, naïve 日本 😀"] * 3, 280)
TEXTS = Texts(("the cat sat", "on the naïve mat 日本 😀", "", "the end of it is far away " * 3))


VOCABULARY = Vocabulary(LETTERS.vocab_size, LETTERS.mask_id)
STACK = StackConfig(width=16, heads=2, layers=1)
FRESH = {
    "one stage": OneStageConfig(STACK),
    "two stages": TwoStageConfig(STACK, denoiser_layers=1),
    "left to right": OneStageConfig(replace(STACK, attention="causal")),
    "two stages, left to right": TwoStageConfig(replace(STACK, attention="causal"), denoiser_layers=1),
}


def network(*, causal=False):
    model = OneStageConfig(replace(STACK, attention="causal" if causal else "full")).build(VOCABULARY).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh blocks add nothing, and no token would tell of another
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return model


def rows_of(table):
    every = np.arange(len(table))
    return [row[:length].tolist() for row, length in zip(table.tokens(every), table.lengths(every), strict=True)]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
@settings(max_examples=40, deadline=None)
def test_the_shares_of_tokens_add_up_to_the_text(text):
    ids, chars, sizes = spelled([text], PIECES)[0]
    assert ids.tolist() == PIECES.encode(text).tolist()
    assert (chars >= 0).all()
    assert (sizes >= chars).all()
    assert (chars.sum(), sizes.sum()) == (len(text), len(text.encode()))


def test_white_space_that_a_tokenizer_drops_counts_with_the_token_after_it(shared):
    bert = load_tokenizer(shared / "data/vocab/bert-base-uncased-vocab.txt")
    ids, chars, sizes = spelled(["Héllo  wörld \n"], bert)[0]
    assert len(ids) == 2
    assert chars.tolist() == [5, 9]  # the last token has what follows it, too
    assert sizes.tolist() == [6, 10]


@pytest.mark.parametrize(
    "packing",
    [
        Wrapped(8),
        Wrapped(8, separated=False),
        Wrapped(9, framed=True),
        Wrapped(8, apart=True),
        Padded(8),
        Padded(8, crop=True, begin=False),
        Padded(8, predict_padding=True),
    ],
    ids=repr,
)
def test_packed_rows_are_those_that_prepare_makes(packing, tmp_path):
    table = packed_rows(TEXTS, "train", PIECES, packing)
    shards = prepare(TEXTS, "train", PIECES, packing, cache=tmp_path)
    every = np.arange(len(shards))
    assert len(table) == len(shards) == table.items
    for name in ("tokens", "lengths", "valid", "scored_lengths"):
        assert np.array_equal(getattr(table, name)(every), getattr(shards, name)(every)), name
    tokens = shards.tokens(every)
    assert (table.documents(tokens) is None) == (shards.documents(tokens) is None)
    if packing.keeps_apart:
        assert np.array_equal(table.documents(tokens), shards.documents(tokens))


def test_characters_and_bytes_are_those_of_the_scored_text():
    whole = "".join(TEXTS.texts)
    padded = packed_rows(TEXTS, "train", PIECES, Padded(8))
    assert (padded.characters.sum(), padded.bytes.sum()) == (len(whole), len(whole.encode()))
    wrapped = packed_rows(TEXTS, "train", PIECES, Wrapped(8))
    assert wrapped.left_out > 0
    # One stream, an end token without text after each document, as far as rows are full.
    fractions = [size for text in TEXTS.texts for size in [*spelled([text], PIECES)[0].bytes.tolist(), 0]]
    assert wrapped.bytes.tolist() == [sum(fractions[i : i + 8]) for i in range(0, 8 * len(wrapped), 8)]


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    length=st.integers(4, 9),
    stride=st.integers(1, 9),
    end=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_windows_score_each_token_once_after_enough_context(lengths, length, stride, end):
    texts = tuple(("abcd" * 10)[:n] for n in lengths)
    packing = Padded(length, begin=False, end=end)
    if not end and not any(lengths):
        with raises(DataError, subject="texts"):
            document_rows(Texts(texts), "train", LETTERS, packing)
        return
    if stride > length:
        with raises(ConfigError, subject="stride"):
            document_rows(Texts(texts), "train", LETTERS, packing, stride=stride)
        return
    table = document_rows(Texts(texts), "train", LETTERS, packing, stride=stride)
    whole = [[*LETTERS.encode(text).tolist(), *[LETTERS.roles.eos_id] * end] for text in texts]
    whole = [ids for ids in whole if ids]
    found = [[] for _ in whole]
    for row, context, owner in zip(rows_of(table), table.given_lengths, table.owners, strict=True):
        assert found[owner][len(found[owner]) - context :] == row[:context]
        assert context == 0 or context >= length - stride
        assert len(row) > context
        found[owner] += row[context:]
    assert found == whole
    assert table.by_item(table.characters).tolist() == [len(ids) - end for ids in whole]


def test_given_context_is_seen_and_not_scored():
    table = document_rows(Texts(("abcd" * 4,)), "train", LETTERS, Padded(8, begin=False, end=False), stride=4)
    every = np.arange(len(table))
    assert table.frozen(every).sum(-1).tolist() == [0, 4, 4]
    assert table.scored_lengths(every).tolist() == [8, 4, 4]
    assert document_rows(Texts(("abcd",)), "train", LETTERS, Padded(8)).frozen(np.arange(1)) is None


def test_a_limit_takes_the_first_ones():
    texts = Texts(("abcd" * 3, "dcba" * 5, "aa"))
    every, some = (packed_rows(texts, "train", LETTERS, Wrapped(8), limit=limit) for limit in (None, 2))
    assert rows_of(some) == rows_of(every)[:2]
    documents = document_rows(texts, "train", LETTERS, Wrapped(8), limit=2)
    assert documents.items == 2
    assert documents.key == every.key != packed_rows(Texts(("abcd" * 9,)), "train", LETTERS, Wrapped(8)).key


def test_text_without_a_full_row_is_refused():
    with raises(DataError, subject="texts"):
        packed_rows(Texts(("ab",)), "train", LETTERS, Wrapped(8))


def test_unknown_text_is_counted():
    assert unknown_tokens(packed_rows(Texts(("abxcydab",)), "train", LETTERS, Padded(8)), LETTERS) == 2
    assert unknown_tokens(packed_rows(Texts(("naïve 日本",)), "train", PIECES, Padded(8)), PIECES) == 0


@pytest.mark.parametrize("kind", FRESH)
@pytest.mark.parametrize("packing", [Wrapped(8), Wrapped(8, framed=True), Padded(8), Padded(8, begin=False)], ids=repr)
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary_and_the_bits_that_follow(kind, packing):
    model = FRESH[kind].build(VOCABULARY)
    texts = Texts(("abcd" * 5, "dcba", "abba" * 3))
    tables = [packed_rows(texts, "train", LETTERS, packing)]
    tables += [document_rows(texts, "train", LETTERS, packing, stride=stride) for stride in (None, 3)]
    for table in tables:
        scored = score_items(model, table, estimator("exact" if model.causal else "counts", model), draws=3)
        figures = scored.figures()
        assert figures["perplexity"].value == pytest.approx(VOCABULARY.size - 1, rel=1e-6)
        assert figures["perplexity"].error == pytest.approx(0, abs=1e-5)
        assert figures["perplexity"].kind == ("exact" if model.causal else "bound")
        bits = scored.tokens.sum() * math.log2(VOCABULARY.size - 1) / table.characters.sum()
        assert figures["bits_per_character"].value == pytest.approx(bits, rel=1e-6)
        assert figures["bits_per_byte"].value == pytest.approx(bits, rel=1e-6)


def law_of_any_order(model, row, valid):
    """p(row) when its tokens are written in uniformly random order."""
    ids, mask = row.tolist(), VOCABULARY.mask_id

    @cache
    def rest(masked):
        if not masked:
            return 1.0
        x_t = torch.tensor([[mask if i in masked else token for i, token in enumerate(ids)]])
        with torch.no_grad():
            log_p = model.logits(model.features(x_t, segments=valid.long()[None] - 1).final[0]).log_softmax(-1)
        return sum(log_p[i, ids[i]].exp().item() * rest(masked - {i}) for i in masked) / len(masked)

    return rest(frozenset(valid.nonzero()[:, 0].tolist()))


def test_estimates_agree_with_the_exact_bound_of_a_document_which_lies_above_its_likelihood():
    model, text = network(), "ddca"
    batch = read_rows(document_rows(Texts((text,)), "train", LETTERS, Wrapped(8)), np.arange(1))
    bound = enumerated_nats(model, batch).sum().item()
    assert bound > -math.log(law_of_any_order(model, batch.tokens[0], batch.valid[0])) + 1e-4
    many = document_rows(Texts((text,) * 800), "train", LETTERS, Wrapped(8))
    for objective in AGREEING.values():
        scored = score_items(model, many, objective, draws=4, batch=800)
        nats, error = ratio(scored.nats, np.ones(800))
        assert nats == pytest.approx(bound, abs=4 * error)
        assert error < 0.03 * bound


def test_sliding_windows_of_a_left_to_right_model_cost_what_its_conditionals_say():
    model = network(causal=True)
    ids = LETTERS.encode("abcddcbaabdc")
    table = document_rows(Texts(("abcddcbaabdc",)), "train", LETTERS, Padded(6, begin=False, end=False), stride=2)
    expected = 0.0
    with torch.no_grad():
        for position, token in enumerate(ids.tolist()):
            start = 0 if position < 6 else 2 * ((position - 4) // 2)
            seen = torch.from_numpy(ids[start : start + 6])[None]
            log_p = model.logits(model.features(seen).final[0, position - start]).log_softmax(-1)
            expected -= log_p[token].item()
    scored = score_items(model, table, ESTIMATORS["exact"])
    assert (scored.nats.tolist(), scored.draws) == ([pytest.approx(expected, rel=1e-5)], 0)


def test_logits_that_are_not_numbers_are_an_error():
    model = network()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    table = packed_rows(Texts(("abcd" * 9,)), "train", LETTERS, Wrapped(8))
    with raises(ModelError, subject="texts (train)"):
        score_items(model, table, ESTIMATORS["counts"])


def test_an_estimator_has_to_suit_the_model():
    for causal, name in ((True, "counts"), (False, "exact")):
        with raises(ConfigError, subject="estimator"):
            estimator(name, network(causal=causal))
    with raises(UnknownName, subject="count"):
        estimator("count", network())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 9)), min_size=2, max_size=30))
def test_the_error_of_a_ratio_does_not_punish_different_lengths(pairs):
    values, sizes = (np.array(column, float) for column in zip(*pairs, strict=True))
    value, error = ratio(values, sizes)
    assert value == pytest.approx(values.sum() / sizes.sum())
    assert ratio(3 * sizes, sizes) == (pytest.approx(3), pytest.approx(0, abs=1e-9))
    same = np.ones(len(values))
    assert ratio(values, same)[1] == pytest.approx(values.std(ddof=1) / math.sqrt(len(values)), abs=1e-9)
    assert error >= 0
