"""Ports: taken ones are refused, and workers have connections spread over them."""

import contextlib
import socket
import sys

import pytest

from adlm.errors import ConfigError, OutOfRange

pytest.importorskip("uvicorn")
from adlm.serve.server import Service
from tests.errors import raises


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_of_another_server_is_refused(workers):
    with Service({"m": "m"}, port=0, workers=workers).bound() as taken:
        port = taken.getsockname()[1]
        with raises(ConfigError, subject="port"):
            Service({"m": "m"}, port=port, workers=workers).bound()


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_does_not_exist_is_refused(port):
    with raises(OutOfRange, subject="port", value=port):
        Service({"m": "m"}, port=port)


linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not spread connections over sockets")


@linux
def test_connections_are_spread_over_the_sockets_of_workers():
    counts = fractions(64)
    assert sum(counts) == 64
    assert min(counts) >= 12  # binomial: fewer are a probability of 2e-7


@linux
def test_a_worker_that_is_not_ready_is_given_no_connections():
    assert fractions(32, listens=False) == [32, 0]


def fractions(connections: int, *, listens: bool = True) -> list[int]:
    """How many connections each of two sockets has, of which the second may not listen yet."""
    service = Service({"m": "m"}, port=0, workers=2)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(service.bound())
        port = first.getsockname()[1]
        second = stack.enter_context(service.bound(port, listens=listens))
        for _ in range(connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        return [accepted(first, stack), accepted(second, stack) if listens else 0]


def accepted(listening: socket.socket, stack: contextlib.ExitStack) -> int:
    listening.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            stack.enter_context(listening.accept()[0])
            count += 1
    return count
