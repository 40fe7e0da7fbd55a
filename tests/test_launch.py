"""The guide's commands, and the scripts that start runs on several machines. "Nodes" are processes of this one.

Slurm's programs are stand-ins: `srun` starts the command once for each node, in a session of its own, and answers a
TERM as the real one does, by killing; `scancel --signal` reaches all processes of the steps; `scontrol requeue` is
noted down.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from adlm.cli import main
from adlm.config import to_json
from adlm.recipes.named import recipe
from adlm.train.fit import fit
from adlm.train.run import CheckpointConfig, Run
from tests.train.processes import SMALL, checkpoint_steps, losses, records, steps_done

ROOT = Path(__file__).resolve().parents[1]
NODES, SLURM = ROOT / "runs/nodes.sh", ROOT / "runs/slurm.sh"
JOB = "4711"
PATIENCE = 150.0  # seconds, before something that never comes is given up

PROGRAMS = {
    "srun": """
        nodes=1
        while [[ $1 == --* ]]; do [[ $1 == --nodes=* ]] && nodes=${1#*=}; shift; done
        trap 'for pid in "${pids[@]}"; do kill -KILL -- "-$pid"; done' TERM
        for ((node = 0; node < nodes; node++)); do
          SLURM_NODEID=$node SLURMD_NODENAME=127.0.0.1 setsid "$@" &
          pids+=($!)
        done
        printf '%s\\n' "${pids[@]}" > pids.new
        mv pids.new pids
        code=0
        for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
        exit $code
        """,
    "scancel": """
        [[ $* == "--signal=TERM $SLURM_JOB_ID" ]] || exit 9
        while read -r pid; do kill -TERM -- "-$pid" || true; done < pids
        """,
    "scontrol": """
        case "$1 $2" in
          "show hostnames") echo 127.0.0.1; echo elsewhere ;;
          "requeue $SLURM_JOB_ID") echo "$2" >> requeued ;;
          *) exit 9 ;;
        esac
        """,
    # In place of Python, for what does not take a training run: it notes down how it was called.
    "fake": """
        printf '%s\\n' "$*" >> called
        echo "$OMP_NUM_THREADS $TORCH_DISABLE_SHARE_RDZV_TCP_STORE" >> variables
        trap 'exit "${FAKE_STOPPED:-1}"' TERM
        [[ -z ${FAKE_WAITS:-} ]] || { touch "waiting-$SLURM_NODEID"; sleep 60 & wait; }
        exit "${FAKE_CODE:-0}"
        """,
}


@dataclass
class Script:
    """One of the scripts, running."""

    inner: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        return self.inner.wait(PATIENCE)

    def until(self, happened: Callable[[], bool]) -> None:
        limit = time.monotonic() + PATIENCE
        while not happened():
            assert self.inner.poll() is None, self.said()
            assert time.monotonic() < limit, self.said()
            time.sleep(0.02)


@pytest.fixture
def position(tmp_path: Path) -> Path:
    """A folder to start scripts in, with slurm's programs and a run."""
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\nset -u\npids=()\n{body}")
        path.chmod(0o755)
    return tmp_path


@contextmanager
def started(position: Path, *command: object, **variables: str) -> Iterator[Script]:
    """A script in `position`; nothing of it is left at the end."""
    log = position / f"{len(list(position.glob('*.log')))}.log"
    slurm = {"SLURM_JOB_ID": JOB, "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "127.0.0.1,elsewhere"}
    env = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "TORCHELASTIC"))
        },
        **{"PATH": f"{position / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
        **{"NPROC": "1", "OMP_NUM_THREADS": "1", "PORT": str(free_port()), "LOCAL_ADDR": "127.0.0.1"},
        **(slurm if SLURM in command else {}),
        **variables,
    }
    with log.open("wb") as file:
        words = [str(word) for word in command]
        inner = subprocess.Popen(words, cwd=position, env=env, stdout=file, stderr=file, start_new_session=True)
    try:
        yield Script(inner, log)
    finally:
        left = below(inner.pid)
        for kill, pid in [(os.kill, pid) for pid in (*left, inner.pid)] + [
            (os.killpg, pid) for pid in sessions(position)
        ]:
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        inner.wait()


def sessions(position: Path) -> list[int]:
    """Of the nodes of the last job step."""
    return [int(pid) for pid in lines(position / "pids")]


def below(pid: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    children = [child for child, parent in pairs if parent == pid]
    return [*children, *(each for child in children for each in below(child))]


def ended(position: Path, *command: object, **variables: str) -> tuple[int, str]:
    """The exit code of a script, and what it said."""
    with started(position, *command, **variables) as script:
        return script.wait(), script.said()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# The guide.

GUIDE = [
    block
    for page in ("training", "scaling", "compare")
    for block in re.findall(r"^```bash\n(.*?)^```", (ROOT / f"docs/{page}.md").read_text(), re.M | re.S)
]
COMMANDS = [
    line[line.index("adlm train") :]
    for block in GUIDE
    for line in re.sub(r"='[^']*'", lambda value: value[0].replace("\n", " "), block.replace("\\\n", " ")).splitlines()
    if re.match(r"[A-Z_0-9= ]*(torchrun .*)?adlm train ", line) and "--dry-run" not in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_guide_names_options_and_settings_that_exist(command, monkeypatch):
    asked: list[Run] = []

    def note(run: Run, out: Path, **options: object) -> SimpleNamespace:
        asked.append(run)
        return SimpleNamespace(steps=run.train.steps, nats=None)

    monkeypatch.setattr("adlm.cli.train.fit", note)
    monkeypatch.setattr("adlm.recipes.named.read_run", lambda path: recipe("demo-adlm"))
    _, *words = shlex.split(command, comments=True)
    assert main(words) == 0
    assert len(asked) == 1


# What the scripts are.


@pytest.mark.parametrize("script", [NODES, SLURM], ids=lambda path: path.name)
def test_a_script_can_be_started_and_has_no_faults_that_shellcheck_knows(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


def test_git_keeps_the_scripts_and_leaves_out_what_runs_write():
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("no repository")
    names = [
        "runs/slurm.sh",
        "runs/nodes.sh",
        "runs/README.md",
        "runs/demo/adlm/config.json",
        "runs/name/metrics.jsonl",
    ]
    result = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.split() == names[3:]


def test_every_variable_of_the_scripts_is_explained():
    page = (ROOT / "runs/README.md").read_text()
    for name in ("RECIPE", "OUT", "NPROC", "RESTARTS", "PORT", "PREPARE", "PYTHON", "LOCAL_ADDR", "OMP_NUM_THREADS"):
        assert f"`{name}`" in page, name


# What they say when they cannot start.


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "no RECIPE"),
        (("demo-adlm", "2", "0"), "no FIRST_HOST"),
        (("demo-adlm", "two", "0", "host"), "NODES is 'two', not a number"),
        (("demo-adlm", "2", "2", "host"), "NODE_RANK is 2, but 2 nodes are numbered from 0 to 1"),
        (("demo-adlm", "2", "0", "host", "29500", "--shard"), "too many words before --, from '--shard' on"),
    ],
)
def test_nodes_says_what_is_missing(position, words, complaint):
    code, said = ended(position, NODES, *words, PYTHON="fake")
    assert code == 2
    assert said.startswith(f"nodes.sh: {complaint}\nusage: ")
    assert not (position / "called").exists()


def test_nodes_says_so_where_there_is_no_torch(position):
    code, said = ended(position, NODES, "demo-adlm", 1, 0, "host", NPROC="", PYTHON="false")
    assert code == 2
    assert "false has no torch: activate its environment, or set PYTHON" in said


@pytest.mark.parametrize(
    ("words", "variables", "complaint"),
    [
        (("demo-adlm",), {"SLURM_JOB_ID": ""}, "this is no slurm job (no SLURM_JOB_ID)"),
        ((), {}, "no RECIPE"),
        (("demo-adlm", "--shard"), {}, "too many words before --, from '--shard' on"),
    ],
)
def test_slurm_says_what_is_missing(position, words, variables, complaint):
    code, said = ended(position, SLURM, *words, PYTHON="fake", **variables)
    assert code == 2
    assert said.startswith(f"slurm.sh: {complaint}\nusage: sbatch ")
    assert "runs/nodes.sh" in said
    assert not (position / "called").exists()


# What they start.


def test_nodes_takes_words_or_variables(position):
    options = ["--", "--set", "name=two words"]
    words = ended(position, NODES, "demo-adlm", 2, 1, "first", 29511, *options, PYTHON="fake", OUT="a folder")
    names = {"RECIPE": "demo-adlm", "NODES": "2", "NODE_RANK": "1", "FIRST_HOST": "first", "PORT": "29511"}
    variables = ended(position, NODES, *options, PYTHON="fake", OUT="a folder", **names)
    assert words[0] == variables[0] == 0
    one, other = lines(position / "called")
    assert one == other
    assert one.endswith("-m adlm train demo-adlm --out a folder --set name=two words")
    assert "--rdzv-endpoint=first:29511 " in one
    assert "is_host=0," in one
    assert set(lines(position / "variables")) == {"1 1"}


def test_slurm_starts_one_torchrun_a_node_and_the_first_holds_the_rendezvous(position):
    code, said = ended(position, SLURM, "demo-adlm", "--", "--shard", PYTHON="fake", PORT="", RESTARTS="1", OUT="out")
    assert code == 0, said
    called = sorted(lines(position / "called"))
    assert len(called) == 2
    assert [f"is_host={host}" in line for host, line in zip((0, 1), called, strict=True)] == [True, True]
    for line in called:
        assert "--nnodes=2 --nproc-per-node=1 --max-restarts=1 " in line
        assert f"--rdzv-endpoint=127.0.0.1:{20000 + int(JOB)} " in line
        assert line.endswith("-m adlm train demo-adlm --out out --shard")
    assert lines(position / "variables") == ["1 1", "1 1"]
    assert not (position / "requeued").exists()


@pytest.mark.parametrize(("cores", "threads"), [({"SLURM_CPUS_PER_TASK": "8"}, "4"), ({}, "1")])
def test_cores_are_shared_out_to_processes(position, cores, threads):
    ended(position, SLURM, "demo-adlm", PYTHON="fake", OMP_NUM_THREADS="", NPROC="2", **cores)
    assert {line.split()[0] for line in lines(position / "variables")} == {threads}


def test_data_is_prepared_on_one_node_before_anything_else(position):
    ended(position, SLURM, "demo-adlm", PYTHON="fake", PREPARE='echo "prepare on $SLURM_NODEID" >> called')
    called = lines(position / "called")
    assert called[0] == "prepare on 0"
    assert len(called) == 3
    code, _ = ended(position, SLURM, "demo-adlm", PYTHON="fake", PREPARE="exit 5")
    assert code == 5
    assert len(lines(position / "called")) == 3


# How a slurm job ends.


def waiting(script: Script, position: Path, *, nodes: int) -> None:
    """Until the processes of all nodes can be told to stop."""
    script.until(lambda: len(list(position.glob("waiting-*"))) == nodes and (position / "pids").exists())


def test_a_job_that_fails_is_not_queued_again(position):
    assert ended(position, SLURM, "demo-adlm", PYTHON="fake", FAKE_CODE="7")[0] == 7
    assert not (position / "requeued").exists()


@pytest.mark.parametrize("preparing", [False, True])
def test_a_job_out_of_time_is_queued_again(position, preparing):
    prepare = {"PREPARE": "fake"} if preparing else {}
    with started(position, SLURM, "demo-adlm", PYTHON="fake", FAKE_WAITS="yes", **prepare) as script:
        waiting(script, position, nodes=1 if preparing else 2)
        script.inner.send_signal(signal.SIGUSR1)
        assert script.wait() == 0, script.said()
    assert lines(position / "requeued") == [JOB]
    assert len(lines(position / "called")) == (1 if preparing else 2)


def test_a_job_that_is_done_as_its_time_runs_out_is_not(position):
    with started(position, SLURM, "demo-adlm", PYTHON="fake", FAKE_WAITS="yes", FAKE_STOPPED="0") as script:
        waiting(script, position, nodes=2)
        script.inner.send_signal(signal.SIGUSR1)
        assert script.wait() == 0, script.said()
    assert not (position / "requeued").exists()


def test_a_job_that_is_cancelled_does_not_come_back(position):
    with started(position, SLURM, "demo-adlm", PYTHON="fake", FAKE_WAITS="yes") as script:
        waiting(script, position, nodes=2)
        script.inner.send_signal(signal.SIGTERM)
        assert script.wait() != 0
    assert not (position / "requeued").exists()


def test_slurm_is_asked_for_the_signal_that_the_script_waits_for():
    asked = [line.split()[1] for line in lines(SLURM) if line.startswith("#SBATCH ")]
    (told,) = [option for option in asked if option.startswith("--signal=B:USR1@")]
    # What torchrun allows for saving fits into what slurm allows.
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-150}" in SLURM.read_text()
    assert int(told.partition("@")[2]) >= 150 + 30
    assert "--requeue" in asked


# Real runs.


def written(run: Run, position: Path) -> Path:
    path = position / "run.json"
    path.write_text(json.dumps(to_json(run)))
    return path


def assert_same(out: Path, one: Path, near: float = 1e-6) -> None:
    """Losses and bounds of every step are those of one process."""
    assert losses(out) == pytest.approx(losses(one), abs=near)
    found, expected = (
        [record["validation"]["nats"]["mean"] for record in records(folder) if "validation" in record]
        for folder in (out, one)
    )
    assert found == pytest.approx(expected, abs=near)
    assert (out / "model.safetensors").exists()


def trained(run: Run, folder: Path) -> Path:
    fit(run, folder, callbacks=[])
    return folder


SHORT = replace(SMALL, train=replace(SMALL.train, steps=6))
LONG = replace(
    SMALL,
    train=replace(SMALL.train, steps=100),
    validation=replace(SMALL.validation, every=50),
    checkpoint=CheckpointConfig(every=10),
)


@contextmanager
def two_nodes(position: Path, run: Run, *options: str) -> Iterator[list[Script]]:
    path, port = written(run, position), free_port()
    with (
        started(position, NODES, path, 2, 0, "127.0.0.1", port, "--", "--out", "out", *options) as first,
        started(position, NODES, path, 2, 1, "127.0.0.1", port, "--", "--out", "out", *options) as second,
    ):
        yield [first, second]


@pytest.mark.slow
def test_two_nodes_train_what_one_process_trains(position):
    with two_nodes(position, SMALL, "--set", "train.steps=6") as scripts:
        one = trained(SHORT, position / "one")
        for script in scripts:
            assert script.wait() == 0, script.said()
    assert_same(position / "out", one)
    assert "--max-restarts" not in scripts[0].said()


@pytest.mark.slow
def test_a_slurm_job_of_two_nodes_trains_what_one_process_trains(position):
    with started(position, SLURM, written(SMALL, position), "--", "--set", "train.steps=6", OUT="out") as script:
        one = trained(SHORT, position / "one")
        assert script.wait() == 0, script.said()
    assert_same(position / "out", one)
    assert not (position / "requeued").exists()


@pytest.mark.slow
def test_out_of_time_a_slurm_job_saves_is_queued_again_and_goes_on(position):
    run, out = written(LONG, position), position / "out"
    with started(position, SLURM, run, OUT="out") as script:
        one = trained(LONG, position / "one")
        script.until(lambda: steps_done(out) >= 15)
        script.inner.send_signal(signal.SIGUSR1)
        assert script.wait() == 0, script.said()
    assert lines(position / "requeued") == [JOB]
    assert "steps are done and saved" in script.said()
    saved = checkpoint_steps(out)[-1]
    assert 15 <= saved == steps_done(out) < 100
    with started(position, SLURM, run, OUT="out", SLURM_RESTART_COUNT="1") as script:
        assert script.wait() == 0, script.said()
    assert f"resuming after step {saved} " in script.said()
    assert lines(position / "requeued") == [JOB]
    assert_same(out, one)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_on_one_of_two_nodes_is_started_again_on_both(position, victim):
    with two_nodes(position, LONG) as scripts:
        one = trained(LONG, position / "one")
        scripts[0].until(lambda: steps_done(position / "out") >= 15)
        os.kill(below(scripts[victim].inner.pid)[0], signal.SIGKILL)
        for script in scripts:
            assert script.wait() == 0, script.said()
    assert "resuming after step" in "".join(script.said() for script in scripts)
    assert_same(position / "out", one, near=5e-3)  # sums in another order, and rounding grows over 100 steps
