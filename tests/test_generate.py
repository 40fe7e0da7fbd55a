import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlm import text_model
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError, UnknownName
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.samplers import Ancestral, Blocks, FirstHitting, LeftToRight, Sample, Sampler, Temperature, TopK
from adlm.text_model import TextModel
from tests.errors import raises

TOKENIZER = train_words(["the cat sat on the mat. the dog sat on the log."])
END, MASK = TOKENIZER.roles.eos_id, TOKENIZER.mask_id
PROMPTS = ["", "the cat", "the dog sat", "the mat. the", " log"]
ROWS = [Wrapped(12), Wrapped(12, framed=True), Padded(12, predict_padding=True), Padded(12)]


def built(causal=False, rows=ROWS[0], positions=0):
    stack = StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full")
    network = OneStageConfig(stack, positions=positions)
    config = ModelConfig(network, Vocabulary(TOKENIZER.vocab_size, MASK), rows)
    torch.manual_seed(0)
    model = config.build().eval()
    torch.nn.init.normal_(model.head.weight)
    return TextModel(model, config, TOKENIZER)


@pytest.fixture(params=itertools.product([False, True], ROWS), ids=repr, scope="module")
def model(request):
    return built(*request.param)


@pytest.fixture(scope="module")
def masked():
    return built()


@pytest.fixture(scope="module")
def causal():
    return built(causal=True)


def few(model):
    """Steps, for samplers that have any."""
    return {} if model.network.causal else {"steps": 4}


class Seen(list):
    """A watcher that keeps the canvases."""

    def __call__(self, view):
        if view.step == 0:
            self.append(None)
        self[-1] = view.tokens.clone()


def test_a_text_is_the_same_alone_among_others_and_in_parts(model, monkeypatch):
    prompts, steps = PROMPTS[:4], few(model)
    for options in (steps, {"max_new_tokens": 4, **steps}, *([{"block_size": 3, **steps}] if steps else [])):
        together = model.generate(prompts, n=2, seed=4, **options)
        assert [text for prompt in prompts for text in model.generate(prompt, n=2, seed=4, **options)] == together
        assert model.generate(prompts[1], seed=4, **options) == together[2:3]
        with monkeypatch.context() as patch:
            patch.setattr(text_model, "ROWS", 3)
            assert model.generate(prompts, n=2, seed=4, **options) == together


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.sampled_from(PROMPTS), max_size=6), n=st.integers(1, 3))
def test_prompts_in_any_order_give_their_own_texts(masked, order, n):
    texts = {prompt: masked.generate(prompt, n=n, steps=4) for prompt in set(order)}
    assert masked.generate(order, n=n, steps=4) == [text for prompt in order for text in texts[prompt]]


def test_different_prompts_have_independent_noise(causal):
    rows = Numbers()
    causal.generate(["", "the cat", "the dog"], n=2, sampler=rows)
    numbers = rows.rows[0].tolist()
    assert numbers[:2] == [0, 1]
    assert numbers[3] == numbers[2] + 1
    assert min(numbers[2], numbers[4], abs(numbers[2] - numbers[4])) > 2**32
    assert max(numbers) < 2**63


class Numbers(Sampler):
    """Writes nothing but end tokens, and keeps what it was given."""

    def __init__(self):
        super().__init__()
        for name in ("rows", "canvases", "stops"):
            object.__setattr__(self, name, [])

    def sample(self, network, canvas, *, noise, on_step=None, on_draw=None, stop=None):
        self.rows.append(canvas.sample_ids)
        self.canvases.append(canvas)
        self.stops.append(stop)
        if canvas.tokens.device.type == "meta":
            raise NotImplementedError("values cannot be read there")
        blank = (canvas.tokens == MASK) & ~canvas.frozen
        return Sample(canvas.tokens.masked_fill(blank, END), 0)

    def fill(self, state):
        raise NotImplementedError


def test_the_canvas_goes_to_the_networks_device():
    model, sampler = built(), Numbers()
    model.network.to("meta")
    with pytest.raises(NotImplementedError, match="cannot be read"):
        model.generate("the cat", sampler=sampler)
    canvas = sampler.canvases[0]
    assert {part.device.type for part in (canvas.tokens, canvas.frozen, canvas.sample_ids)} == {"meta"}


def test_the_end_token_stops_the_sampler_and_the_text(model):
    for stop, passed in ((True, END), (False, None)):
        sampler = Numbers()
        assert model.generate("the cat", sampler=sampler, stop=stop) == ["the cat"]
        assert [rule and rule.token for rule in sampler.stops] == [passed]


def test_what_is_written_past_the_end_is_kept_if_asked(causal):
    # The end token is likely, and something else after it.
    short, whole = (causal.generate(n=20, seed=1, stop=stop, temperature=2.0) for stop in (True, False))
    assert all(long.startswith(text) for text, long in zip(short, whole, strict=True))
    assert short != whole
    assert not any("<|endoftext|>" in text for text in whole)


def test_no_more_than_max_new_tokens_are_written(model):
    for limit, prompt in itertools.product((1, 3), ("", "the cat")):
        for text in model.generate(prompt, n=4, max_new_tokens=limit, stop=False, **few(model)):
            assert text.startswith(prompt)
            assert len(TOKENIZER.encode(text)) <= len(TOKENIZER.encode(prompt)) + limit
    one = model.generate("the", n=2, gen_length=3, **few(model))
    assert one == model.generate("the", num_samples=2, max_new_tokens=3, **few(model))


def test_a_left_to_right_text_begins_as_it_would_without_a_limit(causal):
    whole = causal.generate("the cat", n=5, stop=False)
    short = causal.generate("the cat", n=5, stop=False, max_new_tokens=4)
    assert all(long.startswith(text) for text, long in zip(short, whole, strict=True))
    assert all(len(TOKENIZER.encode(text)) <= 6 for text in short)


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_masked_models_see_rows_as_in_training(rows):
    model, seen, sampler = built(rows=rows), Seen(), Numbers()
    model.generate("the cat", max_new_tokens=3, on_step=seen, steps=4)
    begin = len(rows.frame(TOKENIZER.roles)[0])
    (canvas,) = seen
    assert MASK not in canvas[0, : begin + 5]
    if rows.pads and not rows.padding_counts:
        assert canvas.shape[1] == begin + 5  # text alone, and nothing behind it
    else:
        assert canvas.shape[1] == rows.length
        assert (canvas[0, begin + 5 :] == MASK).all()  # never written
    model.generate("the cat", suffix=" mat.", max_new_tokens=3, sampler=sampler)
    row = sampler.canvases[0].tokens[0].tolist()
    begin_ids, end_ids = rows.frame(TOKENIZER.roles)
    text = [*begin_ids, *TOKENIZER.encode("the cat"), MASK, MASK, MASK, *TOKENIZER.encode(" mat."), *end_ids]
    filler = {True: [TOKENIZER.roles.pad_id], False: [MASK]}[rows.pads]
    assert row == text + filler * (len(row) - len(text))
    assert len(row) == (len(text) if rows.pads and not rows.padding_counts else rows.length)


def test_a_suffix_stays_at_the_end_whatever_is_written_before_it(model):
    if model.network.causal:
        with raises(ConfigError, subject="suffix"):
            model.generate("the cat", suffix=" mat.")
        return
    for limit in (None, 2):
        for stop in (True, False):
            texts = model.generate("the", suffix=" mat.", n=5, max_new_tokens=limit, stop=stop, steps=4)
            assert all(text.startswith("the") and text.endswith(" mat.") for text in texts)
    assert model.generate("the", suffix=" mat.", sampler=Numbers()) == ["the mat."]


def test_beyond_the_models_length_left_to_right_models_go_on(causal):
    (text,) = causal.generate("the cat", max_new_tokens=40, stop=False, banned=[END])
    assert len(TOKENIZER.encode(text)) > 30
    long = "the cat sat on the mat. the dog sat on the log."
    assert causal.generate(long, max_new_tokens=2)[0].startswith(long)
    with raises(ConfigError, subject="positions"):
        built(causal=True, positions=12).generate("the cat", max_new_tokens=40, stop=False)


def test_beyond_the_models_length_masked_models_go_on_in_blocks(masked):
    with raises(ConfigError, subject="max_new_tokens"):
        masked.generate("the cat", max_new_tokens=40)
    with raises(ConfigError, subject="max_new_tokens"):
        masked.generate("the cat", max_new_tokens=40, sampler=Blocks(size=4))  # sees the whole canvas
    options = {"max_new_tokens": 40, "block_size": 4, "steps": 4, "stop": False, "banned": [END, END + 1]}
    model = built(positions=12)  # would refuse a longer row
    texts = model.generate(["the cat", "the mat. the", "the dog"], **options)
    assert all(len(TOKENIZER.encode(text)) > 30 for text in texts)
    assert texts[1] == model.generate("the mat. the", **options)[0]
    with raises(ConfigError, subject="max_new_tokens"):
        masked.generate("the", suffix=" mat.", max_new_tokens=40, block_size=4)


def test_rows_that_have_ended_cost_nothing_more(causal):
    calls = []
    causal.generate("the cat", n=4, seed=1, on_step=lambda view: calls.append(int(view.fresh.any(-1).sum())))
    more = []
    causal.generate("the cat", n=4, seed=1, stop=False, on_step=lambda view: more.append(int(view.fresh.any(-1).sum())))
    assert sum(calls) < sum(more)


def test_samplers_go_by_value_or_by_name(masked, causal):
    assert masked.generate(seed=2, steps=5) == masked.generate(seed=2, sampler=Ancestral(steps=5))
    assert masked.generate(seed=2) == masked.generate(seed=2, sampler="mdlm")
    assert causal.generate(seed=2) == causal.generate(seed=2, sampler=LeftToRight())
    assert masked.sampler("ancestral", block_size=4) == Blocks(inner=Ancestral(), size=4, window=12)
    assert masked.sampler("ancestral", block_length=4, window=8).window == 8


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({"tempreature": 1.0}, "tempreature"),
        ({"n": 2, "num_samples": 2}, "num_samples and n"),
        ({"max_new_tokens": 2, "gen_length": 2}, "gen_length and max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"num_return_sequences": 0}, "n"),
        ({"n": 2.0}, "n"),
        ({"sampler": Ancestral(), "steps": 3}, "steps"),
        ({"sampler": "left-to-right"}, "LeftToRight"),
        ({"block_size": 40}, "window"),
    ],
)
def test_mistakes_are_answered(masked, options, subject):
    with raises(ConfigError, subject=subject):
        masked.generate("the cat", **options)


def test_no_prompts_give_no_texts(masked):
    assert masked.generate([]) == []


def test_a_model_may_bring_its_own_way_to_sample(masked, tmp_path):
    own = TextModel(
        masked.network,
        replace(masked.config, sampling={"sampler": "first-hitting", "top_k": 3}),
        masked.tokenizer,
    )
    assert own.sampler() == FirstHitting(filters=(TopK(3),))
    assert own.sampler(top_k=5, temperature=0.5) == FirstHitting(filters=(Temperature(0.5), TopK(5)))
    assert own.sampler("ancestral", steps=4) == Ancestral(steps=4)  # another has nothing of it
    assert own.sampler(remasking="low_confidence").filters == ()
    own.save(tmp_path / "own")
    again = TextModel.from_pretrained(tmp_path / "own")
    assert again.config == own.config
    assert (
        again.generate("the", seed=3)
        == own.generate("the", seed=3)
        == masked.generate("the", seed=3, sampler="first-hitting", top_k=3)
    )


def test_an_own_way_that_makes_no_sense_is_named(masked):
    wrong = TextModel(masked.network, replace(masked.config, sampling={"sampler": "guessing"}), masked.tokenizer)
    with raises(UnknownName, subject="guessing"):
        wrong.generate()


def test_texts_of_any_number_come_one_after_another(masked, causal):
    for model in (masked, causal):
        each = model.generate_each("the cat", n=10**8, seed=3, max_new_tokens=2)
        assert [next(each) for _ in range(3)] == model.generate("the cat", n=3, seed=3, max_new_tokens=2)
