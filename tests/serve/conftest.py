"""Tiny fresh models, a server in this process, and the studio in a browser."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import Tokenizer, train_bpe
from adlm.models.hand_over import Hidden
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import Attention, StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.serve.limits import ServerLimits
from adlm.text_model import TextModel
from tests.serve.fake import Fake, serve

TEXTS = ["the cat sat on the mat. the dog sat on the log. a bird saw the cat and the dog, and flew away."] * 4
HERE = "http://127.0.0.1"
SIZES = (1, 4, 0)


def tiny(kind: str = "adlm", *, length: int = 32, tokenizer: Tokenizer | None = None) -> TextModel:
    """A model of width 32 with random weights: adlm, mdlm, padded, ar, blocks or anchored-blocks."""
    tokenizer = tokenizer or train_bpe(TEXTS, 300)
    attention: Attention = "causal" if kind == "ar" else "block" if kind.endswith("blocks") else "full"
    stack = StackConfig(width=32, heads=2, layers=1, attention=attention)
    networks = {
        "blocks": lambda: OneStageConfig(stack, block_size=4, shift=True),
        "anchored-blocks": lambda: TwoStageConfig(stack, 1, Hidden(), block_size=4, shift=True),
        "adlm": lambda: TwoStageConfig(stack, 1),
    }
    network = networks.get(kind, lambda: OneStageConfig(stack))()
    rows = Padded(length) if kind == "padded" else Wrapped(length)
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), rows)
    torch.manual_seed(0)
    built = config.build().eval()
    for weight in built.parameters():  # so that what stands elsewhere matters, and no token is certain
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.25)
    return TextModel(built, config, tokenizer)


def several_readings(kind: str = "blocks") -> TextModel:
    """A tiny model that was trained (or so it says) to be read from left to right, in blocks and whole."""
    model = tiny(kind)
    run = {"objective": {"corruption": {"sizes": list(SIZES)}}}
    return TextModel(model.network, dataclasses.replace(model.config, run=run), model.tokenizer)


@pytest.fixture(scope="session")
def models() -> dict[str, TextModel]:
    return {kind: tiny(kind) for kind in ("adlm", "mdlm", "padded", "ar")}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    model = tiny("adlm", length=64)
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    model.save(path)
    return path


@pytest.fixture
def engine(models: dict[str, TextModel]) -> Iterator[Engine]:
    """Started, and closed at the end."""
    engine = Engine(models)
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def client(models: dict[str, TextModel]) -> Iterator[TestClient]:
    limits = ServerLimits(running=8, waiting=8, tokens=64, steps=64, n=4, body=1 << 14, seconds=20, predictions=5)
    with TestClient(make_app(Engine(models, limits)), base_url=HERE) as client:
        yield client


@pytest.fixture
def opened(context_with):
    """Opens the studio; at the end, nothing was asked of anyone but the server and nothing in the page complained."""
    servers, pages, wrong = [], [], []

    def watch(page, url):
        page.on("request", lambda r: r.url.startswith((url, "blob:")) or wrong.append(f"request: {r.url}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: "status of" in said.text or wrong.append(f"console: {said.text}"))

    def opens(fake=None, *, width=1000, height=800, **options):
        fake = fake or Fake()
        servers.append(serve(fake))
        page = context_with(**{"reduced_motion": "reduce", **options}).new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.set_default_timeout(10_000)
        watch(page, fake.url)
        page.goto(fake.url)
        page.locator(".lane").wait_for()
        return page, fake

    def aside(file):
        page = context_with(reduced_motion="reduce", offline=True).new_page()
        pages.append(page)
        watch(page, file.as_uri())
        page.goto(file.as_uri())
        return page

    opens.aside = aside
    yield opens
    for page in pages:
        page.close()
    for server in servers:
        server.shutdown()
        server.server_close()
    assert not wrong
