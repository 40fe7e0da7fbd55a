"""Connections that are no requests, or not yet: limits, timers, two lengths, an empty key."""

import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

pytest.importorskip("uvicorn")
from adlm.errors import ConfigError
from adlm.serve.connections import ConnectionPool, RareWarning
from adlm.serve.server import Service
from tests.errors import raises
from tests.serve.process import server


class _Fake:
    """A connection that remembers being closed."""

    def __init__(self) -> None:
        self.transport, self.closed = self, False

    def abort(self) -> None:
        self.closed = True


def test_the_oldest_idle_connection_makes_room():
    pool, made = ConnectionPool(3, 3), [_Fake() for _ in range(5)]
    assert all(pool.admit(each, "a") for each in made[:3])
    pool.set_idle(made[0], False)
    assert pool.admit(made[3], "b")
    assert [each.closed for each in made] == [False, True, False, False, False]
    for each in (made[2], made[3]):
        pool.set_idle(each, False)
    assert not pool.admit(made[4], "c")
    pool.remove(made[0])
    assert pool.admit(made[4], "c")


def test_one_address_cannot_take_all_connections():
    pool, busy, other = ConnectionPool(10, 2), [_Fake() for _ in range(3)], _Fake()
    for each in busy[:2]:
        assert pool.admit(each, "a")
        pool.set_idle(each, False)
    assert not pool.admit(busy[2], "a")
    assert pool.admit(other, "b")
    assert len(pool) == 3


def test_a_warning_that_would_repeat_is_logged_once(caplog):
    warning = RareWarning("full")
    for _ in range(1000):
        warning()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("key", ["", "  ", "\n", "schlüssel", "a b", "a\x00b"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    with raises(ConfigError, subject="key"):
        Service({"m": "m"}, key=key)


def test_space_around_a_key_does_not_count():
    assert Service({"m": "m"}, key="secret\n").key == "secret"


@pytest.fixture(scope="module")
def log():
    return []


@pytest.fixture(scope="module")
def running(folder, log):
    with server(folder, "--limits.head-seconds", "1", "--limits.connections", "40", log=log) as found:
        yield found


def opened(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answers(raw: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    found = b""
    while part := raw.recv(65536):
        found += part
    return found


def test_a_head_that_does_not_end_is_given_up(running):
    with opened(running[1]) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        began = time.monotonic()
        assert answers(raw).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 60


def test_a_second_head_on_a_connection_has_a_time_limit_too(running):
    with opened(running[1]) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he")
        found = answers(raw)
    assert found.startswith(b"HTTP/1.1 200")
    assert found.count(b"HTTP/1.1 408") == 1


def test_a_connection_that_was_answered_waits_for_its_next_request_without_an_answer(running):
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with opened(running[1]) as raw:
        raw.sendall(asked)
        time.sleep(2)  # twice the time for a head
        raw.sendall(asked)
        time.sleep(0.2)
        raw.sendall(b"GET /he")
        found = answers(raw)
    assert [each[:3] for each in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"408"]


def test_idle_connections_keep_nobody_out(running):
    idle = [opened(running[1]) for _ in range(120)]
    try:
        assert httpx.get(f"{running[1]}/health", timeout=60).status_code == 200
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize("body", [b"0\r\n\r\n", b"hello", b"5\r\nhello\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n"])
def test_two_lengths_get_one_answer_and_the_connection_is_closed(running, body):
    head = b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with opened(running[1]) as raw:
        raw.sendall(head + body)
        found = answers(raw)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1


def test_a_damaged_chunk_gets_one_answer(running):
    head = b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with opened(running[1]) as raw:
        raw.sendall(head + b"zz\r\n")
        assert answers(raw).count(b"HTTP/1.1") == 1


def test_a_websocket_is_answered_as_a_plain_request_and_nothing_is_advised(running):
    head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with opened(running[1]) as raw:
        raw.sendall(head)
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")


def test_the_exit_status_after_sigterm_is_0_and_the_log_has_no_advice(running, log):
    """The last one that uses this server."""
    running[0].send_signal(signal.SIGTERM)
    assert running[0].wait(300) == 0
    assert log
    assert not [line for line in log if "websocket" in line.lower() or "Traceback" in line]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no ulimit")
def test_few_open_files_are_enough_for_an_answer_among_idle_connections(folder, tmp_path):
    log = tmp_path / "log"
    command = (
        f"ulimit -n 200; exec {sys.executable} -m adlm serve {folder} --port 0 --device cpu --limits.head-seconds 5"
    )
    with log.open("w") as out, subprocess.Popen(["bash", "-c", command], stderr=out) as process:
        try:
            while "http://" not in log.read_text():
                time.sleep(0.2)
            address = log.read_text().split("http://")[1].split()[0]
            while httpx.get(f"http://{address}/ready", timeout=60).status_code != 200:
                time.sleep(0.2)
            idle = [opened(f"http://{address}") for _ in range(300)]
            for _ in range(20):
                assert httpx.get(f"http://{address}/health", timeout=60).status_code == 200
            for each in idle:
                each.close()
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()
