"""Who is let in, what is let through, and what every answer carries."""

import logging

import pytest
from fastapi.testclient import TestClient

from adlm.errors import ConfigError, OutOfRange
from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.serve.limits import ServerLimits
from adlm.serve.server import Service, names_for
from tests.errors import raises
from tests.serve.conftest import HERE


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_other_machines_are_served_only_with_a_key(host):
    with raises(ConfigError, subject="key"):
        Service({"m": "m"}, host=host)
    assert Service({"m": "m"}, host=host, key="secret").key == "secret"
    with raises(ConfigError, subject="studio"):
        Service({"m": "m"}, key="secret", studio=True)


def test_no_request_may_ask_for_more_texts_than_are_written_at_once():
    with raises(OutOfRange, subject="limits.n", value=65):
        ServerLimits(n=65)


def test_the_key_is_asked_on_every_route(models):
    with TestClient(
        make_app(Engine(models), keys={"key": "secret"}, studio=True), base_url="http://example.org"
    ) as client:
        paths = [route.path for route in client.app.routes] + ["/nothing"]
        assert "/v1/generate" in paths
        for path in paths:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                for method in ("GET", "POST", "OPTIONS"):
                    response = client.request(method, path, headers=headers)
                    assert response.status_code == 401, (method, path)
                    assert response.json()["error"]["type"] == "authentication_error"
        assert client.get("/health", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_server_without_a_key_takes_no_orders_from_other_sites(client):
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/health", headers={"Host": "[::1"}).status_code == 403
    assert client.get("/health", headers={"Host": "localhost:8000"}).status_code == 200
    assert client.get("/health", headers={"Host": "[::1]:8000"}).status_code == 200
    evil = {"Origin": "http://evil.example"}
    assert client.post("/v1/score", json={"text": "a"}, headers=evil).status_code == 403
    assert client.post("/v1/score", json={"text": "a"}, headers={"Origin": "null"}).status_code == 403
    assert client.post("/v1/score", json={"text": "a"}, headers={"Origin": HERE}).status_code == 200


def test_large_bodies_are_refused_declared_or_not(client):
    large = b'{"text": "' + b"a" * (1 << 15) + b'"}'
    assert client.post("/v1/score", content=large).status_code == 413
    assert client.post("/v1/score", content=iter([large])).status_code == 413
    assert client.post("/v1/score", content=b"", headers={"Content-Length": "9" * 100}).status_code == 413


def test_every_answer_has_the_security_headers(models):
    with TestClient(make_app(Engine(models), studio=True), base_url=HERE) as client:
        for path in ("/", "/static/studio.js", "/health", "/nothing"):
            headers = client.get(path).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "no-referrer"


def test_the_page_is_served_only_where_asked_for_and_nothing_else_of_the_disk(models, client):
    assert client.get("/").status_code == 404
    with TestClient(make_app(Engine(models), studio=True), base_url=HERE) as studio:
        assert "<html" in studio.get("/").text
        assert studio.get("/static/player.js").headers["Content-Type"].startswith("text/javascript")
        for name in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "%2fetc%2fpasswd", "app.py"):
            assert studio.get(f"/static/{name}").status_code == 404, name


def test_the_log_has_routes_and_no_texts(client, caplog):
    caplog.set_level(logging.DEBUG)
    secret = "my-own-secret-words"
    client.post("/v1/completions", json={"prompt": secret, "max_tokens": 2})
    client.post("/v1/completions", json={"prompt": secret * 50})
    client.post("/v1/infill", json={"text": f"{secret} [MASK:x]"})
    client.get(f"/{secret}")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("adlm")]
    assert any("/v1/completions 200" in line for line in ours)
    assert secret not in "\n".join(ours)


def test_models_get_short_names_that_differ():
    assert names_for(["runs/a/adlm", "runs/b/adlm/", "owner/mdlm"]) == {
        "adlm": "runs/a/adlm", "adlm-2": "runs/b/adlm/", "mdlm": "owner/mdlm"}  # fmt: skip
