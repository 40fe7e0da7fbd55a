import json
import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.distributed import DistributedContext
from adlm.errors import ModelError
from adlm.evaluate.documents import document_rows
from adlm.evaluate.likelihoods import score_items
from adlm.evaluate.measurement import Measurement
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.likelihood import ESTIMATORS
from adlm.resumable import each_of, weights_checksum
from tests.conftest import Texts


class Meeting:
    """Where threads that stand for processes exchange values."""

    def __init__(self, size):
        self.barrier, self.values = threading.Barrier(size, timeout=20), [None] * size

    def exchange(self, rank, value):
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class Threads(DistributedContext):
    meeting: Any = field(default=None)

    def gathered(self, values):
        return torch.stack(self.meeting.exchange(self.rank, values.clone()))

    def all(self, value):
        return self.meeting.exchange(self.rank, value)


def together(size, work):
    """What `work` gives on each of so many processes, or what it raises."""
    meeting, found = Meeting(size), [None] * size

    def run(rank):
        try:
            found[rank] = work(Threads(rank, size, meeting=meeting))
        except ModelError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def squares(numbers):
    return np.stack([numbers.astype(float) ** 2, -numbers], -1)


@pytest.mark.parametrize("count", [1, 7, 12])
def test_processes_find_what_one_finds(count):
    alone = each_of(count, squares, width=2, batch=3)
    assert np.array_equal(alone, squares(np.arange(count)))
    for found in together(2, lambda context: each_of(count, squares, width=2, batch=3, context=context)):
        assert np.array_equal(found, alone)


def test_an_error_of_one_process_is_raised_by_all():
    def compute(numbers):
        if 4 in numbers:
            raise ModelError("asked", "nan", "fix it")
        return squares(numbers)

    found = together(2, lambda context: each_of(9, compute, width=2, batch=3, context=context))
    assert [str(error) for error in found] == [str(ModelError("asked", "nan", "fix it"))] * 2


class Stops:
    """Computes so many blocks, then is interrupted."""

    def __init__(self, blocks):
        self.blocks, self.done = blocks, []

    def __call__(self, numbers):
        if len(self.done) == self.blocks:
            raise KeyboardInterrupt
        self.done.append(numbers.tolist())
        return squares(numbers)


def test_what_was_interrupted_goes_on_and_ends_as_if_left_alone(tmp_path):
    partial, options = tmp_path / "p.jsonl", {"width": 2, "batch": 2, "made_of": {"model": "m"}}
    with pytest.raises(KeyboardInterrupt):
        each_of(9, Stops(2), partial=partial, **options)
    with partial.open("a") as file:
        file.write('{"key": "cut sho')  # a kill in the middle of a line
    second = Stops(9)
    found = each_of(9, second, partial=partial, **options)
    assert second.done == [[4, 5], [6, 7], [8]]
    assert np.array_equal(found, squares(np.arange(9)))
    third = Stops(0)
    assert np.array_equal(each_of(9, third, partial=partial, **options), found)


@pytest.mark.parametrize(
    "change", [{"made_of": {"model": "other"}}, {"batch": 3}, {"made_of": {"model": "m", "seed": 1}}]
)
def test_what_was_made_of_other_things_is_not_gone_on_with(tmp_path, change):
    partial, options = tmp_path / "p.jsonl", {"width": 2, "batch": 2, "made_of": {"model": "m"}}
    each_of(8, Stops(9), partial=partial, **options)
    again = Stops(9)
    each_of(8, again, partial=partial, **{**options, **change})
    assert [number for block in again.done for number in block] == list(range(8))
    keys = {json.loads(line)["key"] for line in partial.read_text().splitlines()}
    assert len(keys) == 1


@pytest.mark.parametrize("line", ["[]\n", "{}\n", "no JSON\n", '{"key": 1}\n', "\n"])
def test_damaged_lines_are_not_trusted(tmp_path, line):
    partial = tmp_path / "p.jsonl"
    partial.write_text(line)
    work = Stops(9)
    each_of(4, work, width=2, batch=2, partial=partial)
    assert len(work.done) == 2


def test_infinities_and_every_bit_survive_the_file(tmp_path):
    values = np.array([[math.inf, 0.1], [-math.inf, 1e-300], [math.pi, 2**-1074]])
    partial = tmp_path / "p.jsonl"
    each_of(3, lambda numbers: values[numbers], width=2, batch=2, partial=partial)
    assert np.array_equal(each_of(3, Stops(0), width=2, batch=2, partial=partial), values)


def test_a_checksum_of_weights_changes_with_any_of_them():
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    two.load_state_dict(one.state_dict())
    assert weights_checksum(one) == weights_checksum(two)
    with torch.no_grad():
        two.bias[1] += 1e-7
    assert weights_checksum(one) != weights_checksum(two)


def test_a_likelihood_is_the_same_to_the_bit_on_one_process_and_on_two():
    tokenizer = characters("abcd")
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    table = document_rows(Texts(("abcd" * 6, "ab", "dcba" * 3)), "train", tokenizer, Wrapped(8))

    def model():
        torch.manual_seed(0)
        built = OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(vocabulary)
        torch.nn.init.normal_(built.head.weight)
        return built

    def scored(context):
        work = Measurement(context)
        return score_items(models[context.rank], table, ESTIMATORS["counts"], draws=2, batch=2, work=work).nats

    models = [model(), model()]
    alone = scored(DistributedContext())
    for found in together(2, scored):
        assert np.array_equal(found, alone)
