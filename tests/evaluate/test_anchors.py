import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.anchors import RareInSequence
from adlm.data.packing import Padded
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError, DataError, ModelError
from adlm.evaluate import anchor_sums, anchor_trials
from adlm.evaluate.anchor_study import anchor_figures, reliability
from adlm.evaluate.anchor_sums import (
    BINS,
    IN_CORPUS,
    IN_ROW,
    KINDS,
    MAIN,
    STAGES,
    WORDS,
    AnchorNumbers,
    Types,
    check_anchored,
)
from adlm.evaluate.anchor_trials import TRIALS, Trials
from adlm.evaluate.documents import packed_rows
from adlm.evaluate.statistics import jackknife
from adlm.evaluate.statistics import jackknife_ratio as ratio
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.conftest import Texts, batch_of
from tests.errors import raises

LINES = (
    "the cat sat on the mat.",
    "the dog, the cat and the 7 logs: on and on and on!",
    "a log sat 12 days.",
    "the the",
)
TOKENIZER = train_words(LINES)
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
HAND_OVERS = (Logits(), Probabilities(), Hidden(), Continued())
LEVELS = (0.2, 0.7)


def network(hand_over=Logits(), *, causal=False, timed=False):  # noqa: B008
    torch.manual_seed(0)
    stack = StackConfig(
        width=16, heads=2, layers=1, attention="causal" if causal else "full", condition=8 if timed else 0, timed=timed
    )
    model = TwoStageConfig(stack, denoiser_layers=1, hand_over=hand_over).build(VOCABULARY).eval()
    for weights in model.parameters():  # blocks begin as the identity, heads at zero
        weights.data += 0.4 * torch.randn(weights.shape)
    return model


@pytest.fixture(scope="module")
def table():
    return packed_rows(Texts(LINES * 3), "train", TOKENIZER, Padded(20, predict_padding=True))


@pytest.fixture(scope="module")
def types(table):
    return Types.of(TOKENIZER, table)


def numbers(model, table, types, **options):
    return AnchorNumbers(model, table, types, RareInSequence(1), levels=LEVELS, **options)


@pytest.mark.parametrize(("hand_over", "timed"), [*((each, False) for each in HAND_OVERS), (Hidden(), True)])
def test_the_numbers_of_a_row_do_not_depend_on_the_rows_beside_it(hand_over, timed, table, types):
    measured = numbers(network(hand_over, timed=timed), table, types)
    together = measured(np.arange(4))
    alone = np.concatenate([measured(np.array([i])) for i in range(4)])
    assert np.allclose(together, alone, atol=1e-4)
    assert np.isfinite(together).all()


def test_a_level_s_numbers_do_not_depend_on_the_other_levels(table, types):
    two = numbers(network(), table, types)
    one = AnchorNumbers(network(), table, types, RareInSequence(1), levels=(0.7,))
    both, alone = two(np.arange(4)), one(np.arange(4))
    for name, position in one.columns.items():
        assert np.allclose(alone[:, position], both[:, two.columns[name]], atol=1e-4)


def test_kinds_divide_the_masked_tokens_of_the_text(table, types):
    measured = numbers(network(), table, types)
    sums = measured(np.arange(len(table)))
    for level in LEVELS:

        def count(kinds, level=level):
            return sum(sums[:, measured.columns[level, kind, "", "count"]] for kind in kinds)

        assert (count(MAIN) == count(WORDS)).all()
        assert (count(MAIN) == count(IN_ROW)).all()
        assert (count(MAIN) == count(IN_CORPUS)).all()
        bins = [measured.columns[level, kind, "denoiser", f"bin {i} count"] for kind in MAIN for i in range(BINS)]
        assert (sums[:, bins].sum(1) == count(MAIN)).all()
    lengths = table.lengths(np.arange(len(table)))
    total = sum(sums[:, measured.columns[0.7, kind, "", "count"]] for kind in MAIN)
    assert (total <= lengths).all()
    assert total.sum() > 0


def test_nats_are_those_of_the_model_at_masked_tokens(table, types):
    model = network()
    measured = numbers(model, table, types)
    sums = measured(np.arange(4))
    batch, text = measured._rows(np.arange(4))
    x_t, masked, _ = measured._corrupted(0.7, batch)
    features = model.features(x_t)
    for stage, head, hidden in (
        ("anchor stage", model.anchor_head, features.anchor),
        ("denoiser", model.head, features.final),
    ):
        log_p = head(hidden).log_softmax(-1).gather(-1, batch.tokens[..., None])[..., 0]
        expected = -(log_p * (masked & text)).sum(-1).detach().numpy()
        found = sum(sums[:, measured.columns[0.7, kind, stage, "nats"]] for kind in MAIN)
        assert np.allclose(found, expected, rtol=1e-4)


def test_small_slices_of_the_vocabulary_change_nothing(table, types, monkeypatch):
    whole = numbers(network(), table, types)(np.arange(6))
    sizes = []
    for module in (anchor_sums, anchor_trials):
        monkeypatch.setattr(module, "SLICE_LOGITS", 3 * VOCABULARY.size)
    model = network()
    model.head.register_forward_hook(lambda *call: sizes.append(len(call[-1])))
    assert np.allclose(numbers(model, table, types)(np.arange(6)), whole, atol=1e-4)
    assert max(sizes) <= 3


def handed(model, types, tokens, masked):
    batch = batch_of(tokens)
    x_t = tokens.masked_fill(masked, VOCABULARY.mask_id)
    stage = model.anchor_stage(x_t)
    order = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trials = Trials(model, types.log_fraction, lambda level: (stage.residual[masked], stage.anchor[masked]))
    return stage, dict(trials.hand_overs(0, stage, batch, masked, None, order))


ROWS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [2, 2, 3, 9, 5, 1, 7, 4]])
MASKED = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1, 0, 0]]).bool()


@torch.no_grad()
@pytest.mark.parametrize("hand_over", HAND_OVERS, ids=lambda each: type(each).__name__)
def test_trials_leave_visible_positions_alone_and_change_masked_ones(hand_over, types):
    model = network(hand_over)
    _, found = handed(model, types, ROWS, MASKED)
    assert set(found) == set(TRIALS)
    plain = found["as it is"]
    assert torch.equal(model.denoiser(plain, None, None, MASKED)[1], model.features(
        ROWS.masked_fill(MASKED, VOCABULARY.mask_id), output_mask=MASKED).final)  # fmt: skip
    for trial in TRIALS[1:]:
        assert torch.equal(found[trial][~MASKED], plain[~MASKED])
        assert not torch.allclose(found[trial][MASKED], plain[MASKED])


@torch.no_grad()
def test_noise_is_the_row_s_own_masked_inputs_in_other_positions(types):
    model = network()
    _, found = handed(model, types, ROWS, MASKED)
    for row in range(len(ROWS)):
        before, after = found["as it is"][row, MASKED[row]], found["noise"][row, MASKED[row]]
        same = torch.isclose(before[:, None], after[None], atol=1e-6).all(-1)
        assert same.sum(0).tolist() == same.sum(1).tolist() == [1] * len(before)
        assert not same.diagonal().any()


@torch.no_grad()
@pytest.mark.parametrize("hand_over", [Logits(), Probabilities()], ids=["logits", "probabilities"])
def test_truth_and_unigram_are_handed_over_as_whole_distributions_would_be(hand_over, types):
    model = network(hand_over)
    stage, found = handed(model, types, ROWS, MASKED)
    raw, mask_id = model.anchor_head.raw(stage.anchor), VOCABULARY.mask_id
    log_p = model.anchor_head(stage.anchor).log_softmax(-1)
    for row in range(len(ROWS)):
        positions = MASKED[row].nonzero()[:, 0].tolist()
        fraction = types.log_fraction.clone()
        if hand_over == Logits():
            fraction += torch.stack([model.anchor_head(stage.anchor[row, p]).logsumexp(-1) for p in positions]).mean()
            fraction[mask_id] = raw[row, positions, mask_id].mean()
        for position in positions:
            token, best = int(ROWS[row, position]), int(log_p[row, position].argmax())
            values = raw[row, position] if hand_over == Logits() else log_p[row, position].exp()
            told = values.clone()
            told[token], told[best] = values[best], values[token]
            for trial, v in (("truth", told), ("unigram", fraction if hand_over == Logits() else fraction.exp())):
                expected = model.hand_over.project(v) if hand_over == Logits() else v @ model.hand_over.table
                assert torch.allclose(found[trial][row, position], expected, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("hand_over", [Hidden(), Continued()], ids=["hidden", "continued"])
def test_truth_is_what_the_clean_text_gives_where_features_are_handed_over(hand_over, types):
    model = network(hand_over)
    _, found = handed(model, types, ROWS, MASKED)
    clean = model.anchor_stage(ROWS)
    if hand_over == Continued():
        assert torch.equal(found["truth"][MASKED], clean.residual[MASKED])
    else:
        embedded = model.embedding(ROWS.masked_fill(MASKED, VOCABULARY.mask_id))
        mixed = clean._replace(embedded=embedded)
        assert torch.allclose(found["truth"][MASKED], model.hand_over(mixed, model.anchor_head)[MASKED], atol=1e-6)


def test_anchors_that_carry_nothing_gain_nothing_over_unigram(table, types):
    model = network()
    model.hand_over.project.weight.data.zero_()
    measured = numbers(model, table, types)
    figures = anchor_figures(measured(np.arange(len(table))), measured.columns)
    gains = [figure for name, figure in figures.items() if name.endswith("gain over unigram")]
    assert gains
    assert all(abs(gain.value) < 1e-6 for gain in gains)


def test_an_anchor_stage_that_is_copied_by_the_denoiser_agrees_with_it(table, types):
    # A denoiser that adds nothing to what goes on through it predicts what the anchor stage did.
    model = network(Continued())
    for weights in model.denoiser.blocks.parameters():
        weights.data.zero_()
    for name in ("weight", "bias"):
        getattr(model.head, name).data.copy_(getattr(model.anchor_head, name))
    model.denoiser.load_state_dict({**model.denoiser.state_dict(), **{
        name: value for name, value in model.anchor.state_dict().items() if "blocks" not in name}})  # fmt: skip
    measured = numbers(model, table, types)
    figures = anchor_figures(measured(np.arange(len(table))), measured.columns)
    for level, kind in itertools.product(LEVELS, MAIN):
        assert figures[f"{level:g}, {kind}: agreement"].value == 1
        both = [figures[f"{level:g}, {kind}, {stage}: nats"].value for stage in STAGES]
        assert both[0] == pytest.approx(both[1])


def test_a_calibration_error_is_the_gap_between_confidence_and_accuracy():
    columns = {name: i for i, name in enumerate(anchor_sums._columns((0.5,)))}
    sums = np.zeros((10, len(columns)))
    for kind in KINDS:
        sums[:, columns[0.5, kind, "", "count"]] = 10
    # Nine tenths sure of ten tokens of which seven are right, in one bin.
    for what, value in (("count", 10), ("confidence", 9), ("correct", 7)):
        sums[:, columns[0.5, "anchor tokens", "denoiser", f"bin 9 {what}"]] = value
    figures = anchor_figures(sums, columns)
    assert figures["0.5, anchor tokens, denoiser: calibration error"].value == pytest.approx(0.2)
    assert figures["0.5, anchor tokens, denoiser: calibration error"].error == pytest.approx(0, abs=1e-9)
    assert reliability(sums, columns, "anchor tokens", "denoiser") == [(0.9, 0.7, 100)]


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_the_jackknife_of_a_mean_is_its_standard_error(values):
    table = np.stack([np.array(values), np.ones(len(values))], 1)
    value, error = ratio(table)
    assert value == pytest.approx(np.mean(values), abs=1e-9)
    assert error == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), abs=1e-6)


def test_one_item_has_no_error():
    assert jackknife(np.array([[3.0, 2.0]]), lambda sums: sums[..., 0] / sums[..., 1]) == (1.5, np.inf)


def test_types_know_their_words_and_how_frequent_they_are(types):
    def kind(word):
        return WORDS[int(types.words[TOKENIZER.encode(word)[-1]])]

    words = {"the": "function words", "the cat": "content words", "the 7": "digits", "the.": "punctuation"}
    assert {word: kind(word) for word in words} == words
    assert types.log_fraction.exp().sum() == pytest.approx(1)
    assert types.log_fraction[VOCABULARY.mask_id] == -torch.inf
    often, seldom = TOKENIZER.encode("the")[0], TOKENIZER.encode("the 12")[-1]
    assert types.quarter[often] > types.quarter[seldom]


def test_models_without_two_masked_stages_are_refused():
    one = OneStageConfig(StackConfig(width=16, heads=2, layers=1)).build(VOCABULARY)
    with raises(ConfigError, subject="stages"):
        check_anchored(one)
    with raises(ConfigError, subject="model"):
        check_anchored(network(causal=True))


@pytest.mark.parametrize("levels", [(), (0.0,), (1.0,), (0.5, 0.5), (-1.0,)])
def test_noise_levels_that_are_none_are_refused(levels, table, types):
    with raises(ConfigError, subject="levels"):
        AnchorNumbers(network(), table, types, RareInSequence(), levels=levels)


def test_data_of_another_tokenizer_is_refused(table):
    other = train_words(["the cat"])
    with raises(DataError, subject=table.name):
        Types.of(other, table)


def test_logits_that_are_not_finite_are_an_error(table, types):
    model = network()
    model.head.bias.data[:] = torch.nan
    with raises(ModelError, subject="logits"):
        numbers(model, table, types)(np.arange(2))
