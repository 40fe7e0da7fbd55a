"""The routes, as clients see them."""

import asyncio
import json
import threading
import time

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.serve.limits import ServerLimits
from adlm.serve.requests import GenerateRequest
from tests.serve.conftest import HERE, tiny


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def error_of(response) -> dict:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def replayed(found: list[dict]) -> list[int | None]:
    canvas = [token for token, _, _ in found[0]["tokens"]]
    for event in found[1:-1]:
        for position, token, _ in event["changes"]:
            canvas[position] = token
    return canvas


@pytest.mark.parametrize("kind", ["adlm", "mdlm", "padded", "ar"])
def test_events_replay_to_the_text_that_generate_writes(client, models, kind):
    steps = None if kind == "ar" else 12
    ask = {"prompt": "the cat", "seed": 3, "model": kind, "max_tokens": 9, "steps": steps}
    found = events(client.post("/v1/generate", json=ask).text)
    model = models[kind]
    assert found[-1]["text"] == model.generate("the cat", seed=3, max_new_tokens=9, steps=steps)[0]
    assert found[0]["anchored"] == (kind == "adlm")
    assert [state for *_, state in found[0]["tokens"]].count("blank") == 9
    row = replayed(found)
    end = model.tokenizer.roles.eos_id
    ids = row[: row.index(end, 1)] if end in row[1:] else row
    assert model.tokenizer.decode(ids) == found[-1]["text"]


def test_both_stages_tell_what_they_expect_at_blanks(client):
    found = events(client.post("/v1/generate", json={"text": "the [MASK:4] sat", "predictions": 2, "steps": 6}).text)
    said = [each for event in found[1:-1] for each in event["predictions"]]
    assert {position for position, *_ in said} == {1, 2, 3, 4}
    assert all(len(anchor) == len(final) == 2 for _, anchor, final in said)
    assert all(0 <= p <= 1 for _, anchor, final in said for _, p in anchor + final)
    written = {position for event in found[1:-1] for position, *_ in event["changes"]}
    assert all(set(event["anchors"]) <= {0, 5, 6} | written for event in found[1:-1])
    none = events(client.post("/v1/generate", json={"text": "the [MASK:4] sat", "predictions": 0, "steps": 6}).text)
    assert not any(event["predictions"] for event in none[1:-1])
    assert none[-1]["text"] == found[-1]["text"]


def test_a_canvas_is_gone_on_from_and_what_was_given_stays(client, models):
    ids = models["mdlm"].tokenizer.encode("the dog sat").tolist()
    found = events(client.post("/v1/generate", json={"canvas": [*ids, None, None, ids[0]], "model": "mdlm"}).text)
    row = replayed(found)
    assert row[: len(ids)] == ids
    assert row[-1] == ids[0]
    assert None not in row


def test_texts_in_a_canvas_are_found_their_tokens_and_counted(client, models):
    tokenizer = models["mdlm"].tokenizer
    ids, more = (tokenizer.encode(text).tolist() for text in ("the dog", "cat sat"))
    ask = {"canvas": [*ids, "cat sat", None, "the"], "model": "mdlm"}
    found = events(client.post("/v1/generate", json=ask).text)
    assert found[0]["typed"] == [len(more), 1]
    row = replayed(found)
    assert row[: len(ids) + len(more)] == [*ids, *more]
    assert row[-1] == tokenizer.encode("the")[0]


def test_anchors_that_are_told_are_those_that_the_anchor_stage_foresaw(client):
    marked = 0
    for seed in range(4):
        found = events(client.post("/v1/generate", json={"text": "the [MASK:8] sat", "seed": seed}).text)
        foreseen, texts = {}, {}
        for event in found[1:-1]:
            foreseen |= {position: anchor[0][0] for position, anchor, _ in event["predictions"]}
            texts |= {position: text for position, _, text in event["changes"]}
            assert all(foreseen[position] == texts[position] for position in event["anchors"])
        marked += len(found[-2]["anchors"])
    assert 0 < marked < 32


def test_the_text_is_as_long_as_up_to_its_end(client, models):
    end = models["mdlm"].tokenizer.roles.eos_id
    ids = models["mdlm"].tokenizer.encode("the dog sat").tolist()

    def length(canvas):
        return events(client.post("/v1/generate", json={"canvas": canvas, "model": "mdlm"}).text)[-1]["length"]

    assert length([*ids, end, end, end]) == len(ids) + 1
    assert length([*ids, end, *ids]) == 2 * len(ids) + 1  # something is said behind it
    assert length(ids) == len(ids)


def test_a_wrong_canvas_is_refused_at_its_first_wrong_place(client):
    response = client.post("/v1/generate", json={"canvas": [""] * 4000})
    assert response.status_code == 400
    assert error_of(response)["param"].startswith("canvas.0")
    with pytest.raises(ValidationError) as caught:  # explaining all of them would hold everybody up
        GenerateRequest(canvas=[""] * 4000)
    assert caught.value.error_count() < 10


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"stop": list("abcde")}, "stop: 5 texts; 4 are taken"),
        ({"constraint": {"choice": []}}, "constraint.choice: must not be empty"),
        ({"constraint": {}}, "constraint: give exactly one of choice, digits and pattern"),
        ({"stop": [1]}, "stop: give a text, or a list of up to 4 texts"),
        ({"prompt": [1, 2]}, "prompt: give a text, or a list of texts; token ids are not taken"),
    ],
)
def test_what_is_wrong_with_texts_is_said_in_words(client, body, said):
    assert error_of(client.post("/v1/completions", json=body))["message"] == said


def test_a_form_instead_of_json_is_told_so(client):
    response = client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    assert response.status_code == 400
    assert "Content-Type: application/json" in error_of(response)["message"]


def test_models_say_how_they_write_by_themselves(client, models):
    found = {each["id"]: each["sampling"] for each in client.get("/v1/models").json()["data"]}
    assert found == {name: model.config.sampling for name, model in models.items()}


def test_infill_and_score_are_those_of_the_model(client, models):
    filled = client.post("/v1/infill", json={"text": "the [MASK:2] sat", "n": 2, "seed": 5, "steps": 8}).json()
    assert filled == {"texts": models["adlm"].infill("the [MASK:2] sat", n=2, seed=5, steps=8)}
    scored = client.post("/v1/score", json={"text": "the cat sat"}).json()
    score = models["adlm"].score("the cat sat")
    assert scored["nats"] == pytest.approx(score.nats.mean, rel=1e-4)
    assert scored["tokens"] == list(score.tokens)
    assert sum(scored["surprise"]) == pytest.approx(scored["nats"], rel=1e-4)


def test_completions_have_all_choices_in_order_and_count_tokens(client, models):
    ask = {"prompt": ["the cat", "a dog"], "n": 2, "seed": 1, "max_tokens": 6, "echo": True, "steps": 8}
    found = client.post("/v1/completions", json=ask).json()
    expected = models["adlm"].generate(["the cat", "a dog"], n=2, seed=1, max_new_tokens=6, steps=8)
    assert [choice["text"] for choice in found["choices"]] == expected
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]


@pytest.mark.parametrize("sampler", [None, "remdm-cap", "first-hitting"])
def test_a_stream_brings_the_text_of_the_whole_answer(client, sampler):
    steps = None if sampler == "first-hitting" else 12
    ask = {"prompt": "the", "seed": 2, "n": 2, "sampler": sampler, "max_tokens": 12, "steps": steps}
    whole = client.post("/v1/completions", json=ask).json()["choices"]
    streamed = ["", ""]
    for event in events(client.post("/v1/completions", json={**ask, "stream": True}).text):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == [choice["text"] for choice in whole]


def test_texts_end_before_the_words_to_stop_at(client):
    ask = {"prompt": "the", "seed": 2, "max_tokens": 12, "model": "ar"}
    text = client.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    word = text[4:6]
    cut = client.post("/v1/completions", json={**ask, "stop": word}).json()["choices"][0]
    assert cut["text"] == text[: text.index(word)]
    assert cut["finish_reason"] == "stop"
    pieces = events(client.post("/v1/completions", json={**ask, "stop": [word], "stream": True}).text)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == cut["text"]


def test_logprobs_belong_to_the_tokens_that_were_written(client):
    ask = {"prompt": "the", "seed": 2, "max_tokens": 8, "logprobs": 3, "temperature": 0, "sampler": "confidence"}
    (choice,) = client.post("/v1/completions", json=ask).json()["choices"]
    said = choice["logprobs"]
    assert len(said["tokens"]) == len(said["token_logprobs"]) == len(said["top_logprobs"]) == len(said["text_offset"])
    # At temperature 0 the likeliest token is taken, so each is the first of its own list.
    for value, top in zip(said["token_logprobs"], said["top_logprobs"], strict=True):
        assert value == pytest.approx(max(top.values()), abs=1e-5)


def test_a_stream_holds_back_a_word_to_stop_at_from_its_first_letter(client):
    ask = {"prompt": "the", "seed": 2, "max_tokens": 12, "model": "ar"}
    text = client.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    for length in range(1, 9):
        found = events(client.post("/v1/completions", json={**ask, "stop": text[:length], "stream": True}).text)
        assert "".join(each["choices"][0]["text"] for each in found) == ""


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_prompt_twice_without_a_seed_is_two_texts(client, stream):
    ask = {"prompt": ["the"] * 3, "max_tokens": 16, "stream": stream}
    answer = client.post("/v1/completions", json=ask)
    texts: dict[int, str] = {}
    for event in events(answer.text) if stream else [answer.json()]:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert len(set(texts.values())) == 3


def test_logprobs_of_a_sampler_that_writes_later_than_it_draws(client):
    ask = {"prompt": "the", "seed": 2, "max_tokens": 8, "logprobs": 2, "sampler": "analytic", "model": "mdlm"}
    (choice,) = client.post("/v1/completions", json=ask).json()["choices"]
    said = choice["logprobs"]
    assert len(said["tokens"]) == len(said["token_logprobs"]) == len(said["top_logprobs"])
    assert all(value < 0 for value in said["token_logprobs"])


def test_holes_of_any_length_by_the_thousand_are_refused_at_once(client):
    response = client.post("/v1/infill", json={"text": "[MASK:1-9999]" * 1100})
    assert response.status_code == 400
    assert "combinations" in error_of(response)["message"] or "tokens" in error_of(response)["message"]


def test_holes_count_against_the_limit_of_tokens(models):
    with TestClient(make_app(Engine(models, ServerLimits(tokens=8))), base_url=HERE) as client:
        assert client.post("/v1/infill", json={"text": "[MASK:8]"}).status_code == 200
        response = client.post("/v1/infill", json={"text": "[MASK:9]"})
    assert response.status_code == 400
    assert error_of(response)["code"] == "limit_exceeded"


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("completions", {"best_of": 2}, "best_of"),
        ("completions", {"logit_bias": {"5": 1}}, "logit_bias"),
        ("completions", {"presence_penalty": 0.5}, "presence_penalty"),
        ("completions", {"tools": []}, "tools"),
        ("completions", {"n": 5}, "n"),
        ("completions", {"prompt": ["a"] * 3, "n": 2}, "n"),
        ("completions", {"max_tokens": 65}, "max_tokens"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"steps": 65}, "steps"),
        ("completions", {"temperature": -1}, "temperature"),
        ("completions", {"logprobs": 2, "echo": True}, "logprobs"),
        ("completions", {"constraint": {"digits": True}, "suffix": "a"}, "constraint"),
        ("completions", {"prompt": [1, 2, 3]}, "prompt"),
        ("completions", {"prompt": "the " * 200, "max_tokens": 1, "model": "ar"}, "prompt"),
        ("generate", {"prompt": "the " * 200, "max_tokens": 1, "model": "ar"}, "prompt"),
        ("generate", {"predictions": 6}, "predictions"),
        ("generate", {"text": "a [MASK:2]", "max_tokens": 1}, "max_tokens"),
        ("generate", {"canvas": [1, None], "max_tokens": 1}, "max_tokens"),
        ("completions", {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_ob"),
        ("generate", {"canvas": [1], "prompt": "a"}, "canvas"),
        ("infill", {"text": "[MASK]", "n": 5}, "n"),
        ("score", {}, "text"),
    ],
)
def test_what_is_not_supported_or_allowed_is_refused_by_name(client, route, body, param):
    response = client.post(f"/v1/{route}", json=body)
    assert response.status_code == 400
    assert error_of(response)["param"].startswith(param)


def test_neutral_values_of_unsupported_parameters_are_taken(client):
    ask = {"prompt": "a", "max_tokens": 2, "best_of": 1, "logit_bias": {}, "presence_penalty": 0.0,
           "frequency_penalty": 0}  # fmt: skip
    assert client.post("/v1/completions", json=ask).status_code == 200


def test_what_a_sampler_has_no_use_for_is_refused_with_the_reason(client):
    response = client.post("/v1/generate", json={"sampler": "first-hitting", "steps": 5})
    assert response.status_code == 400
    assert "steps" in error_of(response)["message"]


def test_an_unknown_model_is_404_and_looked_for_nowhere(client, tmp_path, monkeypatch):
    tiny().save(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    for name in ("other", "./other", str(tmp_path / "other"), "../../etc/passwd", "box"):
        response = client.post("/v1/score", json={"text": "a", "model": name})
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found"


def test_samplers_are_those_that_can_write_with_the_model(client):
    names = {kind: [s["name"] for s in client.get("/v1/samplers", params={"model": kind}).json()]
             for kind in ("adlm", "mdlm", "ar")}  # fmt: skip
    assert names["ar"] == ["left-to-right"]
    assert set(names["adlm"]) - set(names["mdlm"]) == {"anchor-first", "agreeing"}
    for kind, all_of_them in names.items():
        for name in all_of_them:
            steps = None if name in ("first-hitting", "entropy-bounded", "threshold", "left-to-right") else 4
            ask = {"model": kind, "sampler": name, "max_tokens": 3, "predictions": 1, "steps": steps}
            assert events(client.post("/v1/generate", json=ask).text)[-1]["type"] == "done", name


def test_metrics_count_answers_and_passes(client):
    client.post("/v1/score", json={"text": "the cat"})
    client.post("/v1/score", json={})
    text = client.get("/metrics").text
    assert 'adlm_requests_total{route="/v1/score",status="200"} 1' in text
    assert 'adlm_requests_total{route="/v1/score",status="400"} 1' in text
    passes = next(line for line in text.splitlines() if line.startswith('adlm_network_passes_total{model="adlm"}'))
    assert int(passes.split()[-1]) > 0


def test_a_full_queue_answers_429_with_a_time_to_come_back(models):
    from fastapi.testclient import TestClient

    engine, go = Engine({"adlm": models["adlm"]}, ServerLimits(running=1, waiting=0)), threading.Event()
    with TestClient(make_app(engine), base_url=HERE) as client:
        (job,) = engine.submit("adlm", [lambda model, _: go.wait(10)])
        response = client.post("/v1/score", json={"text": "a"})
        go.set()
        job.future.result(10)
    assert response.status_code == 429
    assert error_of(response)["type"] == "rate_limit_error"
    assert int(response.headers["Retry-After"]) >= 1


def test_a_draining_server_is_not_ready_and_begins_nothing(models):
    from fastapi.testclient import TestClient

    engine = Engine({"adlm": models["adlm"]})
    with TestClient(make_app(engine), base_url=HERE) as client:
        assert client.get("/ready").status_code == 200
        engine.draining = True
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        assert client.post("/v1/score", json={"text": "a"}).status_code == 503


@pytest.mark.parametrize("body", [{"prompt": "the"}, {"prompt": "the", "stream": True}])
def test_work_stops_when_the_client_goes_away(models, body):
    """Without a server between: the application hears of the disconnection as from uvicorn."""
    engine = Engine({"adlm": models["adlm"]})
    engine.start()
    held = threading.Event()
    answer = engine.batchers["adlm"]._answer
    engine.batchers["adlm"]._answer = lambda calls: (time.sleep(0.05), answer(calls))  # slow enough to leave early
    app = make_app(engine)
    messages = [{"type": "http.request", "body": json.dumps({**body, "sampler": "first-hitting"}).encode()}]

    async def receive() -> dict:
        if messages:
            return messages.pop()
        while engine.batchers["adlm"].passes < 2:
            await asyncio.sleep(0.01)
        held.set()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
             "query_string": b"", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
             "scheme": "http", "server": ("localhost", 80), "client": ("localhost", 1), "root_path": "",
             "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.3"}}  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert held.is_set()
    while engine.running:
        time.sleep(0.01)
    passes = engine.batchers["adlm"].passes
    engine.close()
    assert passes < 20  # of 32
    assert engine.cancelled == 1
