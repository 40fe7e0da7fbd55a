from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.anchors.rules import Given
from adlm.config import from_json, to_json
from adlm.data.loader import read_rows
from adlm.data.packing import Wrapped
from adlm.data.table import DataConfig
from adlm.data.tokenizer import train_bpe, train_words
from adlm.errors import DataError, ModelError, OutOfRange
from adlm.models.io import ModelConfig, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.registry import register
from adlm_studies.reasoning.data import (
    ReasoningData,
    distinct,
    encode_layouts,
    read_problems,
    task_tokenizer,
    unknown_fraction,
)
from adlm_studies.reasoning.methods import Anchored, Chain, Coconut, NoChain, Pause
from adlm_studies.reasoning.problem import Problem, Task
from adlm_studies.reasoning.small_tasks import Arithmetic
from adlm_studies.reasoning.vocabulary import (
    SPECIAL_TOKENS,
    FinetuneWithNewTokens,
    special_token_id,
    with_special_tokens,
    words_and_digits,
)
from tests.errors import raises

PROBLEMS = (
    Problem("Two and two?", ("<<2+2=4>>",), "4", ("2", "2", "4")),
    Problem("What is 16 less 3, and then twice that?", ("<<16-3=13>>", "<<13*2=26>>"), "26", ("16", "3", "13")),
    Problem("Nothing?", ("It is nothing.",), "0", ()),
)


@register("reasoning_task")
@dataclass(frozen=True)
class Listed(Task):
    """The same problems in every split."""

    name = "listed"
    listed: tuple[Problem, ...] = PROBLEMS

    def problems(self, split: str) -> Sequence[Problem]:
        return self.listed

    def origin(self, split: str) -> str:
        return "a test"

    def parse_answer(self, text: str) -> str | None:
        return text.partition("####")[2].strip() or None


TOKENIZER = task_tokenizer(Listed(), "words")
ANT = special_token_id(TOKENIZER, "<ant>")
EVERY = np.arange(len(PROBLEMS))


def table_of(method, stage=0):
    return ReasoningData(Listed(), method, stage).table("train", TOKENIZER)


def test_thoughts_stand_at_the_same_columns_and_their_targets_one_to_the_right():
    table = table_of(Anchored(3), 3)
    tokens, targets = table.tokens(EVERY), table.targets(EVERY)
    columns = np.arange(table.given - 4, table.given - 1)
    assert ((tokens == ANT) == np.isin(np.arange(table.length), columns)).all()
    assert (tokens[:, columns[0] - 1] == special_token_id(TOKENIZER, "<boa>")).all()
    assert (tokens[:, columns[-1] + 1] == special_token_id(TOKENIZER, "<eoa>")).all()
    one, two, three, four, six = (TOKENIZER.encode(digit)[0] for digit in "12346")
    assert targets[:, columns + 1].tolist() == [[two, two, four], [one, six, three], [-1, -1, -1]]  # 16 and 3
    assert [table.thought_targets(row) for row in EVERY] == targets[:, columns + 1].tolist()
    targets[:, columns + 1] = -1
    assert (targets == -1).all()


def test_names_are_told_by_their_first_token():
    problem = Problem("Who?", ("It is Tomas.",), "Tomas", ("Tomas",))
    letters = train_bpe(["Who? It is Tomas. ####"], 300)
    tokenizer = with_special_tokens(letters)
    row = ReasoningData(Listed(listed=(problem,)), Anchored(2), 2).rows_of([problem], "x", tokenizer).thought_targets(0)
    assert row == [int(tokenizer.encode(" Tomas")[0]), -1]


def test_important_tokens_are_anchors_where_they_are_written():
    batch = read_rows(table_of(Chain()), EVERY)
    marked = Given().mark(batch)
    assert not (marked & ~batch.scored).any()
    found = [TOKENIZER.decode(batch.tokens[row, marked[row]]) for row in EVERY]
    assert found[0] == "224"  # of 2+2=4
    assert found[2] == ""


def test_how_much_a_tokenizer_does_not_know_is_said():
    assert unknown_fraction(table_of(Chain()), TOKENIZER) == 0
    other = words_and_digits(["2"])
    assert 0.3 < unknown_fraction(ReasoningData(Listed(), Chain()).table("train", other), other) < 1


def test_a_row_read_without_padding_is_the_problem_and_what_is_scored_is_what_follows_the_thoughts():
    table = table_of(Anchored(2), 2)
    batch = read_rows(table, EVERY)
    end = TOKENIZER.roles.eos_id
    for row, problem in enumerate(PROBLEMS):
        layout = Anchored(2).layout(problem, 2)
        assert TOKENIZER.decode(batch.tokens[row, batch.valid[row]]) == layout.question + layout.trace + layout.answer
        assert TOKENIZER.decode(batch.tokens[row, batch.scored[row]]) == layout.trace + layout.answer
        assert batch.tokens[row, batch.scored[row]][-1] == end
        assert batch.scored[row].nonzero()[0] == table.given
    assert table.scored_lengths(EVERY).tolist() == batch.scored.sum(-1).tolist()
    assert (batch.targets is None, read_rows(table_of(Chain()), EVERY).targets) == (False, None)


@given(
    st.lists(st.tuples(st.text("ab 12", min_size=1), st.lists(st.text("ab 12"), max_size=3)), min_size=1, max_size=5),
    st.sampled_from([NoChain(), Chain(), Pause(2), Coconut(2, 1), Anchored(2)]),
)
def test_whatever_the_problems_given_text_ends_in_one_column_and_lies_within_the_text(texts, method):
    problems = tuple(Problem(question, tuple(steps), "a", tuple("ab")) for question, steps in texts)
    config = ReasoningData(Listed(problems), method, method.stages - 1)
    table = config.table("train", words_and_digits(["a b ab ba aa bb #### \n"]))
    rows = np.arange(len(problems))
    fixed, valid = table.frozen(rows), table.valid(rows)
    assert (valid | ~fixed).all()
    assert (fixed[:, table.given - 1] & ~fixed[:, table.given :].any(-1)).all()
    assert (valid.sum(-1) == table.lengths(rows)).all()
    assert table.thoughts == method.thoughts(method.stages - 1)
    # One run of text a row: padding only before and after it.
    assert (np.diff(np.pad(valid, ((0, 0), (1, 1))).astype(int), axis=1) == 1).sum(-1).tolist() == [1] * len(rows)


def test_marks_are_there_for_methods_with_thoughts_alone():
    def names(method, stage=0):
        (row,) = encode_layouts([method.layout(PROBLEMS[0], stage)], TOKENIZER, method.special_tokens)
        return [TOKENIZER.token(i) for i in row.given if TOKENIZER.token(i) in SPECIAL_TOKENS]

    assert names(NoChain()) == names(Chain()) == []
    assert names(Pause(2)) == ["<pause>", "<pause>"]
    assert names(Coconut(2, 1)) == ["<bot>", "<eot>"]
    assert names(Coconut(2, 1), 1) == ["<bot>", "<ant>", "<eot>"]
    assert names(Anchored(2), 1) == ["<boa>", "<ant>", "<eoa>"]


def test_problems_that_are_too_long_are_left_out_and_counted():
    lengths = table_of(Chain()).lengths(EVERY)
    table = ReasoningData(Listed(), Chain(), longest=int(sorted(lengths)[1])).table("train", TOKENIZER)
    assert (len(table), table.numbers) == (2, [i for i in EVERY if lengths[i] < max(lengths)])
    assert table.name == "listed train without 1 that are too long"
    with raises(DataError, subject="longest"):
        ReasoningData(Listed(), Chain(), longest=3).table("train", TOKENIZER)


def test_no_problems_and_fewer_than_none_are_refused():
    with raises(DataError, subject="listed"):
        ReasoningData(Listed(()), Chain()).prepare()
    with raises(OutOfRange, rule="0 or more"):
        ReasoningData(Listed(), Chain(), problems=-1)


def test_data_comes_back_from_json_and_its_key_tells_stages_apart():
    config = ReasoningData(Listed(), Anchored(2), 1, problems=2)
    assert from_json(DataConfig, to_json(config)) == config
    prepared, later = config.prepare(), replace(config, stage=2).prepare()
    assert (len(prepared.train), len(prepared.valid)) == (2, 3)
    assert prepared.train.key == config.prepare().train.key != later.train.key
    assert prepared.tokenizer.fingerprint == later.tokenizer.fingerprint


@given(st.integers(0, 10**12))
def test_numbers_that_were_never_seen_are_read_and_written_digit_by_digit(number):
    text = f"<<{number}+ {number}>>\n#### {number}"
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert len(TOKENIZER.encode(str(number))) == len(str(number))


def test_a_mark_spelled_out_in_a_question_is_text():
    assert not np.isin(
        TOKENIZER.encode("a <ant> <boa>"), [special_token_id(TOKENIZER, mark) for mark in SPECIAL_TOKENS]
    ).any()


def test_marks_are_added_after_all_ids_of_a_tokenizer_once():
    plain = train_words(["the cat sat on the mat"])
    marked = with_special_tokens(plain)
    assert marked.vocab_size == plain.vocab_size + len(SPECIAL_TOKENS)
    assert (marked.mask_id, marked.roles.eos_id) == (plain.mask_id, plain.roles.eos_id)
    assert sorted(special_token_id(marked, mark) for mark in SPECIAL_TOKENS) == list(
        range(plain.vocab_size, marked.vocab_size)
    )
    assert marked.encode("the cat sat").tolist() == plain.encode("the cat sat").tolist()
    assert with_special_tokens(marked).fingerprint == marked.fingerprint
    with raises(DataError, subject="<ant>"):
        special_token_id(plain, "<ant>")


def saved(folder, tokenizer):
    torch.manual_seed(0)
    network = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal"))
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(8))
    model = config.build()
    torch.nn.init.normal_(model.head.weight)
    save_model(folder, model, config, tokenizer)
    return model, network


def test_a_model_that_learns_the_marks_predicts_the_other_tokens_as_before(tmp_path):
    plain = train_words(["the cat sat on the mat"])
    model, network = saved(tmp_path, plain)
    marked = with_special_tokens(plain)
    grown = network.build(Vocabulary(marked.vocab_size, marked.mask_id))
    FinetuneWithNewTokens(str(tmp_path)).apply(grown, marked)
    tokens = torch.tensor([plain.encode("the cat sat on the mat").tolist()])
    before, after = (m.logits(m.features(tokens).final)[..., : plain.vocab_size] for m in (model, grown))
    assert torch.allclose(before, after, atol=1e-5)
    with raises(ModelError, subject="tokenizer"):
        FinetuneWithNewTokens(str(tmp_path)).apply(grown, TOKENIZER)
    wider = replace(network, tied=True).build(Vocabulary(marked.vocab_size, marked.mask_id))
    with raises(ModelError, subject="network"):
        FinetuneWithNewTokens(str(tmp_path)).apply(wider, marked)


def test_a_question_that_is_drawn_repeatedly_counts_once():
    drawn = read_problems(Arithmetic(least=1, most=1, test=200), "test")
    kept = distinct(drawn)
    questions = [problem.question for problem in drawn]
    assert len(kept) == len(set(questions)) < len(drawn)
    assert [problem.question for problem in kept] == list(dict.fromkeys(questions))
