import functools
import importlib.util
import json
import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.cli import main
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import train_bpe, train_words
from adlm.distributed import device_for
from adlm.errors import ConfigError, DataError, ModelError
from adlm.evaluate.continuations import Continuation, Scorer, joined_tokens, windows
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.bound import enumerated_nats
from adlm.text_model import TextModel
from adlm.types import Batch
from tests.errors import raises

CORPUS = ["the cat sat on the mat. the dog sat on the log. the red cat", "a red cat ate a fish. the dog"]
WORDS = train_words(CORPUS)
BPE = train_bpe(CORPUS * 20, 300)
LENGTH = 12

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed: adlm[lm-eval]"
)


PLAIN = Wrapped(LENGTH)


def build(causal, rows=PLAIN, seed=0, *, two_stages=False):
    stack = StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full")
    network = TwoStageConfig(stack, 1) if two_stages else OneStageConfig(stack)
    config = ModelConfig(network, Vocabulary(WORDS.vocab_size, WORDS.mask_id), rows)
    torch.manual_seed(seed)
    network = config.build().eval()
    for weight in network.parameters():  # so that context counts: blocks begin as nothing
        torch.nn.init.normal_(weight, std=0.5)
    return TextModel(network, config, WORDS)


def scorer(model, **settings):
    return Scorer(
        model.network,
        model.config.packing,
        WORDS.roles,
        **{"length": model.config.packing.length, "draws": 32, **settings},
    )


def shown(model, item):
    """The row that a masked model is to see, and where it is scored: written down once more, without a batch."""
    rows = model.config.packing
    begin, _ = rows.frame(WORDS.roles)
    row = [*begin, *item.tokens]
    scored = [len(begin) + item.given <= i < len(row) for i in range(rows.length)]
    full = rows.padding_counts or not rows.pads
    length = rows.length if full else len(row)
    row += [WORDS.mask_id] * (length - len(row))
    return torch.tensor([row]), torch.tensor([scored[:length]])


def exact_bound(model, item):
    tokens, scored = shown(model, item)
    number = torch.zeros(1, dtype=torch.long)
    batch = Batch(tokens, torch.ones_like(scored), number, number, frozen=~scored)
    return enumerated_nats(model.network, batch).sum().item()


@torch.no_grad()
def greedy_tokens(model, item):
    """What a model writes in place of the continuation: left to right, or surest first."""
    tokens, blank = shown(model, item)
    tokens[blank] = WORDS.mask_id
    while blank.any():
        log_p = model.network.logits(model.network.features(tokens).final).log_softmax(-1)
        surest, best = log_p.max(-1)
        position = int((blank.float() if model.network.causal else surest.masked_fill(~blank, -math.inf)).argmax())
        tokens[0, position], blank[0, position] = best[0, position], False
    start = len(model.config.packing.frame(WORDS.roles)[0]) + item.given
    return tokens[0, start : start + len(item.tokens) - item.given].tolist()


ROWS = [Wrapped(LENGTH), Wrapped(LENGTH, framed=True), Padded(LENGTH), Padded(LENGTH, predict_padding=True)]
PAIRS = [("the cat", " sat"), ("the dog sat", " on the mat."), ("", "a red cat"), ("a", " fish"), ("the", "")]


def items_of(pairs):
    return [joined_tokens(context, after, WORDS) for context, after in pairs]


@pytest.mark.parametrize("two_stages", [False, True], ids=["ar", "a2r"])
@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_left_to_right_models_score_continuations_exactly(rows, two_stages):
    model = build(True, rows, two_stages=two_stages)
    for (context, after), found in zip(PAIRS, scorer(model)(items_of(PAIRS)), strict=True):
        if not after:
            assert found == (0, True)
            continue
        direct = model.score(context + after, span=(len(context), len(context + after)))
        assert found.nats == pytest.approx(direct.nats.mean, rel=1e-5)


@pytest.mark.parametrize("two_stages", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_what_greedy_writing_gives_is_greedy_and_nothing_else_is(rows, causal, two_stages):
    model = build(causal, rows, two_stages=two_stages)
    for item in items_of(PAIRS[:3]):
        written = greedy_tokens(model, item)
        right = Continuation((*item.tokens[: item.given], *written), item.given)
        others = [
            Continuation((*right.tokens[:i], (right.tokens[i] + 1) % WORDS.mask_id, *right.tokens[i + 1 :]), item.given)
            for i in range(item.given, len(right.tokens))
        ]
        assert [each.greedy for each in scorer(model)([right, *others])] == [True] + [False] * len(others)


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_short_continuations_of_masked_models_cost_their_exact_bound(rows):
    model = build(False, rows)
    items = items_of(PAIRS)
    for item, found in zip(items, scorer(model)(items), strict=True):
        assert found.nats == pytest.approx(exact_bound(model, item), rel=1e-5, abs=1e-9)


def test_estimates_of_the_bound_centre_on_it():
    model = build(False)
    (item,) = items_of([("the dog", " sat on the")])
    values = [scorer(model, draws=3, seed=seed)([item], greedy=False)[0].nats for seed in range(60)]
    spread = torch.tensor(values).std().item()
    assert spread > 0
    assert abs(sum(values) / len(values) - exact_bound(model, item)) < 5 * spread / math.sqrt(len(values))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [PLAIN, Padded(LENGTH)], ids=repr)
def test_a_score_does_not_depend_on_what_else_is_scored(rows, causal):
    model = build(causal, rows)
    items = items_of([*PAIRS, ("", CORPUS[0][:23]), ("the dog", " sat on a mat.")])
    together = scorer(model, draws=6, batch=16)(items)
    alone = [scorer(model, draws=6, batch=1)([item])[0] for item in items]
    for a, b in zip(together, alone, strict=True):
        assert a.nats == pytest.approx(b.nats, rel=1e-4)
        assert a.greedy == b.greedy


def test_rows_may_end_with_the_continuation():
    model = build(False)
    items = items_of(PAIRS)
    whole, cut = scorer(model)(items), scorer(model, full_rows=False)(items)
    assert whole[0].nats != pytest.approx(cut[0].nats, rel=1e-3)
    padded = build(False, Padded(LENGTH, begin=False, end=False))  # whose rows are as long as their texts
    for a, b in zip(cut, scorer(padded)(items), strict=True):
        assert a.nats == pytest.approx(b.nats, rel=1e-5)


@given(st.text("the cat.\n", max_size=20), st.text("the cat.\n", max_size=12))
def test_context_and_continuation_are_tokens_of_one_text(context, after):
    item = joined_tokens(context, after, BPE)
    assert list(item.tokens) == BPE.encode(context + after).tolist()
    # What is given is a beginning of the context without the white space at its end.
    assert context.rstrip().startswith(BPE.decode(item.tokens[: item.given]))


def test_a_token_that_reaches_over_the_border_is_scored():
    assert joined_tokens("the ca", "t sat", WORDS) == Continuation(tuple(WORDS.encode("the cat sat").tolist()), 1)
    assert joined_tokens("the ", "cat", WORDS) == joined_tokens("the", " cat", WORDS)


@given(st.integers(0, 60), st.integers(2, 13), st.booleans())
def test_windows_score_every_token_once(count, room, causal):
    found, scored = windows(range(count), room, causal=causal), []
    for number, (tokens, given_) in enumerate(found):
        assert len(tokens) <= room
        assert list(tokens) == list(range(tokens[0], tokens[0] + len(tokens)))
        assert bool(given_) == bool(causal and number)
        scored += tokens[given_:]
    assert scored == list(range(count))
    if causal and len(found) > 1:
        assert len(found[-1].tokens) == room


def test_long_contexts_lose_their_beginning_and_long_continuations_are_refused():
    item = Continuation(tuple(range(10)), 6)
    assert item.cut_to(10) == item
    assert item.cut_to(5) == Continuation((5, 6, 7, 8, 9), 1)
    with raises(DataError, subject="continuation"):
        item.cut_to(3)


def test_settings_that_mean_nothing_are_refused():
    model = build(False)
    for settings, subject in (
        ({"draws": 0}, "draws"),
        ({"batch": 0}, "batch_size"),
        ({"length": LENGTH + 1}, "max_length"),
        ({"length": 1}, "max_length"),
    ):
        with raises(ConfigError, subject=subject):
            scorer(model, **settings)
    torch.nn.init.constant_(model.network.head.weight, math.nan)
    with raises(ModelError, subject="nats"):
        scorer(model)(items_of(PAIRS[:1]))


def test_the_command_names_the_extra_where_the_harness_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    assert main(["lm-eval", "run", "--tasks", "lambada"]) == 2
    assert "adlm[lm-eval]" in capsys.readouterr().err


# With the harness itself, on tasks written here.

LAST_WORDS = ["the cat sat on the mat.", "the dog ate a fish", "a red cat sat on the log", "the dog sat", "a cat ate"]
CHOICES = [
    {"question": "the cat sat on", "choices": [" the mat.", " a fish.", " the"], "answer": 0},
    {"question": "a red", "choices": [" cat", " log sat"], "answer": 1},
    {"question": "the dog ate", "choices": [" a fish", " the cat", " on"], "answer": 2},
]
QUESTIONS = ["the cat", "the dog sat on", "a red cat ate a fish. the cat sat on the mat. the dog ate"]


def write_task(folder, name, documents, **settings):
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    where = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": where, "test_split": "test", **settings}
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


def mean(metric):
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


@pytest.fixture(params=[True, False], ids=["left to right", "masked"])
def model(request):
    return build(request.param, Padded(LENGTH, begin=False, predict_padding=True), seed=1)


@pytest.fixture
def folder(model, tmp_path):
    """A saved model, and tasks of every kind."""
    model.save(tmp_path / "model")
    write_task(
        tmp_path,
        "last_word",
        [{"text": text} for text in LAST_WORDS],
        output_type="loglikelihood",
        doc_to_text="{{text.split(' ')[:-1]|join(' ')}}",
        doc_to_target="{{' ' + text.split(' ')[-1]}}",
        metric_list=[mean("acc"), {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}],
    )
    write_task(
        tmp_path,
        "choice",
        CHOICES,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        target_delimiter="",
        metric_list=[mean("acc")],
    )
    write_task(
        tmp_path,
        "whole",
        [{"text": f"{LAST_WORDS[0]}. {LAST_WORDS[0]} {LAST_WORDS[1]}"}],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}],
    )
    write_task(
        tmp_path,
        "writing",
        [{"question": question} for question in QUESTIONS],
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target=".",
        generation_kwargs={"until": ["."], "max_gen_toks": 4, "do_sample": False},
        metric_list=[mean("exact_match")],
    )
    return tmp_path


@pytest.fixture
def evaluate(folder):
    def run(*tasks, **settings):
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        import adlm.evaluate.lm_eval  # noqa: F401 # registers the model

        return simple_evaluate(
            model="adlm",
            model_args={"pretrained": str(folder / "model"), "batch_size": 2, "device": "cpu", **settings},
            tasks=list(tasks),
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            bootstrap_iters=0,
            log_samples=True,
        )

    return run


@needs_harness
@pytest.mark.filterwarnings("ignore")
def test_the_harness_finds_what_direct_computation_finds(model, evaluate):
    found = evaluate("last_word", "choice", "whole")["results"]
    pairs = [(text.rpartition(" ")[0], " " + text.rpartition(" ")[2]) for text in LAST_WORDS]
    direct = scorer(model)(items_of(pairs))
    assert found["last_word"]["acc,none"] == sum(each.greedy for each in direct) / len(direct)
    nats = sum(each.nats for each in direct) / len(direct)
    assert found["last_word"]["perplexity,none"] == pytest.approx(math.exp(nats), rel=1e-4)
    right = 0
    for question in CHOICES:
        costs = scorer(model)(items_of((question["question"], choice) for choice in question["choices"]))
        right += min(range(len(costs)), key=lambda i: costs[i].nats) == question["answer"]
    assert found["choice"]["acc,none"] == pytest.approx(right / len(CHOICES))
    text = f"{LAST_WORDS[0]}. {LAST_WORDS[0]} {LAST_WORDS[1]}"
    pieces = windows(WORDS.encode(text).tolist(), LENGTH, causal=model.network.causal)
    assert len(pieces) > 1
    nats = sum(each.nats for each in scorer(model)(pieces))
    expected = math.exp(nats / len(text.split()))
    assert found["whole"]["word_perplexity,none"] == pytest.approx(expected, rel=1e-4)


@needs_harness
@pytest.mark.filterwarnings("ignore")
def test_the_harness_gets_what_the_model_writes(model, evaluate):
    samples = {each["doc"]["question"]: each["resps"][0][0] for each in evaluate("writing")["samples"]["writing"]}
    options = {} if model.network.causal else {"sampler": "confidence", "tokens_per_step": 1}
    for question in QUESTIONS[:2]:
        (text,) = model.generate(question, temperature=0, max_new_tokens=4, **options)
        assert samples[question] == text.removeprefix(question).split(".")[0]
    last = samples[QUESTIONS[2]]  # its context is longer than a row
    shown = WORDS.decode(WORDS.encode(QUESTIONS[2])[4 - LENGTH :])
    if model.network.causal:
        (text,) = model.generate(shown, temperature=0, max_new_tokens=4)
        assert last == text.removeprefix(shown).split(".")[0]
    else:
        (text,) = model.generate(QUESTIONS[2], temperature=0, max_new_tokens=4, block_size=LENGTH // 2, **options)
        assert last == text.removeprefix(QUESTIONS[2]).split(".")[0]


@needs_harness
@pytest.mark.filterwarnings("ignore")
def test_repeated_requests_get_different_samples_which_follow_the_seed(model, folder):
    from lm_eval.api.instance import Instance

    from adlm.evaluate.lm_eval import HarnessModel

    def written(seed, repeats, batch_size=16):
        settings = {"until": [], "max_gen_toks": 5, "do_sample": True, "temperature": 1.0}
        asked = [Instance("generate_until", {}, (text, settings), 0) for text in QUESTIONS for _ in range(repeats)]
        harness = HarnessModel(str(folder / "model"), seed=seed, device="cpu", batch_size=batch_size)
        return harness.generate_until(asked, disable_tqdm=True)

    texts = written(0, 3)
    assert texts == written(0, 3, batch_size=1)
    assert texts[::3] == written(0, 1)
    assert texts != written(1, 3)
    assert len(set(texts)) > len(QUESTIONS)


@needs_harness
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [False], ids=["masked"], indirect=True)
@pytest.mark.parametrize("device", [None, "cuda:0", "cpu"])
def test_a_device_that_is_not_there_means_what_is_there(model, folder, device):
    from adlm.evaluate.lm_eval import HarnessModel

    harness = HarnessModel(str(folder / "model"), device=device)
    expected = "cpu" if device == "cpu" else device_for("auto").type
    assert next(harness.model.network.parameters()).device.type == expected


@needs_harness
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [False], ids=["masked"], indirect=True)
def test_the_command_hands_its_words_to_the_harness(folder, evaluate, monkeypatch, capsys):
    import lm_eval.tasks

    # Reading the thousands of tasks that the harness brings takes it half a minute.
    manager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as the harness sets it, and leaves it
    words = ["--model", "adlm", "--model_args", f"pretrained={folder / 'model'},draws=32", "--tasks", "choice"]
    words += ["--include_path", str(folder), "--output_path", str(folder / "out.json")]
    assert main(["lm-eval", "run", *words]) == 0
    assert "choice" in capsys.readouterr().out
    (written,) = folder.glob("**/out_*.json")
    record = json.loads(written.read_text())
    assert record["results"]["choice"]["acc,none"] == evaluate("choice")["results"]["choice"]["acc,none"]
    assert (record["config"]["loglikelihood"], record["config"]["draws"]) == ("lower bound", 32)
