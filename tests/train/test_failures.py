"""What goes wrong is named, costs no work that was saved, and is never met by silently starting over."""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from adlm.config import to_json
from adlm.data.loader import LoaderConfig
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, ModelError, TrainingError
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.train.checkpoint import Checkpoints
from adlm.train.fit import fit
from adlm.train.run import CheckpointConfig, FitOptions, Run
from adlm.train.run_folder import CHECKPOINTS
from tests.errors import raises
from tests.train.processes import (
    ALL_THE_SAME,
    SMALL,
    At,
    Messages,
    Poisoned,
    checkpoint_steps,
    losses,
    records,
    same,
    train,
)

UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


def trained(run: Run, folder: Path, **options) -> Path:
    fit(run, folder, options=FitOptions(**options), callbacks=[])
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(SMALL, tmp_path_factory.mktemp("whole") / "run")


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After 8 steps, with checkpoints of steps 3 and 6."""

    def crash() -> None:
        raise Crash

    out = tmp_path_factory.mktemp("crashed") / "run"
    with pytest.raises(Crash):
        fit(SMALL, out, callbacks=[At(8, crash)])
    assert checkpoint_steps(out) == [3, 6]
    return out


@pytest.fixture
def stopped(crashed: Path, tmp_path: Path) -> Path:
    """A copy of it, to be harmed."""
    return shutil.copytree(crashed, tmp_path / "run")


# Disks.


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses to write beyond `size` bytes of any file, as a disk does that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, UNLIMITED[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, where the tests may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only who may mount file systems can have a small one")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 12), st.sampled_from([0, 500, 3_000, 40_000, 120_000]))
def test_a_disk_that_fills_up_ends_a_run_that_then_goes_on(whole, tmp_path_factory, step, size):
    """Whatever it is that no longer fits: metrics, a model, a checkpoint."""
    out = tmp_path_factory.mktemp("full") / "run"
    try:
        full = At(step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, UNLIMITED[1])))
        with pytest.raises(TrainingError) as caught, largest_file(2**30):
            fit(SMALL, out, callbacks=[full])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    assert caught.value.subject.startswith(str(out))
    assert "File too large" in caught.value.found  # the system's words
    assert not list(out.rglob("*.writing"))
    assert same(trained(SMALL, out), whole) == ALL_THE_SAME


def test_a_full_disk_is_named_and_what_was_saved_stays(whole, small_disk, tmp_path):
    out = small_disk / "run"
    ballast = small_disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    with pytest.raises(TrainingError) as caught:
        fit(SMALL, out, callbacks=[At(5, fill)])
    assert "no space left on device" in caught.value.found.lower()
    assert checkpoint_steps(out) == [3]
    ballast.unlink()
    assert same(trained(SMALL, out), whole) == ALL_THE_SAME


def test_a_disk_that_cannot_be_written_to_is_named(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with raises(TrainingError, subject=str(small_disk / "run")):
        fit(SMALL, small_disk / "run", callbacks=[])


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_file_in_the_way_is_named(tmp_path, name):
    (tmp_path / "file").write_text("not a folder")
    with raises(TrainingError, subject=str(tmp_path / name)):
        fit(SMALL, tmp_path / name, callbacks=[])
    assert (tmp_path / "file").read_text() == "not a folder"


# Checkpoints.


def shard(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def flip(path: Path, position: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(position * (len(content) - 1))] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "truncated": lambda folder: os.truncate(shard(folder), shard(folder).stat().st_size // 2),
    "a bit in the tensors": lambda folder: flip(shard(folder), 0.9),
    "a bit in the numbers": lambda folder: flip(folder / "state.json", 0.5),
    "no numbers": lambda folder: (folder / "state.json").unlink(),
    "empty numbers": lambda folder: (folder / "state.json").write_bytes(b""),
    "no tensors": lambda folder: shard(folder).unlink(),
    "numbers of another": lambda folder: shutil.copy(folder.parent / "step-000000003" / "state.json", folder),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_taken(whole, stopped, damage):
    DAMAGES[damage](stopped / CHECKPOINTS / "step-000000006")
    said = Messages()
    fit(SMALL, stopped, callbacks=[said])
    assert "step-000000006.damaged" in said.lines[0]
    assert said.lines[1].startswith("resuming after step 3 ")
    assert (stopped / CHECKPOINTS / "step-000000006.damaged").is_dir()
    assert same(stopped, whole) == ALL_THE_SAME


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["state.json", "*.safetensors"]), st.floats(0, 1))
def test_no_bit_changes_unnoticed(crashed, tmp_path_factory, name, position):
    folder = shutil.copytree(crashed / CHECKPOINTS, tmp_path_factory.mktemp("flipped") / CHECKPOINTS)
    flip(next((folder / "step-000000006").glob(name)), position)
    found = Checkpoints(folder, DistributedContext(), keep=2, log=lambda message: None).newest()
    assert found is not None
    assert found.folder.name == "step-000000003"


def test_where_no_checkpoint_is_whole_nothing_is_begun_or_changed(whole, stopped):
    for name, damage in (("step-000000003", "no numbers"), ("step-000000006", "truncated")):
        DAMAGES[damage](stopped / CHECKPOINTS / name)
    before = files(stopped)
    for _ in range(2):  # and not at the second attempt either
        with raises(TrainingError, subject=str(stopped / CHECKPOINTS)):
            fit(SMALL, stopped, callbacks=[])
        assert files(stopped) == before
    assert same(trained(SMALL, stopped, resume="never"), whole) == ALL_THE_SAME


def test_a_checkpoint_that_only_lacked_its_name_is_taken(whole, stopped):
    """Killed between its last byte and its name; one of the same step may have been there."""
    folder = stopped / CHECKPOINTS / "step-000000006"
    folder.rename(folder.with_name("step-000000006.writing"))
    said = Messages()
    fit(SMALL, stopped, callbacks=[said])
    assert said.lines[0].startswith("resuming after step 6 ")
    assert same(stopped, whole) == ALL_THE_SAME


def test_half_a_checkpoint_is_taken_away(whole, stopped):
    folder = stopped / CHECKPOINTS / "step-000000009.writing"
    shutil.copytree(stopped / CHECKPOINTS / "step-000000006", folder)
    (folder / "state.json").unlink()
    assert same(trained(SMALL, stopped), whole) == ALL_THE_SAME
    assert not list(stopped.rglob("*.writing"))


# Changes.


def test_another_config_is_refused_with_the_difference(stopped):
    before = files(stopped)
    run = replace(SMALL, train=replace(SMALL.train, steps=20, grad_clip=0.5))
    with raises(ConfigError, subject="train.grad_clip, train.steps"):
        fit(run, stopped, callbacks=[])
    assert files(stopped) == before


def test_what_may_change_is_let_through_when_allowed(whole, stopped):
    run = replace(SMALL, name="renamed", checkpoint=CheckpointConfig(every=5, keep=3))
    fit(run, stopped, options=FitOptions(allow_change=True), callbacks=[])
    assert same(stopped, whole) == ALL_THE_SAME
    fit(run, stopped, callbacks=[])  # from now on it is the run of this folder


@pytest.mark.parametrize(
    ("run", "subject"),
    [
        (replace(SMALL, train=replace(SMALL.train, seed=1)), "train.seed"),
        (replace(SMALL, train=replace(SMALL.train, tokens_per_step=256)), "train.tokens_per_step"),
        (replace(SMALL, train=replace(SMALL.train, ema_decay=0.5)), "train.ema_decay"),
        (replace(SMALL, network=replace(SMALL.network, denoiser_layers=2)), "network.denoiser_layers"),
        (replace(SMALL, objective=replace(SMALL.objective, gamma=0.1)), "objective.gamma"),
    ],
)
def test_what_may_not_change_is_refused_even_so(stopped, run, subject):
    with raises(ConfigError, subject=subject):
        fit(run, stopped, options=FitOptions(allow_change=True), callbacks=[])


def test_other_data_is_refused_even_so(stopped):
    run = replace(SMALL, data=replace(SMALL.data, seed=1))
    with raises(ConfigError, subject="data.seed"):
        fit(run, stopped, callbacks=[])
    with raises(ConfigError, subject="data"):
        fit(run, stopped, options=FitOptions(allow_change=True), callbacks=[])


# Folders.


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    out = tmp_path / "run"
    run = replace(SMALL, train=replace(SMALL.train, steps=100_000))
    process = train(run, out)
    try:
        assert process.reached(1), process.said()
        with raises(TrainingError, subject=str(out)):
            fit(run, out, callbacks=[])
        assert process.inner.poll() is None
    finally:
        process.kill()


def test_a_model_from_elsewhere_is_not_overwritten(tmp_path):
    data = SMALL.data.prepare()
    vocabulary = Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)
    config = ModelConfig(SMALL.network, vocabulary, data.packing)
    save_model(tmp_path, config.build(), config, data.tokenizer)
    before = files(tmp_path)
    for resume in ("auto", "never"):
        with raises(ConfigError, subject=str(tmp_path)):
            fit(SMALL, tmp_path, options=FitOptions(resume=resume), callbacks=[])
    assert files(tmp_path) == before


def test_a_config_from_elsewhere_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with raises(ConfigError, subject=str(tmp_path)):
        fit(SMALL, tmp_path, callbacks=[])
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "gpt2"}


def test_starting_again_never_leaves_old_weights_beside_a_new_config(tmp_path):
    out = trained(SMALL, tmp_path / "run")
    wider = replace(SMALL, network=replace(SMALL.network, anchor=replace(SMALL.network.anchor, width=32)))

    def look() -> None:
        with pytest.raises(ModelError):
            load_model(out)

    fit(wider, out, options=FitOptions(resume="never"), callbacks=[At(1, look)])
    assert load_model(out)[1].network == wider.network


# Losses that are not finite.


DONE = 5  # steps before the one that fails
SAMPLE = int(LoaderConfig(8, SMALL.train.seed).build(SMALL.data.prepare().train).rows(DONE)[3])


def poisoned(*, gradient: bool = False) -> Run:
    objective = Poisoned(SMALL.objective.corruption, gamma=0.05, sample=SAMPLE, gradient=gradient)
    return replace(SMALL, objective=objective, checkpoint=CheckpointConfig(every=4))


def test_a_loss_that_is_not_finite_stops_the_run_before_the_step(tmp_path):
    with raises(TrainingError, subject=f"step {DONE + 1}") as caught:
        fit(poisoned(), tmp_path / "run", callbacks=[])
    assert "loss inf" in caught.value.found
    rank, samples = caught.value.found.split(": ")[-1].split(", samples ")
    assert rank == "rank 0"
    assert str(SAMPLE) in samples.split(", ")
    assert len(samples.split(", ")) == SMALL.train.micro_batch_size
    kept = load_file(tmp_path / "run" / "nonfinite" / f"step-{DONE + 1:09d}-rank-0.safetensors")
    assert SAMPLE in kept["index"]
    expected = SMALL.data.prepare().train.tokens(kept["index"].numpy())
    assert torch.equal(kept["tokens"], torch.from_numpy(expected))
    # Saved is the state before the step: that of a run which never met it.
    assert checkpoint_steps(tmp_path / "run")[-1] == DONE
    healthy = replace(SMALL, checkpoint=CheckpointConfig(every=DONE, keep=9))
    trained(healthy, tmp_path / "healthy")
    name = f"step-{DONE:09d}"
    ours, theirs = (load_file(shard(tmp_path / run / CHECKPOINTS / name)) for run in ("run", "healthy"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert losses(tmp_path / "run") == losses(tmp_path / "healthy")[:DONE]


def test_steps_that_are_not_finite_are_left_out_and_counted_when_asked(tmp_path):
    with pytest.raises(TrainingError):
        fit(poisoned(), tmp_path / "stopped", callbacks=[])
    said = Messages()
    fit(poisoned(), tmp_path / "stopped", options=FitOptions(on_nonfinite="skip"), callbacks=[said])
    assert any(line.startswith(f"step {DONE + 1} skipped: loss inf") for line in said.lines)
    steps = [record for record in records(tmp_path / "stopped") if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert [record["skipped"] for record in steps] == [0] * DONE + [1] * (12 - DONE)
    assert [record["step"] for record in steps if record["loss"] is None] == [DONE + 1]
    numbers = json.loads((tmp_path / "stopped" / CHECKPOINTS / "step-000000012" / "state.json").read_text())["progress"]
    assert (numbers["skipped"], numbers["step"], numbers["averaged"]) == (1, 12, 11)
    # The same as if it had been asked for from the beginning.
    trained(poisoned(), tmp_path / "skipped", on_nonfinite="skip")
    assert same(tmp_path / "stopped", tmp_path / "skipped") == ALL_THE_SAME


def test_a_gradient_that_is_not_finite_stops_the_run_too(tmp_path):
    with raises(TrainingError, subject=f"step {DONE + 1}") as caught:
        fit(poisoned(gradient=True), tmp_path, callbacks=[])
    assert str(SAMPLE) in caught.value.found.split("samples ")[1].split(", ")
    assert checkpoint_steps(tmp_path)[-1] == DONE


def test_a_run_stopped_by_its_losses_stays_stopped_until_something_changes(tmp_path):
    for _ in range(2):
        with raises(TrainingError, subject=f"step {DONE + 1}"):
            fit(poisoned(), tmp_path, callbacks=[])
    assert to_json(poisoned()) == json.loads((tmp_path / "config.json").read_text())["run"]
