"""The studio page in a browser: text to take along, what a reload keeps, what is said of a prompt, and the keyboard."""

import json

import pytest

from tests.serve.fake import WORDS, Fake
from tests.serve.studio_page import HOLES, choose, done, run, text_of

TEXT = "A owl sings softly to in the wood."


def saved(page, button, tmp_path):
    with page.expect_download() as download:
        page.locator(button).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    return file


def test_the_text_is_copied_as_it_is_written(opened):
    page, _ = opened(permissions=("clipboard-read", "clipboard-write"))
    run(page)
    page.locator(".copy-text").click()
    page.locator(".copy-text").filter(has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == TEXT
    page.locator(".player .text").evaluate("text => getSelection().selectAllChildren(text)")
    page.keyboard.press("Control+C")
    assert page.evaluate("navigator.clipboard.readText()") == TEXT
    page.locator(".slider").fill("2")
    page.locator(".copy-text").click()
    assert page.evaluate("navigator.clipboard.readText()") == "A [MASK:2] softly to in the wood."


def test_the_text_is_saved_as_text_and_as_json(opened, tmp_path):
    page, fake = opened()
    run(page)
    assert saved(page, ".as-text", tmp_path).read_text(encoding="utf-8") == f"{TEXT}\n"
    found = json.loads(saved(page, ".as-json", tmp_path).read_text(encoding="utf-8"))
    assert found["text"] == TEXT
    assert found["request"] == fake.requests[0]
    assert [each["text"] for each in found["tokens"]][:2] == ["A", " owl"]
    assert [each["probability"] for each in found["tokens"]][:2] == [None, 0.5]
    assert (found["tokens_written"], found["seconds"]) == (4, 0.25)


def test_a_reload_keeps_prompt_settings_and_the_last_result(opened):
    page, fake = opened(Fake(known={"attention": "block", "block_sizes": [1, 4, 0]}))
    page.locator("#compare").select_option("samples")
    page.locator("[name=sampler]").select_option("ancestral")
    page.locator("[name=steps]").fill("7")
    page.locator("[name=seed]").fill("2")
    run(page)
    done(page, 1)
    done(page, 2)
    choose_second = page.locator(".lane").nth(1).locator('.token[data-place="2"]')
    choose_second.click()
    page.locator(".menu").get_by_role("button", name="Keep", exact=True).click()
    before = [text_of(page, lane) for lane in range(3)]
    page.reload()
    page.locator(".lane").nth(2).locator(".token").first.wait_for()
    assert [text_of(page, lane) for lane in range(3)] == before
    assert page.locator("#prompt").input_value() == HOLES
    assert page.locator("[name=sampler]").input_value() == "ancestral"
    assert page.locator("[name=steps]").input_value() == "7"
    assert page.locator("[name=seed]").input_value() == "2"
    assert page.locator("#compare").input_value() == "samples"
    assert page.locator(".token.kept").count() == 1
    assert len(fake.requests) == 3


def test_an_error_goes_away_when_something_is_changed_and_an_old_result_with_a_new_run(opened):
    page, fake = opened()
    run(page)
    fake.refusals = [(400, {"message": "no"}, {})]
    page.locator("#run").click()
    page.locator(".problem").wait_for()
    assert page.locator(".output").is_hidden()
    page.locator("#prompt").fill("something else")
    assert page.locator(".problem").is_hidden()


@pytest.mark.parametrize("wrong", ["[mask]", "[MASK:3", "[MASK:0]", "[MASK:4-2]", "[MASK: 3]"])
def test_what_only_looks_like_a_hole_is_pointed_out(opened, wrong):
    page, _ = opened()
    page.locator("#prompt").fill(f"The {wrong} dog")
    assert wrong in page.locator("#warning").inner_text()
    assert page.locator(".mirror .hole.bad").inner_text().strip() == wrong
    page.locator("#prompt").fill("The [MASK:2-4] dog [MASK]")
    assert page.locator("#warning").is_hidden()
    assert page.locator(".mirror .hole.bad").count() == 0


def test_words_that_the_model_does_not_know_are_pointed_out(opened):
    page, _ = opened(Fake(known={"knows_all_words": False}, unknown=(" zebra",)))
    page.locator("#prompt").fill("The zebra [MASK:2]")
    page.locator("#warning").filter(has_text="The model has no token for “zebra”.").wait_for()
    page.locator("#prompt").fill("The fox")
    page.locator("#warning").wait_for(state="hidden")


def test_holes_are_given_constraints(opened):
    page, fake = opened()
    page.locator("#prompt").fill("A [MASK:1] of [MASK:1] and [MASK:1]")
    page.locator("#constraints summary").click()
    kinds = page.locator(".constraint select")
    for i, kind in enumerate(("choice", "anything", "pattern")):
        kinds.nth(i).select_option(kind)
    page.locator(".constraint input").nth(0).fill("red, dark blue")
    page.locator(".constraint input").nth(2).fill("[a-z]+")
    page.locator("#run").click()
    done(page)
    assert fake.requests[0]["constraints"] == [{"choice": ["red", "dark blue"]}, None, {"pattern": "[a-z]+"}]
    page.locator("#prompt").fill("no holes")
    page.locator("#run").click()
    page.locator(".status").filter(has_text="Done").wait_for()
    assert page.locator("#constraints").is_hidden()
    assert "constraints" not in fake.requests[-1]


def test_the_request_is_shown_as_curl_and_python(opened):
    page, fake = opened()
    page.locator("#prompt").fill("Tom's [MASK:2]")
    page.locator("[name=steps]").fill("4")
    page.locator("#code summary").click()
    curl, python = (page.locator(f"#code .{name}").inner_text() for name in ("curl", "python"))
    body = json.loads(curl.split("-d ", 1)[1].strip("'").replace("'\\''", "'"))
    assert body == {"seed": 0, "model": "box", "steps": 4, "text": "Tom's [MASK:2]"}
    assert f"{fake.url}v1/infill" in curl
    asked = {}
    exec(python.splitlines()[2], asked)  # the page's own line: ask = {...}
    assert asked["ask"] == body
    page.locator("#prompt").fill("Once")
    assert "v1/completions" in page.locator("#code .curl").inner_text()


def test_presets_fill_the_prompt_and_holes_are_for_models_that_see_both_sides(opened):
    page, fake = opened()
    page.locator('[data-preset="holes"]').click()
    assert "[MASK:3]" in page.locator("#prompt").input_value()
    assert not fake.requests
    page, _ = opened(Fake(known={"attention": "causal", "fills_holes": False}))
    assert page.locator('[data-preset="holes"]').is_disabled()
    assert not page.locator('[data-preset="story"]').is_disabled()


def test_an_edit_keeps_the_space_before_a_word(opened):
    page, fake = opened()
    run(page)
    choose(page, 1, "Edit")
    assert page.locator(".menu input[type=text]").input_value() == "owl"
    assert page.locator(".menu input[type=checkbox]").is_checked()
    page.locator(".menu input[type=text]").fill("bear")
    page.keyboard.press("Enter")
    choose(page, 0, "Edit")
    assert not page.locator(".menu input[type=checkbox]").is_checked()
    page.locator(".menu input[type=text]").fill("The")
    page.keyboard.press("Enter")
    choose(page, 2, "Mask again")
    page.locator(".go-on").click()
    page.locator(".token.masked").wait_for(state="detached")
    assert fake.requests[1]["canvas"][:2] == ["The", " bear"]


def test_arrows_home_and_end_move_among_tokens(opened):
    page, _ = opened(width=500)
    run(page, "A [MASK:30] b")

    def place():
        return int(page.evaluate("document.activeElement.dataset.place"))

    page.locator('.token[data-place="0"]').focus()
    page.keyboard.press("End")
    assert place() == 31
    page.keyboard.press("Home")
    assert place() == 0
    page.keyboard.press("ArrowDown")
    below = place()
    assert 1 < below < 31
    tops = "e => e.getBoundingClientRect().top"
    assert page.locator(".token").nth(below).evaluate(tops) > page.locator(".token").first.evaluate(tops)
    page.keyboard.press("ArrowUp")
    assert place() == 0


def test_on_a_phone_settings_fold_away_and_run_shows_the_canvas(opened):
    page, _ = opened(width=390, height=844)
    assert not page.locator(".settings").evaluate("e => e.open")
    run(page, f"A {WORDS[1]} [MASK:4]")
    box = page.locator(".output").bounding_box()
    assert 0 <= box["y"] < 300
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
