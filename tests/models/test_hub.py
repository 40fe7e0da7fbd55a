"""Models on the Hub, tried on a small one in this process: what is pushed comes back, online and from the cache.

The Hub's library reads its address and whether it is offline when it is imported, so fresh processes talk to it.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import adlm
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError, ModelError
from adlm.models.card import Facts
from adlm.models.hub import push_folder
from adlm.models.io import FILES, ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel
from adlm.types import Estimate
from tests.errors import raises

TRANSFORMERS = {"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b"0" * 100}


class FakeHub(ThreadingHTTPServer):
    """Repositories in memory: every commit is a name and all files."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.fetched: list[str] = []

    def commit(self, name: str, changes: dict[str, bytes]) -> str:
        commits = self.repositories.setdefault(name, [])
        files = {**(commits[-1][1] if commits else {}), **changes}
        oid = hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits.append((oid, files))
        return oid


class Answers(BaseHTTPRequestHandler):
    """As much of the Hub's interface as creating, uploading, listing and downloading take."""

    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        match self.path.partition("?")[0].split("/")[1:]:
            case ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked['organization'] or 'me'}/{asked['name']}"
                known = name in self.server.repositories
                self.server.repositories.setdefault(name, [])
                self._json({"url": f"{self.server.address}/{name}"}, 409 if known else 200)
            case ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            case ["api", "models", owner, name, "preupload", _]:
                files = [file["path"] for file in json.loads(body)["files"]]
                modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
                self._json({"files": modes})
            case ["api", "models", owner, name, "commit", _]:
                values = [line["value"] for line in map(json.loads, body.splitlines()) if line["key"] == "file"]
                oid = self.server.commit(f"{owner}/{name}", {v["path"]: base64.b64decode(v["content"]) for v in values})
                url = f"{self.server.address}/{owner}/{name}/commit/{oid}"
                self._json({"success": True, "commitOid": oid, "commitUrl": url})
            case _:
                self._error(404, "unknown")

    def do_GET(self) -> None:
        match self.path.partition("?")[0].split("/")[1:]:
            case ["api", "models", owner, name, "tree", revision, *_]:
                if found := self._commit(owner, name, revision):
                    _, files = found
                    entries = [(path, len(content), _etag(content)) for path, content in files.items()]
                    self._json([{"type": "file", "path": p, "size": size, "oid": oid} for p, size, oid in entries])
            case ["api", "models", owner, name, *rest]:
                if found := self._commit(owner, name, rest[-1] if rest else "main"):
                    oid, files = found
                    siblings = [{"rfilename": path} for path in files]
                    about = {"id": f"{owner}/{name}", "private": False, "tags": [], "downloads": 0, "likes": 0}
                    self._json({**about, "sha": oid, "siblings": siblings})
            case [owner, name, "resolve", revision, path]:
                if found := self._commit(owner, name, revision):
                    oid, files = found
                    if path not in files:
                        return self._error(404, "EntryNotFound")
                    if self.command == "GET":
                        self.server.fetched.append(path)
                    self._send(files[path], {"ETag": f'"{_etag(files[path])}"', "X-Repo-Commit": oid})
            case _:
                self._error(404, "unknown")
        return None

    do_HEAD = do_GET

    def _commit(self, owner: str, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if name == "gated":
            return self._error(403, "GatedRepo")
        commits = self.server.repositories.get(f"{owner}/{name}")
        if commits is None:
            return self._error(404, "RepoNotFound")
        output_mask = commits[-1:] if revision == "main" else [commit for commit in commits if commit[0] == revision]
        return output_mask[0] if output_mask else self._error(404, "RevisionNotFound")

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), {"Content-Type": "application/json"}, status)

    def _error(self, status: int, code: str) -> None:
        self._send(b"{}", {"X-Error-Code": code, "X-Error-Message": code}, status)

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def model() -> TextModel:
    tokenizer = characters("ab")
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    config = ModelConfig(OneStageConfig(StackConfig(width=8, heads=2, layers=1)), vocabulary, Wrapped(8))
    return TextModel(config.build().eval(), config, tokenizer)


BEGIN = """
import json, sys
from pathlib import Path
import adlm
from adlm.cli import main
from adlm.models.hub import push_folder
from adlm.text_model import TextModel

folder = sys.argv[1]
found = {}

def attempt(name, call):
    try:
        found[name] = call()
    except adlm.AdlmError as error:
        found[name] = [type(error).__name__, error.subject, str(error)]

def digest(model):
    return [float(p.double().abs().sum()) for p in model.network.parameters()]
"""

ONLINE = """
model = adlm.load(folder)
found["saved"] = digest(model)
found["first"] = model.push_to_hub("me/model", model_card_kwargs={"data": "Stories."})
found["loaded"] = digest(adlm.load("me/model"))
found["pretrained"] = digest(TextModel.from_pretrained("me/model", revision=found["first"].rsplit("/")[-1]))
found["bare"] = model.push_to_hub("model")
found["whole"] = push_folder(Path(folder), "me/whole")
found["pushed"] = main(["push", folder, "me/edited-too"])
found["edited"] = model.push_to_hub("me/edited", ignore_patterns="*.bin")
attempt("absent", lambda: adlm.load("me/absent"))
attempt("revision", lambda: adlm.load("me/model", revision="v9"))
attempt("gated", lambda: adlm.load("me/gated"))
attempt("transformers", lambda: adlm.load("them/gpt2"))
attempt("empty", lambda: adlm.load("them/empty"))
attempt("partial", lambda: adlm.load("them/partial"))
"""

OFFLINE = """
found["loaded"] = digest(adlm.load("me/model"))
attempt("absent", lambda: adlm.load("me/never-seen"))
attempt("partial", lambda: adlm.load("them/partial"))
attempt("push", lambda: adlm.load("me/model").push_to_hub("me/model"))
"""


def run(program: str, folder: Path, home: Path, **environment: str) -> dict[str, Any]:
    """What a fresh process finds, with a cache of its own in `home`."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program + "\nprint(json.dumps(found))", str(folder)],
        env={**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1",
             "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def world(hub: FakeHub, model: TextModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Everything that is done online, once; and the cache it leaves."""
    folder, home = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("home")
    figures = {"nats per token, held out": Estimate(3.25, 0.04, 8)}
    model.save(folder, facts=Facts(data="Stories of crabs.", figures=figures, use="To try things."))
    (folder / "notes.txt").write_text("mine")
    hub.commit("me/edited-too", {"README.md": b"# Mine\n"})
    hub.commit("me/edited", {"README.md": b"# Mine\n", "pytorch_model.bin": b"a pickle", "modeling.py": b"raise"})
    hub.commit("them/gpt2", {**TRANSFORMERS, "README.md": b"# GPT-2\n"})
    hub.commit("them/empty", {"README.md": b"# Nothing\n"})
    hub.commit("them/partial", {"config.json": (folder / "config.json").read_bytes()})
    return run(ONLINE, folder, home, HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="0"), home


def test_what_is_pushed_comes_back(world: tuple[dict[str, Any], Path], hub: FakeHub) -> None:
    found, _ = world
    assert found["loaded"] == found["pretrained"] == found["saved"]
    assert found["first"].startswith(f"{hub.address}/me/model/commit/")
    (_, files), *_ = hub.repositories["me/model"]
    assert set(files) == {*FILES, "README.md", "tokenizer_config.json", "generation_config.json"}
    assert b"Stories." in files["README.md"]


def test_a_bare_name_belongs_to_the_account(world: tuple[dict[str, Any], Path], hub: FakeHub) -> None:
    found, _ = world
    assert found["bare"].startswith(f"{hub.address}/me/model/commit/")


def test_a_card_edited_on_the_hub_is_kept_and_an_untouched_one_renewed(world: Any, hub: FakeHub) -> None:
    _, edited = hub.repositories["me/edited"][-1]
    assert edited["README.md"] == b"# Mine\n"
    assert set(FILES) < set(edited)
    _, renewed = hub.repositories["me/model"][-1]
    assert b"Stories." not in renewed["README.md"]
    assert renewed["README.md"].startswith(b"---\n")


def test_a_folder_is_pushed_as_it_is_with_what_its_card_states(
    world: tuple[dict[str, Any], Path], hub: FakeHub
) -> None:
    found, _ = world
    assert found["whole"].startswith(f"{hub.address}/me/whole/commit/")
    _, files = hub.repositories["me/whole"][-1]
    assert set(files) == {*FILES, "README.md", "tokenizer_config.json", "generation_config.json"}
    card = files["README.md"].decode()
    for part in (
        "## Training data\n\nStories of crabs.",
        "| nats per token, held out | 3.25 ± 0.04 | 8 |",
        "## Intended use\n\nTo try things.",
        "## How to sample",
        "adlm.load(",
    ):
        assert part in card
    assert found["pushed"] == 0
    _, kept = hub.repositories["me/edited-too"][-1]
    assert kept["README.md"] == b"# Mine\n"
    assert kept["model.safetensors"] == files["model.safetensors"]


def test_a_folder_that_is_no_model_is_not_pushed(tmp_path: Path, model: TextModel) -> None:
    with raises(ModelError, subject="config.json"):
        push_folder(tmp_path, "me/model")
    model.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with raises(ModelError, subject="model.safetensors"):
        push_folder(tmp_path, "me/model")


def test_nothing_but_what_is_needed_is_fetched(world: Any, hub: FakeHub) -> None:
    # The cards of three repositories that were pushed to, to see whether they were edited; no code, no pickles, and
    # no weights of a model that is not ours.
    assert set(hub.fetched) == {*FILES, "README.md"}
    assert hub.fetched.count("model.safetensors") <= 2


@pytest.mark.parametrize(
    ("name", "subject", "command"),
    [
        ("absent", "me/absent", "hf auth login"),
        ("revision", "revision", ""),
        ("gated", "me/gated", "hf auth login"),
        ("transformers", "model_type gpt2", "adlm convert"),
        ("empty", "config.json", "adlm convert"),
        ("partial", "tokenizer.json", "adlm train"),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    world: tuple[dict[str, Any], Path], name: str, subject: str, command: str
) -> None:
    *told, fix = world[0][name]
    assert told == ["ModelError", subject]
    assert command in fix


def test_without_a_network_the_cache_is_used_and_what_is_not_there_is_named(
    world: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    online, home = world
    found = run(OFFLINE, tmp_path, home, HF_HUB_OFFLINE="1")
    assert found["loaded"] == online["loaded"]
    assert found["absent"][:2] == ["ModelError", "me/never-seen"]
    assert "HF_HUB_OFFLINE" in found["absent"][2]
    assert found["partial"][:2] == ["ModelError", "tokenizer.json"]
    assert found["push"][:2] == ["ModelError", "me/model"]


@pytest.mark.slow  # the Hub's own client is patient
def test_a_hub_that_does_not_answer_is_named_and_no_hindrance_to_what_is_in_the_cache(
    world: tuple[dict[str, Any], Path], model: TextModel, tmp_path: Path
) -> None:
    online, home = world
    program = """
found["loaded"] = digest(adlm.load("me/model"))
attempt("absent", lambda: adlm.load("me/never-seen"))
attempt("push", lambda: push_folder(Path(folder), "me/model"))
"""
    model.save(tmp_path)
    found = run(program, tmp_path, home, HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9")
    assert found["loaded"] == online["loaded"]
    assert found["absent"][:2] == ["ModelError", "me/never-seen"]
    assert found["push"][:2] == ["ModelError", "me/model"]


@pytest.mark.parametrize(
    "name", ["nowhere", "./nowhere", "a/b/c", "~/model", "", "C:\\model", "owner/../name", "a b/c"]
)
def test_what_is_neither_folder_nor_name_is_refused_at_once(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(ModelError, subject=name or "config.json"):  # no name at all is this folder
        adlm.load(name)
    with raises(ModelError, subject="owner/name"):
        adlm.load(Path("owner/name"))


def test_a_folder_is_taken_before_a_name_and_has_no_revisions(
    model: TextModel, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    model.save("owner/name")
    assert adlm.load("owner/name").config == model.config
    with raises(ModelError, subject="revision"):
        adlm.load("owner/name", revision="main")
    with raises(ModelError, subject="owner/name/config.json"):
        adlm.load("owner/name/config.json")


def test_the_mixin_s_way_of_saving_is_ours(model: TextModel, tmp_path: Path) -> None:
    assert model.save_pretrained(tmp_path, model_card_kwargs={"licence": "mit"}) is None
    assert "license: mit" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert TextModel.from_pretrained(tmp_path).config == model.config
    with raises(ConfigError, subject="config"):
        model.save_pretrained(tmp_path, config={"width": 3})
