"""What every sampler promises. Their laws are in test_exactness.py."""

import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.config import from_json, to_json
from adlm.diffusion.schedule import Cosine
from adlm.errors import ConfigError
from adlm.models.network import Vocabulary
from adlm.randomness import Noise
from adlm.samplers import (
    Above,
    Analytic,
    Ancestral,
    AnchorConfidence,
    AnyOrder,
    Banned,
    Blocks,
    ByConfidence,
    Canvas,
    Cap,
    Confidence,
    EntropyBound,
    FirstHitting,
    FlowCorrector,
    Forced,
    ForwardBackward,
    InSteps,
    LeastEntropy,
    LeftToRight,
    Loop,
    Margin,
    Never,
    Ordered,
    PerStep,
    Remasking,
    RepetitionPenalty,
    Rescale,
    Sampler,
    Temperature,
    TopK,
    TopP,
)
from adlm.samplers import state as samplers_state
from tests.conftest import TableModel
from tests.errors import raises
from tests.samplers.processes import MASK, VOCABULARY, inconsistent, networks

ONE_STAGE = {
    "ancestral": Ancestral(steps=5),
    "ancestral-cosine": Ancestral(steps=4, schedule=Cosine()),
    "remdm-cap": Remasking(steps=6, rule=Cap(0.3)),
    "remdm-rescale": Remasking(steps=6, rule=Rescale(0.5)),
    "remdm-conf": Remasking(steps=6, rule=ByConfidence()),
    "forward-backward": Remasking(steps=6, rule=ForwardBackward()),
    "dfm": Remasking(steps=6, rule=FlowCorrector()),
    "remdm-loop": Remasking(steps=6, rule=Loop(0.3)),
    "first-hitting": FirstHitting(),
    "analytic": Analytic(steps=5),
    "confidence": Ordered(order=Confidence(), pace=InSteps(3)),
    "margin": Ordered(order=Margin(), pace=PerStep(2)),
    "entropy-bounded": Ordered(order=LeastEntropy(), pace=EntropyBound(0.5)),
    "threshold": Ordered(order=Confidence(), pace=Above(0.6)),
    "random": Ordered(order=AnyOrder(), pace=PerStep(1)),
    "blocks": Blocks(inner=FirstHitting(), size=2),
    "blocks-window": Blocks(inner=Remasking(steps=4, rule=Cap(0.3)), size=3, window=5),
    "filters": Ancestral((RepetitionPenalty(1.3), Temperature(0.8), TopK(2), TopP(0.9)), steps=5),
}
TWO_STAGE = {
    "stale": FirstHitting(stale_anchors=3),
    "stale-remdm": Remasking(steps=6, rule=Cap(0.3), stale_anchors=2),
    "anchor-first": Ordered(order=AnchorConfidence(), pace=InSteps(4)),
    "stale-anchor-first": Ordered(order=AnchorConfidence(), pace=InSteps(4), stale_anchors=2),
    "agreeing": Ordered(agreeing=True),
    "blocks": Blocks(inner=Ordered(order=AnchorConfidence(), stale_anchors=2), size=3, window=5),
}
LEFT_TO_RIGHT = {"plain": LeftToRight(), "filters": LeftToRight((Temperature(0.7), TopP(0.9)))}
HIDDEN = ("stale", "stale-remdm", "anchor-first", "stale-anchor-first")
TIMED = ("remdm-loop", "first-hitting", "analytic", "confidence", "blocks")
NAMED = {
    **{("mdlm", name): sampler for name, sampler in ONE_STAGE.items()},
    **{("adlm", name): sampler for name, sampler in TWO_STAGE.items()},
    **{("adlm-hidden", name): TWO_STAGE[name] for name in HIDDEN},
    **{("adlm-timed", name): ONE_STAGE[name] for name in TIMED},
    ("adlm-timed", "stale-anchor-first"): TWO_STAGE["stale-anchor-first"],
    **{(kind, name): sampler for kind in ("ar", "a2r") for name, sampler in LEFT_TO_RIGHT.items()},
}
PAIRS = [(kind, sampler) for (kind, _), sampler in NAMED.items()]
NAMES = ["-".join(name) for name in NAMED]
SLICED = ("ancestral", "remdm-cap", "remdm-conf", "first-hitting", "analytic", "confidence", "random", "blocks-window")
model_of = functools.cache(lambda kind: networks(kind)[kind])
ROWS = [
    [MASK] * 7,
    [1, *[MASK] * 6],
    [MASK, 2, MASK, 0, MASK, 1, MASK],
    [0, 1, 2, 0, MASK, MASK, MASK],
    [MASK] * 7,
    [2] * 7,
]


def chosen(canvas, rows):
    rows = torch.tensor(rows)
    return Canvas(canvas.tokens[rows], canvas.frozen[rows], canvas.sample_ids[rows])


@pytest.mark.parametrize(
    ("kind", "name"),
    [("mdlm", "ancestral"), ("mdlm", "first-hitting"), *itertools.product(("ar", "a2r"), LEFT_TO_RIGHT)],
)
def test_samples_have_numbers_and_differ(kind, name):
    sampler = NAMED[kind, name]
    canvas = Canvas.blank(20, 7, MASK)
    tokens = sampler.sample(model_of(kind), canvas, noise=Noise(3)).tokens
    assert len(tokens.unique(dim=0)) > 10
    canvas = Canvas(canvas.tokens, canvas.frozen, canvas.sample_ids + 20)
    assert not torch.equal(sampler.sample(model_of(kind), canvas, noise=Noise(3)).tokens, tokens)


def uniform_model():
    return TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, 4))


@pytest.mark.parametrize(("kind", "sampler"), PAIRS, ids=NAMES)
def test_a_sample_is_the_same_alone_and_in_any_company(kind, sampler):
    canvas = Canvas.infilling(ROWS, MASK)
    whole = sampler.sample(model_of(kind), canvas, noise=Noise(3)).tokens
    assert MASK not in whole
    assert torch.equal(whole[canvas.frozen], canvas.tokens[canvas.frozen])

    @settings(max_examples=3, database=None, deadline=None)
    @given(st.lists(st.integers(0, len(ROWS) - 1), unique=True, min_size=1, max_size=len(ROWS) - 1))
    def in_company(rows):
        part = sampler.sample(model_of(kind), chosen(canvas, rows), noise=Noise(3)).tokens
        assert torch.equal(part, whole[rows])

    in_company()


any_canvas = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=5, max_size=5), min_size=1, max_size=3
)


@settings(max_examples=6, deadline=None)
@given(any_canvas)
def test_frozen_positions_never_change_and_no_mask_is_left(cells):
    tokens = torch.tensor([[token for token, _ in row] for row in cells])
    # Tokens that are neither frozen nor blank may be written anew by samplers that take tokens back.
    frozen = torch.tensor([[keep for _, keep in row] for row in cells]) & (tokens != MASK)
    canvas = Canvas(tokens, frozen, torch.arange(len(tokens)))
    before = tokens.clone()
    for sampler in ONE_STAGE.values():
        sample = sampler.sample(uniform_model(), canvas, noise=Noise(1))
        assert MASK not in sample.tokens
        assert torch.equal(sample.tokens[frozen], tokens[frozen])
        assert torch.equal(canvas.tokens, before), "the canvas is not written on"
        if not isinstance(sampler, Remasking | Blocks):
            assert torch.equal(sample.tokens[tokens != MASK], tokens[tokens != MASK])


# A repetition penalty moves even an oracle's mind, and a window hides from it where it is.
@pytest.mark.parametrize(
    "sampler",
    [each for each in ONE_STAGE.values() if not each.filters and not getattr(each, "window", None)],
    ids=lambda sampler: type(sampler).__name__,
)
def test_an_oracle_is_always_reproduced(sampler):
    target = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(1))
    prompt = ((target[:4] + 1) % 3).tolist()
    logits = 1e4 * torch.nn.functional.one_hot(target, 4).double()
    oracle = TableModel(VOCABULARY, lambda tokens: logits.expand(len(tokens), -1, -1))
    canvas = Canvas.continuing([prompt, []], 12, MASK)
    sample = sampler.sample(oracle, canvas, noise=Noise(2))
    assert sample.tokens.tolist() == [[*prompt, *target[4:].tolist()], target.tolist()]


class Counting(TableModel):
    """Counts the rows of each call and what its head was asked for."""

    def __init__(self, process):
        super().__init__(VOCABULARY, process.model.table)
        self.rows, self.asked = [], []

    def _features(self, tokens, t, segments, output_mask):
        self.rows.append(len(tokens))
        return super()._features(tokens, t, segments, output_mask)

    def logits(self, final):
        assert final.ndim == 2
        self.asked.append(len(final))
        return super().logits(final)


@pytest.mark.parametrize("steps", [1, 3, 200])
def test_rows_in_which_nothing_is_revealed_are_not_computed(steps):
    model, seen = Counting(inconsistent()), []
    canvas = Canvas.infilling([[MASK] * 3, [1, MASK, MASK], [1, 2, 0], [MASK, 1, 0]], MASK)
    sample = Ancestral(steps=steps).sample(model, canvas, noise=Noise(4), on_step=lambda view: seen.append(view.fresh))
    assert sample.network_calls == sum(model.rows) == sum(int(fresh.any(-1).sum()) for fresh in seen)
    assert sample.network_calls <= 6
    assert model.calls <= min(steps, 6)
    assert 0 not in model.rows
    assert sum(model.asked) == 6, "the head is asked for what is revealed and for nothing else"


@pytest.mark.parametrize("rule", [Never(), Cap(0.3), Loop()], ids=repr)
@pytest.mark.parametrize("steps", [1, 7, 300])
def test_rows_share_passes_across_steps_and_a_callback_changes_no_token(rule, steps):
    """Without a callback the k-th reveals of all rows are one pass, each at its own time and with its own noise."""
    canvas = Canvas.infilling([[MASK] * 6, [1, MASK, MASK, 2, MASK, MASK], [1, 2, 0, 1, 2, 0], [MASK] * 6], MASK)
    sampler, seen = Remasking(steps=steps, rule=rule), []
    model = networks("adlm-timed", vocabulary=VOCABULARY)["adlm-timed"]
    alone = sampler.sample(model, canvas, noise=Noise(8))
    watched = sampler.sample(model, canvas, noise=Noise(8), on_step=lambda view: seen.append(view.fresh))
    assert torch.equal(alone.tokens, watched.tokens)
    assert alone.network_calls == watched.network_calls
    assert len(seen) == steps
    turns = torch.stack(seen).any(-1).sum(0).max()  # reveals of the row that has most of them
    passes, features = [], model.features
    model.features = lambda tokens, t, **rest: passes.append(len(tokens)) or features(tokens, t, **rest)
    sampler.sample(model, canvas, noise=Noise(8))
    assert len(passes) == turns


def test_first_hitting_makes_as_many_network_calls_as_there_are_blanks():
    model = Counting(inconsistent())
    canvas = Canvas.infilling([[MASK] * 3, [1, MASK, MASK], [1, 2, 0], [MASK, 1, 0]], MASK)
    assert FirstHitting().sample(model, canvas, noise=Noise(4)).network_calls == 6
    assert model.rows == model.asked == [3, 2, 1]


def test_the_head_is_asked_for_all_blanks_only_by_orders_that_need_them():
    blank = Canvas.blank(2, 3, MASK)
    for order, asked in ((Confidence(), [6, 4, 2]), (AnyOrder(), [2, 2, 2])):
        model = Counting(inconsistent())
        Ordered(order=order, pace=PerStep(1)).sample(model, blank, noise=Noise(4))
        assert model.asked == asked
    model = Counting(inconsistent())
    assert Analytic(steps=100).sample(model, Canvas.blank(40, 3, MASK), noise=Noise(5)).network_calls <= 120
    assert sum(model.asked) <= 40 * 6, "a row that has not changed is not asked again"


def test_a_remasked_token_is_written_anew_in_a_later_step():
    seen = []
    Remasking(steps=12, rule=Cap(0.4)).sample(
        inconsistent().model,
        Canvas.blank(50, 3, MASK),
        noise=Noise(6),
        on_step=lambda view: seen.append((view.tokens.clone(), view.fresh, view.remasked)),
    )
    before = torch.full((50, 3), MASK)
    for tokens, fresh, remasked in seen:
        assert not (fresh & remasked).any()
        assert (before[fresh] == MASK).all()
        assert (before[remasked] != MASK).all()
        assert (tokens[remasked] == MASK).all()
        assert torch.equal(tokens[~fresh & ~remasked], before[~fresh & ~remasked])
        before = tokens
    assert torch.stack([fresh for _, fresh, _ in seen]).sum() > 200


@pytest.mark.parametrize("name", SLICED)
def test_slices_of_any_size_give_the_same_tokens_and_bound_the_logits(monkeypatch, name):
    vocabulary = Vocabulary(12, MASK)
    check_slices(monkeypatch, ONE_STAGE[name], networks("mdlm", vocabulary=vocabulary)["mdlm"])


@pytest.mark.parametrize("name", TWO_STAGE)
def test_slices_bound_the_logits_of_both_stages(monkeypatch, name):
    vocabulary = Vocabulary(12, MASK)
    check_slices(monkeypatch, TWO_STAGE[name], networks("adlm", vocabulary=vocabulary)["adlm"])


def check_slices(monkeypatch, sampler, model):
    canvas, made = Canvas.infilling([[MASK] * 9, [1] + [MASK] * 8, [*[MASK] * 4, 5, *[MASK] * 4]], MASK), []
    for head in (model.head, model.anchor_head):
        if head is not None:
            head.register_forward_hook(lambda module, given, out: made.append(tuple(out.shape)))
    whole = sampler.sample(model, canvas, noise=Noise(7)).tokens
    assert all(len(shape) == 2 for shape in made), "never [B, L, V]"
    largest = max(shape[0] for shape in made)
    made.clear()
    monkeypatch.setattr(samplers_state, "SLICE", 25)  # two positions
    assert torch.equal(sampler.sample(model, canvas, noise=Noise(7)).tokens, whole)
    assert max(shape[0] for shape in made) <= 2 < largest


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [("mdlm", Ancestral(steps=9)), ("ar", LeftToRight()), ("mdlm", Blocks(inner=Ancestral(steps=4), size=2))],
)
def test_watchers_see_every_reveal_once(kind, sampler):
    views = []
    canvas = Canvas.blank(2, 7, MASK)
    sampler.sample(model_of(kind), canvas, noise=Noise(5), on_step=lambda view: views.append((view.step, view.fresh)))
    assert torch.stack([fresh for _, fresh in views]).sum(0).eq(1).all()
    assert [step for step, _ in views] == list(range(len(views)))


@pytest.mark.parametrize(
    ("kind", "make"), [("mdlm", lambda f: Ancestral(f, steps=1)), ("ar", LeftToRight)], ids=["mdlm", "ar"]
)
def test_temperature_0_takes_the_likeliest(kind, make):
    # In one step nothing depends on the order of reveals, so only the draws could differ between seeds.
    canvas = Canvas.blank(1, 10, MASK)
    for temperature, same in ((0.0, True), (1.0, False)):
        one, two = (
            make((Temperature(temperature),)).sample(model_of(kind), canvas, noise=Noise(seed)).tokens
            for seed in (0, 1)
        )
        assert torch.equal(one, two) == same


@pytest.mark.parametrize("rule", [Loop(), ForwardBackward(), FlowCorrector(), Cap()], ids=repr)
def test_timed_models_are_told_times_from_1_to_0(rule):
    """Also where a rule begins with nothing visible, or lets time stand."""
    model, told = networks("adlm-timed")["adlm-timed"], []
    features = model.features
    model.features = lambda tokens, t, **rest: told.append(t.max().item()) or features(tokens, t, **rest)
    for schedule in (Remasking().schedule, Cosine()):
        Remasking(steps=8, rule=rule, schedule=schedule).sample(model, Canvas.blank(20, 4, MASK), noise=Noise(0))
    assert told[0] == pytest.approx(1, abs=0.01)
    assert all(0 <= t <= 1 for t in told)


STORED = [
    *(sampler for _, sampler in PAIRS),
    LeftToRight((Banned((1, 2)), Forced(0, 1))),
    Blocks(inner=Ancestral((TopP(0.9, keep_crossing=False),), steps=7, stale_anchors=3), size=8, window=16),
]


@pytest.mark.parametrize("sampler", STORED, ids=lambda sampler: type(sampler).__name__)
def test_samplers_come_back_from_json(sampler):
    assert from_json(Sampler, to_json(sampler)) == sampler


def test_the_wrong_sampler_and_nonsense_are_refused():
    for kind in ("ar", "a2r"):
        for sampler in (Ancestral(), FirstHitting(), Ordered(), Blocks(), Analytic()):
            with raises(ConfigError, fix="use LeftToRight"):
                sampler.sample(model_of(kind), Canvas.blank(1, 4, MASK), noise=Noise(0))
    with raises(ConfigError, subject="LeftToRight"):
        LeftToRight().sample(model_of("mdlm"), Canvas.blank(1, 4, MASK), noise=Noise(0))
    with raises(ConfigError, subject="rows"):
        Canvas.infilling([[1], [1, 2]], MASK)
    for make, subject in (
        (lambda: Ancestral(steps=0), "steps"),
        (lambda: Cap(1.5), "eta"),
        (lambda: Rescale(-0.1), "eta"),
        (lambda: FlowCorrector(-1.0), "strength, a and b"),
        (lambda: Loop(t_on=0.1, t_off=0.2), "t_off, t_on, alpha_on"),
        (lambda: Loop(alpha_on=1.0), "t_off, t_on, alpha_on"),
        (lambda: FirstHitting(stale_anchors=0), "stale_anchors"),
    ):
        with raises(ConfigError, subject=subject):
            make()
