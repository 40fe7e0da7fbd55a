"""The studio page in a browser, against the real server with the model in the box: what the fake cannot promise."""

import time
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import SIZES, several_readings
from tests.serve.process import server

HOLES = "Once upon a time there was a little [MASK:2] who [MASK:3] home."


@pytest.fixture(scope="module")
def address():
    with server(Path("box"), "--studio") as (_, found):
        yield found


@pytest.fixture
def page(context_with, address):
    """The studio; at the end, nothing was asked of anyone else and nothing complained."""
    yield from opened(context_with, address)


def opened(context_with, address):
    wrong: list[str] = []
    page = context_with(reduced_motion="reduce").new_page()
    page.on("request", lambda r: r.url.startswith((address, "blob:")) or wrong.append(f"request: {r.url}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda said: wrong.append(f"console: {said.text}"))
    page.set_default_timeout(60_000)
    page.goto(address)
    page.locator(".lane").wait_for()
    yield page
    page.close()
    assert not wrong


def shown(page, player):
    return page.locator(player).locator(".token:not(.masked) .shown").all_text_contents()


def test_two_samplers_are_compared_and_the_saved_page_shows_what_they_wrote(page, context_with, tmp_path):
    page.locator("#compare").select_option("two")
    for lane in range(2):
        page.locator("[name=sampler]").nth(lane).select_option(("confidence", "ancestral")[lane])
        page.locator("[name=steps]").nth(lane).fill("4")
    page.locator("#prompt").fill(HOLES)
    page.locator("#run").click()
    for lane in range(2):
        page.locator(".status").nth(lane).filter(has_text="Done").wait_for()
    texts = [shown(page, f".lane >> nth={lane}") for lane in range(2)]
    for text in texts:
        assert text[:3] == ["Once", "upon", "a"]
        assert text[-2:] == ["home", "."]
    assert page.locator(".token.masked").count() == 0
    with page.expect_download() as download:
        page.locator("#share").click()
    file = tmp_path / "run.html"
    download.value.save_as(file)
    saved = context_with(reduced_motion="reduce", offline=True).new_page()
    saved.goto(file.as_uri())
    assert saved.locator("h2").all_text_contents() == ["confidence, steps 4, seed 0", "ancestral, steps 4, seed 0"]
    assert [shown(saved, f".player-section >> nth={i}") for i in range(2)] == texts
    saved.close()


def test_one_model_writes_in_three_ways_as_it_does_in_python(context_with, tmp_path):
    model = several_readings("anchored-blocks")
    model.save(tmp_path / "tiny")
    with server(tmp_path / "tiny", "--studio") as (_, address):
        for page in opened(context_with, address):
            page.locator("#compare").select_option("readings")
            page.locator("#prompt").fill("the cat")
            page.locator("[name=max_tokens]").fill("12")
            page.locator("#run").click()
            for lane in range(3):
                page.locator(".status").nth(lane).filter(has_text="Done").wait_for()
            speeds = page.locator(".speed").all_text_contents()
            counts = page.locator(".count").all_text_contents()
            with page.expect_download() as download:
                page.locator(".as-text").nth(1).click()
            download.value.save_as(tmp_path / "text.txt")
    texts = {size: model.generate("the cat", max_new_tokens=12, block_size=size)[0] for size in SIZES}
    assert (tmp_path / "text.txt").read_bytes().decode() == f"{texts[4]}\n"
    assert all("tokens per second" in speed for speed in speeds)
    assert ["block" in count for count in counts] == [False, True, False]


def test_stopping_a_run_stops_the_work(page, address):
    page.locator("[name=sampler]").select_option("remdm-cap")
    page.locator("[name=steps]").fill("4000")
    page.locator("#prompt").fill("Once upon a time")
    page.locator("#run").click()
    page.locator(".token.written").first.wait_for()
    page.locator("#run").click()
    page.locator(".status").filter(has_text="Stopped after").wait_for()
    deadline = time.monotonic() + 30
    while "adlm_running 0" not in httpx.get(f"{address}/metrics", timeout=30).text:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert page.locator("#run").inner_text() == "Run"
    assert not page.locator(".go-on").is_disabled()
