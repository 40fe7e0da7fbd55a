"""Ports: taken ones are refused."""

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
