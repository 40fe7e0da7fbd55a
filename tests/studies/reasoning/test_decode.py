from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from adlm.config import from_json, to_json
from adlm.data.loader import read_rows
from adlm.data.table import DataConfig
from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.models.fed import fed_features
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.randomness import Noise
from adlm.registry import register
from adlm.samplers.canvas import Canvas
from adlm.samplers.filters import Temperature
from adlm.types import Features
from adlm_studies.reasoning.data import ReasoningData, task_tokenizer
from adlm_studies.reasoning.decode import WrittenAnswer, answer_left_to_right, grade_answers
from adlm_studies.reasoning.diffusion import (
    AnchorsFirst,
    DiffusionReasoningData,
    answer_by_denoising,
    between,
    most_confident_first,
)
from adlm_studies.reasoning.methods import Anchored, Chain
from adlm_studies.reasoning.problem import Problem, Task
from adlm_studies.reasoning.vocabulary import special_token_id
from tests.errors import raises

PROBLEMS = (
    Problem("One and one?", ("<<1+1=2>>",), "2", ("1", "1", "2")),
    Problem("What is five and two and two?", ("<<5+2=7>>", "<<7+2=9>>"), "9", ("5", "2", "7")),
    Problem("Nine?", ("<<9=9>>",), "9", ("9",)),
)


@register("reasoning_task")
@dataclass(frozen=True)
class Sums(Task):
    name = "sums"

    def problems(self, split: str) -> Sequence[Problem]:
        return PROBLEMS

    def origin(self, split: str) -> str:
        return "a test"

    def parse_answer(self, text: str) -> str | None:
        return text.partition("####")[2].strip() or None


TOKENIZER = task_tokenizer(Sums(), "words")
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
STACK = StackConfig(width=16, heads=2, layers=2, attention="causal", convolution=3)
END = TOKENIZER.roles.eos_id
TABLE = ReasoningData(Sums(), Anchored(2), 2).table("test", TOKENIZER)


def network(*, causal=True, end=0.0):
    torch.manual_seed(3)
    model = OneStageConfig(replace(STACK, attention="causal" if causal else "full")).build(VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh blocks do nothing
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        model.head.bias[END] = end
    return model


def one_by_one(model, row, limit):
    """The slow way: the whole row is read again for each token."""
    batch = read_rows(TABLE, np.array([row]))
    tokens = batch.tokens[:, : TABLE.given][batch.valid[:, : TABLE.given]][None]
    given, written = tokens.shape[1], []
    while len(written) < limit and END not in written:
        padded = torch.cat([tokens, torch.zeros(1, 1, dtype=torch.long)], 1)
        final = fed_features(model, padded, given - 3, 2).final
        thoughts = model.logits(final[0, given - 2 : given])
        written.append(int(model.logits(final[0, -1:]).argmax()))
        tokens = torch.cat([tokens, torch.tensor([[written[-1]]])], 1)
    return written, thoughts.softmax(-1)


@torch.no_grad()
def test_many_problems_at_once_get_what_each_gets_alone_token_by_token():
    model = network()
    found = answer_left_to_right(model, TABLE, TOKENIZER, fed=True, limit=12, batch=2)
    for row, each in enumerate(found):
        tokens, thoughts = one_by_one(model, row, 12)
        assert (each.text, each.tokens, each.ended) == (TOKENIZER.decode(tokens), len(tokens), END in tokens)
        for likeliest, p in zip(each.thoughts, thoughts, strict=True):
            best = p.topk(3)
            assert [each.token for each in likeliest] == [TOKENIZER.token(i) for i in best.indices.tolist()]
            assert [each.probability for each in likeliest] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_row_ends_at_the_end_token_and_others_go_on():
    assert [each[1:3] for each in answer_left_to_right(network(end=50.0), TABLE, TOKENIZER, fed=True, limit=9)] == [
        (1, True)
    ] * 3
    assert [each[1:3] for each in answer_left_to_right(network(end=-50.0), TABLE, TOKENIZER, fed=True, limit=9)] == [
        (9, False)
    ] * 3
    lengths = {
        each.tokens
        for end in (1.0, 2.0, 3.0)
        for each in answer_left_to_right(network(end=end), TABLE, TOKENIZER, fed=True, limit=9)
    }
    assert len(lengths) > 1


def test_methods_without_thoughts_write_from_the_question_alone():
    table = ReasoningData(Sums(), Chain()).table("test", TOKENIZER)
    found = answer_left_to_right(network(), table, TOKENIZER, fed=False, limit=5)
    assert [(each.tokens, each.thoughts) for each in found] == [(5, ())] * 3


def test_what_cannot_be_decoded_is_refused():
    with raises(ConfigError, subject="network"):
        answer_left_to_right(network(causal=False), TABLE, TOKENIZER, fed=True, limit=5)
    with raises(OutOfRange, subject="limit"):
        answer_left_to_right(network(), TABLE, TOKENIZER, fed=True, limit=0)


def test_answers_are_judged_by_the_task():
    texts = [WrittenAnswer("so\n#### 2", 3, True), WrittenAnswer("#### 8", 2, True), WrittenAnswer("no idea", 2, False)]
    found = grade_answers(Sums(), PROBLEMS, [0, 1, 2], texts)
    assert [(each.found, each.right) for each in found] == [("2", True), ("8", False), (None, False)]
    (second,) = grade_answers(Sums(), PROBLEMS, [1], [WrittenAnswer("#### 9", 2, True)])
    assert second.right
    assert second.problem is PROBLEMS[1]


DIFFUSED = DiffusionReasoningData(Sums(), most=3, room=24)
ROWS = DIFFUSED.table("test", TOKENIZER)
BEGIN, PLACE, CLOSE = (special_token_id(TOKENIZER, mark) for mark in ("<boa>", "<ant>", "<eoa>"))


class Oracle(LanguageModel):
    """Knows the row that belongs to each question; its second choice is always the same token."""

    def __init__(self):
        super().__init__()
        self.vocabulary, self.nothing = VOCABULARY, torch.nn.Parameter(torch.zeros(1))
        batch = read_rows(ROWS, np.arange(len(PROBLEMS)))
        self.known = [tokens[valid] for tokens, valid in zip(batch.tokens, batch.valid, strict=True)]

    def _features(self, tokens, t, segments, output_mask):
        final = torch.zeros(*tokens.shape, VOCABULARY.size)
        for row, seen in enumerate(tokens):
            begin = (seen == BEGIN).nonzero()[0, 0]
            (whole,) = (known for known in self.known if torch.equal(known[: begin + 1], seen[: begin + 1]))
            final[row].scatter_(-1, whole[:, None], 9.0)
        return Features(final if output_mask is None else final[output_mask])

    def logits(self, final):
        return final.index_fill(-1, torch.tensor([VOCABULARY.mask_id]), -torch.inf)


def test_rows_for_diffusion_have_anchors_in_their_positions_and_padding_to_write():
    batch = read_rows(ROWS, np.arange(3))
    positions = slice(ROWS.given, ROWS.given + 3)
    digits = {digit: int(TOKENIZER.encode(digit)[0]) for digit in "12579"}
    expected = [
        [digits["1"], digits["1"], digits["2"]],
        [digits["5"], digits["2"], digits["7"]],
        [digits["9"], PLACE, PLACE],
    ]
    assert batch.tokens[:, positions].tolist() == expected
    assert batch.scored[:, positions].all()
    assert (batch.tokens[:, positions.stop] == CLOSE).all()
    assert not batch.scored[:, positions.stop].any()
    assert batch.scored[:, positions.stop + 1 :].all()
    assert (batch.tokens.shape[1] - positions.stop - 1, batch.targets) == (24, None)


@pytest.mark.parametrize("sampler", [None, most_confident_first()], ids=["anchors first", "plain"])
def test_a_model_that_knows_all_answers_writes_them(sampler):
    found = answer_by_denoising(Oracle(), ROWS, TOKENIZER, sampler=sampler, batch=2)
    assert all(each.right for each in grade_answers(Sums(), PROBLEMS, ROWS.numbers, found))
    assert [each.text for each in found] == [
        layout.trace + layout.answer for layout in (Chain().layout(problem, 0) for problem in PROBLEMS)
    ]
    assert found[1].thoughts[0][0].token == "5"


def test_anchors_are_written_before_anything_else_and_what_is_given_stays():
    blank = read_rows(ROWS, np.array([1])).tokens[:, read_rows(ROWS, np.array([1])).valid[0]]
    scored = torch.ones_like(blank, dtype=torch.bool)
    begin = int((blank[0] == BEGIN).nonzero())
    scored[:, : begin + 1], scored[:, begin + 4] = False, False
    canvas = Canvas(blank.masked_fill(scored, VOCABULARY.mask_id), ~scored, torch.zeros(1, dtype=torch.long))
    order = []
    sampler = AnchorsFirst(begin_id=BEGIN, end_id=CLOSE)
    sampled = sampler.sample(
        Oracle(), canvas, noise=Noise(0), on_step=lambda view: order.append(int(view.fresh.nonzero()[0, 1]))
    )
    assert sorted(order[:3]) == [begin + 1, begin + 2, begin + 3]
    assert len(order) == int(scored.sum())
    assert torch.equal(sampled.tokens[~scored], blank[~scored])
    assert between(torch.tensor([[1, 7, 2, 3, 8, 4]]), 7, 8).tolist() == [[False, False, True, True, False, False]]


def test_diffusion_settings_that_mean_nothing_are_refused():
    with raises(ConfigError, subject="most"):
        DiffusionReasoningData(Sums(), most=-1)
    with raises(DataError, subject="room"):
        DiffusionReasoningData(Sums(), room=4).table("test", TOKENIZER)
    with raises(ConfigError, subject="filters"):
        AnchorsFirst(filters=(Temperature(0.5),))
    with raises(ConfigError, subject="Ordered"):
        answer_by_denoising(network(), ROWS, TOKENIZER)


def test_problems_that_do_not_fit_are_left_out_of_training_and_cut_for_answering():
    short = replace(DIFFUSED, room=12)
    table = short.table("train", TOKENIZER)
    assert (table.numbers, table.name) == ([0, 2], "sums train without 1 that are too long")
    assert len(short.rows_of(PROBLEMS, "sums", TOKENIZER, cut=True)) == 3
    assert from_json(DataConfig, to_json(short)) == short
