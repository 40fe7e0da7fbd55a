"""Who is let in, what is let through, and what every answer carries."""

import dataclasses
import logging
import threading

import pytest
from fastapi.testclient import TestClient

from adlm.errors import ConfigError, OutOfRange
from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.server import Service, names_for, read_keys
from adlm.text_model import TextModel
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


def test_keys_come_from_a_file_by_the_names_of_clients(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice 3f9c\n\n bob  77aa \n")
    assert read_keys(file) == {"alice": "3f9c", "bob": "77aa"}
    for wrong in ("", "alice\n", "alice a b\n", "alice a\nalice b\n", "schlüssel a\n"):
        file.write_text(wrong, encoding="utf-8")
        with raises(ConfigError, subject="key_file"):
            read_keys(file)
    with raises(ConfigError, subject="key_file"):
        read_keys(tmp_path / "none")


def test_with_several_keys_a_client_is_a_key(models, monkeypatch):
    clients, engine = [], Engine(models)
    submit = engine.submit
    monkeypatch.setattr(
        engine, "submit", lambda name, works, client: clients.append(client) or submit(name, works, client)
    )
    with TestClient(make_app(engine, keys={"alice": "a1", "bob": "b1"}), base_url=HERE) as client:
        for key in ("a1", "b1"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post("/v1/score", json={"text": "the cat"}, headers=headers).status_code == 200
    assert clients == ["alice", "bob"]


def test_a_client_has_a_limit_of_its_own(models):
    engine = Engine({"adlm": models["adlm"]}, ServerLimits(running=4, waiting=4, per_client=2))
    engine.start()
    go = threading.Event()
    jobs = engine.submit("adlm", [lambda model, _: go.wait(60)] * 2, "greedy")
    with pytest.raises(RequestRefused) as caught:
        engine.submit("adlm", [lambda model, _: True], "greedy")
    assert (caught.value.status, caught.value.code) == (429, "client_limit")
    assert "Retry-After" in caught.value.headers
    (other,) = engine.submit("adlm", [lambda model, _: True], "modest")
    assert other.future.result(60)
    go.set()
    assert all(job.future.result(60) for job in jobs)
    (again,) = engine.submit("adlm", [lambda model, _: True], "greedy")
    assert again.future.result(60)
    engine.close()


def test_the_limit_of_steps_holds_for_a_models_own_sampler(models):
    model = models["mdlm"]
    config = dataclasses.replace(model.config, sampling={"sampler": "ancestral", "steps": 500})
    engine = Engine({"mdlm": TextModel(model.network, config, model.tokenizer)}, ServerLimits(steps=3))
    with TestClient(make_app(engine), base_url=HERE) as client:
        answer = client.post("/v1/generate", json={"prompt": "the cat", "predictions": 0})
        assert '"steps": 3' in answer.text.splitlines()[0]
        assert '"type": "done"' in answer.text
        listed = {each["name"]: each["options"] for each in client.get("/v1/samplers").json()}
        assert listed["ancestral"]["steps"]["default"] == 3


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
