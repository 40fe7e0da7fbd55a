import json
import math

import numpy as np
import pytest
import torch

from adlm.cli import main
from adlm.data.packing import Padded, Wrapped
from adlm.data.stories import Stories
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError, ModelError
from adlm.evaluate.result import read_result
from adlm.evaluate.story_measures import (
    gives_length,
    kind_of,
    likelihood_figures,
    sample_figures,
    story_nats,
    story_rows,
)
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel
from tests.errors import raises

SOURCE = Stories(seed=3, test=300)
TEXTS = list(SOURCE.documents("test"))
TOKENIZER = train_words(Stories(train=3000).documents("train"))
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
ROWS = Padded(64, begin=False, predict_padding=True)


def network(*, causal=False):
    torch.manual_seed(0)
    config = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full"))
    return config, config.build(VOCABULARY).eval()  # its head begins at zero: all tokens are equally likely


@pytest.mark.parametrize("causal", [False, True])
def test_a_model_that_knows_nothing_costs_the_logarithm_of_its_vocabulary(causal):
    _, model = network(causal=causal)
    nats = story_nats(model, story_rows(TEXTS[:5], TOKENIZER, ROWS), draws=2)(np.arange(5))
    assert np.allclose(nats, 64 * math.log(VOCABULARY.size - 1), rtol=1e-4)


def test_a_story_s_cost_does_not_depend_on_those_beside_it():
    _, model = network()
    torch.nn.init.normal_(model.head.weight)
    compute = story_nats(model, story_rows(TEXTS[:5], TOKENIZER, ROWS), draws=2)
    assert np.allclose(compute(np.arange(5)), np.concatenate([compute(np.array([i])) for i in range(5)]), rtol=1e-4)


def test_the_process_is_at_no_distance_from_itself():
    exact = -np.array([SOURCE.log_likelihood(text) for text in TEXTS])
    figures = likelihood_figures(exact, exact, SOURCE, kind="exact", draws=0)
    assert (figures["divergence"].value, figures["divergence"].error) == (0, 0)
    gap = figures["cross-entropy"].value - figures["entropy"].value
    assert abs(gap) < 4 * figures["cross-entropy"].error


def test_pairing_does_away_with_the_noise_of_the_stories():
    exact = -np.array([SOURCE.log_likelihood(text) for text in TEXTS])
    costs = exact + 2 + 0.1 * np.sin(np.arange(len(exact)))
    figures = likelihood_figures(costs, exact, SOURCE, kind="bound", draws=8)
    assert figures["divergence"].value == pytest.approx(2, abs=0.02)
    assert figures["divergence"].error < figures["cross-entropy"].error / 5
    assert str(figures["divergence"]).startswith("≤ ")


def test_stories_of_the_grammar_are_flawless_and_as_likely_as_its_entropy_says():
    figures = sample_figures(TEXTS, SOURCE)
    assert figures["flawless"].value == 1
    assert 0 < figures["flawless"].error < 0.01
    likely = figures["log-likelihood of flawless"]
    assert abs(likely.value + SOURCE.entropy()) < 4 * likely.error
    assert not any(name.startswith("fraction with") for name in figures)


def test_what_is_wrong_is_counted_by_rule_once_a_story():
    broken = [text.replace(" she ", " he ").replace(" her ", " his ") for text in TEXTS[:200]]
    changed = sum(one != other for one, other in zip(broken, TEXTS, strict=False))
    figures = sample_figures([*broken, "Nonsense."], SOURCE)
    assert changed > 20
    assert figures["flawless"].value == pytest.approx(1 - (changed + 1) / 201)
    assert figures["fraction with wrong pronoun"].value == pytest.approx(changed / 201, rel=0.2)
    assert figures["fraction with wrong number of sentences"].value == pytest.approx(1 / 201)


def test_every_problem_the_grammar_names_has_a_kind():
    words = sorted({word for text in TEXTS for word in text.split()})
    random = np.random.default_rng(0)
    kinds = set()
    for text in TEXTS:
        parts = text.split()
        parts[random.integers(len(parts))] = words[random.integers(len(words))]
        kinds |= {kind_of(problem) for problem in SOURCE.problems(" ".join(parts))}
    changed = [text.replace(one, other, 1) for text in TEXTS for one, other in (("Tom", "Rosa"), (" red", " blue"))]
    kinds |= {kind_of(problem) for text in changed for problem in SOURCE.problems(text)}
    assert "other" not in kinds
    assert {"unknown sentence", "wrong name", "wrong colour"} <= kinds


def test_no_sample_is_flawless_where_none_is():
    figures = sample_figures(["Hello."], SOURCE)
    assert figures["flawless"].value == 0
    assert "log-likelihood of flawless" not in figures


def test_masked_models_are_told_the_length_unless_they_write_padding():
    masked, causal = network()[1], network(causal=True)[1]
    assert gives_length(masked, Padded(64))
    assert gives_length(masked, Wrapped(64))
    assert not gives_length(masked, ROWS)
    assert not gives_length(causal, Padded(64))


def test_models_of_other_text_are_refused():
    with raises(ConfigError, subject="tokenizer"):
        story_rows(TEXTS[:3], train_words(["the cat"]), ROWS)
    with raises(ConfigError, subject="length"):
        story_rows(TEXTS[:3], TOKENIZER, Padded(20))


def test_logits_that_are_not_finite_are_an_error():
    _, model = network()
    model.head.bias.data[:] = torch.nan
    with raises(ModelError, subject="nats"):
        story_nats(model, story_rows(TEXTS[:2], TOKENIZER, ROWS))(np.arange(2))


def test_the_command_writes_figures_items_and_samples(tmp_path, capsys):
    config, built = network(causal=True)
    TextModel(built, ModelConfig(config, VOCABULARY, ROWS), TOKENIZER).save(tmp_path / "model")
    out = tmp_path / "r.json"
    words = ["evaluate", "stories", str(tmp_path / "model"), "--stories", "6", "--samples", "3", "--out", str(out)]
    assert main(words) == 0
    result = read_result(out)
    assert result.figures["cross-entropy"].kind == "exact"
    assert result.figures["cross-entropy"].value == pytest.approx(64 * math.log(VOCABULARY.size - 1), rel=1e-4)
    differences = np.array(result.items["nats"]) - np.array(result.items["nats of the grammar"])
    assert result.figures["divergence"].value == pytest.approx(differences.mean())
    samples = [json.loads(line) for line in (tmp_path / "r.samples.jsonl").read_text().splitlines()]
    assert len(samples) == 3
    assert all(sample["problems"] for sample in samples)
    assert not list(tmp_path.glob("*.partial"))
    first = out.read_text()
    assert main(words) == 0
    assert out.read_text() == first
