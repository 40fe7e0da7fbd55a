"""Stop strings: the work ends with the text, and nothing before them changes."""

import pytest

from adlm.errors import ConfigError
from adlm.samplers.stopping import StopRule, added_text, cut_at
from adlm.text_model import TextModel
from tests.errors import raises
from tests.serve.conftest import tiny

# Samplers that stop working, and those that only cut their text.
CASES = {
    "left to right": ("ar", {}),
    "blocks": ("blocks", {"sampler": "confidence"}),
    "ancestral in blocks": ("blocks", {"sampler": "ancestral", "steps": 4}),
    "draft and verify": ("blocks", {"sampler": "draft-and-verify"}),
    "windows of a masked model": ("mdlm", {"sampler": "ancestral", "steps": 4, "block_size": 4}),
}


@pytest.fixture(scope="module")
def models() -> dict[str, TextModel]:
    return {kind: tiny(kind, length=64) for kind in ("ar", "blocks", "mdlm")}


def passes(model: TextModel, monkeypatch: pytest.MonkeyPatch, **asked) -> tuple[list[str], int]:
    """Texts, and the passes of all rows that they took."""
    calls = []
    fill = TextModel.fill

    def counted(self, *given, **named):
        sample = fill(self, *given, **named)
        calls.append(sample.network_calls)
        return sample

    with monkeypatch.context() as patch:
        patch.setattr(TextModel, "fill", counted)
        return model.generate(**asked), sum(calls)


@pytest.mark.parametrize("case", CASES)
def test_a_stop_string_ends_the_work_and_changes_nothing_before_it(case, models, monkeypatch):
    kind, options = CASES[case]
    whole, all_calls = passes(models[kind], monkeypatch, prompt="the cat", seed=3, **options)
    text = whole[0].removeprefix("the cat")
    stop = text[8:11]
    cut, calls = passes(models[kind], monkeypatch, prompt="the cat", seed=3, stop=stop, **options)
    assert cut == ["the cat" + text[: text.find(stop)]]
    assert calls < all_calls / 2


@pytest.mark.parametrize("case", CASES)
def test_rows_that_stop_are_the_same_alone_and_in_a_batch(case, models):
    kind, options = CASES[case]
    prompts = ["the cat", "a dog sat on", "the"]
    plain = models[kind].generate(prompts, seed=5, **options)
    stops = [plain[0][12:14], plain[2][20:23]]
    together = models[kind].generate(prompts, seed=5, stop=stops, **options)
    alone = [models[kind].generate(each, seed=5, stop=stops, **options)[0] for each in prompts]
    assert together == alone
    for prompt, text, found in zip(prompts, plain, together, strict=True):
        assert found == prompt + cut_at(text.removeprefix(prompt), stops)[0]


def test_texts_of_whole_rows_are_cut(models):
    (text,) = models["mdlm"].generate("the cat", seed=1, steps=8)
    stop = text[20:24]
    expected = "the cat" + cut_at(text.removeprefix("the cat"), [stop])[0]
    assert models["mdlm"].generate("the cat", seed=1, steps=8, stop=stop) == [expected]


def test_a_prompt_does_not_stop_a_text(models):
    plain = models["ar"].generate("the cat", seed=3, max_new_tokens=4)
    assert models["ar"].generate("the cat", seed=3, max_new_tokens=4, stop="the cat") == plain


def test_an_empty_stop_string_is_refused(models):
    with raises(ConfigError, subject="stop"):
        models["ar"].generate("the cat", stop=["", "."])


def test_the_first_stop_string_of_a_text_counts():
    assert cut_at("a b c", ["c", "b"]) == ("a ", True)
    assert cut_at("a b c", ["d"]) == ("a b c", False)
    assert cut_at("a b c", []) == ("a b c", False)


def test_a_rule_reads_what_is_added_to_the_given_ids():
    def decode(ids):
        return "".join(chr(96 + i) for i in ids)

    assert added_text(decode, [1, 2], [3, 4]) == "cd"
    rule = StopRule(0, ("bc",), decode)
    assert not rule.complete([1, 2], [3])  # the string would begin in what was given
    assert rule.complete([1], [2, 3])
    assert not StopRule(0).complete([1], [2, 3])


def test_a_row_that_stopped_is_filled_with_the_end_token(models):
    model = models["ar"]
    row = model.prompt_row("the cat")
    (text,) = model.generate("the cat", seed=3)
    rule = model.stop_rule(text[10:12])
    tokens = model.fill(model.rows.canvas([(row, 0)]), seed=3, stop=rule).tokens[0]
    written = tokens[row.start : row.end].tolist()
    end = written.index(model.tokenizer.roles.eos_id)
    assert set(written[end:]) == {model.tokenizer.roles.eos_id}
    assert rule.complete(list(row.before), written[:end])
    assert not rule.complete(list(row.before), written[: end - 1])
    assert bool((tokens != model.tokenizer.mask_id).all())
