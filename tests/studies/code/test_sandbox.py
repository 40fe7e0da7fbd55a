import os
import time

import pytest

from adlm.errors import ConfigError
from adlm_studies.code import sandbox
from adlm_studies.code.sandbox import ProgramLimits, run
from tests.errors import raises

QUICK = ProgramLimits(seconds=1, memory=1 << 28, output=100)
pytestmark = pytest.mark.skipif(os.name != "posix", reason="only POSIX systems limit a process")


def test_a_program_passes_if_it_and_its_tests_come_to_their_end():
    assert run("def f(x): return x + 1", "assert f(1) == 2").status == "passed"
    wrong = run("def f(x): return x", "assert f(1) == 2, 'one short'")
    assert (wrong.status, wrong.error) == ("failed", "AssertionError: one short")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(0)", "failed"),
        ("raise SystemExit", "failed"),
        ("import os; os._exit(0)", "ended"),
        ("import os; os.abort()", "ended"),
        ("x = '''", "failed"),  # would swallow the tests, were they of one piece
        ("class E(Exception):\n  def __str__(self): raise SystemExit\nraise E", "failed"),
        ("a = []\nwhile True: a.append(bytes(10**7))", "failed"),
        ("import os\nwhile True: os.fork()", "failed"),
        ("import threading\nthreading.Thread(target=print).start()", "failed"),
        ("import subprocess; subprocess.run(['true'])", "failed"),
        ("open('big', 'wb').write(bytes(10**8))", "failed"),
        ("import socket; socket.socket()", "failed"),
        ("import os; os.kill(os.getppid(), 9)", "failed"),
        ("import ctypes; ctypes.CDLL(None).getpid()", "failed"),
        ("import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'{\"token\": \"x\", \"error\": null}\\n')\n"
         "  except OSError: pass\nos._exit(0)", "ended"),
    ],
)  # fmt: skip
def test_what_does_not_reach_the_end_of_its_tests_has_not_passed(code, status):
    assert run(code, "pass", limits=QUICK).status == status


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "while True: print('x' * 1000)",
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for fd in range(60):\n  try: os.close(fd)\n  except OSError: pass\nwhile True: pass",
    ],
)
def test_what_does_not_end_is_ended(code):
    began = time.monotonic()
    outcome = run(code, limits=ProgramLimits(clock=0.3, output=100))
    assert outcome.status == "timeout"
    assert len(outcome.output) <= 100
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "act",
    [
        "os.remove(path)",
        "open(path, 'w')",
        "os.rename(path, 'here')",
        "os.truncate(path, 0)",
        "shutil.rmtree(folder)",
        "os.remove(os.path.relpath(path))",
        "os.symlink(path, 'here')",
        "os.unlink('mine', dir_fd=os.open(folder, 0))",
    ],
)
def test_files_outside_stay_as_they_are(tmp_path, act):
    file = tmp_path / "mine"
    file.write_text("dear")
    tmp_path.chmod(0o777)
    file.chmod(0o666)
    names = f"import os, shutil\npath, folder = {str(file)!r}, {str(tmp_path)!r}\n"
    outcome = run(names + act, limits=QUICK)
    assert outcome.status == "failed"
    assert "Permission" in outcome.error
    assert file.read_text() == "dear"


def test_files_inside_can_be_written_and_are_gone_afterwards():
    outcome = run("import os\nopen('a', 'w').write('b')\nos.mkdir('c')\nprint(os.getcwd(), open('a').read())")
    assert outcome.status == "passed"
    folder, content = outcome.output.split()
    assert content == "b"
    assert not os.path.exists(folder)  # noqa: PTH110


def test_the_kernel_refuses_what_python_does_not_notice(tmp_path):
    tmp_path.chmod(0o777)
    outcome = run(f"import os; os.mkfifo({str(tmp_path / 'pipe')!r})", limits=QUICK)
    if not any("Landlock" in line for line in outcome.held):
        pytest.skip("this kernel has no Landlock")
    assert outcome.status == "failed"
    assert not (tmp_path / "pipe").exists()


def test_a_program_sees_neither_the_environment_nor_the_packages_of_its_parent(monkeypatch):
    monkeypatch.setenv("SECRET", "word")
    assert run("import os", "assert 'SECRET' not in os.environ").status == "passed"
    assert run("import torch").error.startswith("ModuleNotFoundError")
    assert run("import sys", "assert sys.stdin.read() == ''").status == "passed"


def test_the_outcome_says_what_kept_the_program():
    held = run("").held
    assert any(line.startswith("network: ") for line in held)
    assert any(line.startswith("files: ") for line in held)


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sandbox.os, "name", "nt")
    with raises(ConfigError, subject="nt"):
        run("")


def test_a_process_that_cannot_be_confined_is_an_error_not_a_failure(monkeypatch, tmp_path):
    broken = tmp_path / "child.py"
    broken.write_text("raise SystemExit('no rights to give up')")
    monkeypatch.setattr(sandbox, "_CHILD", broken)
    with raises(ConfigError, subject="sandbox"):
        run("")


def test_limits_that_let_nothing_run_are_refused():
    for limits in ({"seconds": 0}, {"clock": 0}, {"memory": 1000}):
        with raises(ConfigError, subject="limits"):
            ProgramLimits(**limits)


def test_a_program_that_waits_long_but_works_little_is_not_out_of_a_processor_s_time():
    assert run("import time; time.sleep(1.5)", limits=ProgramLimits(seconds=1)).status == "passed"
    assert run("while True: pass", limits=ProgramLimits(seconds=1)).status == "timeout"
