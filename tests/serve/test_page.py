"""The studio page in a browser, against a server without a model. Skipped, saying so, where there is no browser."""

import pytest

from tests.serve.fake import FILLING, WORDS, Fake
from tests.serve.studio_page import HOLES, choose, done, go_on, run, text_of

HOSTILE = ("</script><img src=x onerror=\"document.title='run'\">", " <b>x</b>", " &lt;", " שלום", ' "', " ${1}", " 🦊")


def test_a_prompt_is_continued_with_what_was_set(opened):
    page, fake = opened()
    page.locator("[name=sampler]").select_option("ancestral")
    assert page.locator(".about").inner_text() == "Each blank is filled at a random time, as in training."
    assert page.locator("[name=steps]").get_attribute("placeholder") == "64"
    for name, value in (("steps", "8"), ("temperature", "0.5"), ("top_p", "0.9"), ("seed", "3"), ("max_tokens", "4")):
        page.locator(f"[name={name}]").fill(value)
    run(page, "Once upon")
    assert fake.requests == [
        {"prompt": "Once upon", "model": "box", "sampler": "ancestral", "seed": 3, "max_tokens": 4}
        | {"steps": 8, "temperature": 0.5, "top_p": 0.9, "block_size": None, "predictions": 3}
    ]
    assert text_of(page) == ["Once", "upon", *(WORDS[(i + 3) % 8].strip() for i in range(2, 6))]
    assert page.locator(".speed").inner_text() == "16 tokens per second: 4 in 0.3 s, 4 network calls"


def test_holes_are_chips_in_the_prompt_and_are_filled_in_place(opened):
    page, fake = opened()
    page.locator("#prompt").fill("A  in the wood.")
    page.locator("#prompt").evaluate("field => field.setSelectionRange(2, 2)")
    page.locator("#hole-size").fill("4")
    page.locator("#add-hole").click()
    assert page.locator("#prompt").input_value() == HOLES
    assert page.locator(".mirror .hole").all_text_contents() == ["[MASK:4]"]
    assert page.locator("[name=max_tokens]").is_disabled()
    page.keyboard.press("Control+Enter")
    done(page)
    assert fake.requests[0]["text"] == HOLES
    assert "prompt" not in fake.requests[0]
    assert text_of(page) == ["A", "owl", "sings", "softly", "to", "in", "the", "wood."]


def test_the_canvas_fills_in_while_the_server_writes(opened):
    page, fake = opened(Fake(hold_after=2))
    page.locator("#prompt").fill("A [MASK:6] b")
    page.locator("#run").click()
    page.locator(".token.written").nth(1).wait_for()
    assert page.locator(".token.masked").count() == 4
    assert page.locator(".token.masked .shown").first.inner_text() == "owl"
    assert page.locator("#run").inner_text() == "Stop"
    fake.go.set()
    done(page)
    assert page.locator(".token.masked").count() == 0


def test_any_step_is_shown_again_and_a_place_tells_what_both_stages_expected(opened):
    page, _ = opened()
    run(page)
    colours = page.locator(".token.written").evaluate_all("all => all.map(e => e.style.getPropertyValue('--t'))")
    assert len(set(colours)) == 4
    assert page.locator(".token.anchor .shown").all_text_contents() == ["owl", "to"]
    page.locator(".slider").fill("2")
    assert text_of(page) == ["A", "softly", "to", "in", "the", "wood."]
    page.locator('.token[data-place="1"]').hover()
    panel = page.locator(".panel")
    assert panel.locator("h4").all_text_contents() == ["anchor stage", "final stage"]
    assert panel.locator(".share").all_text_contents() == ["60 %", "30 %", "90 %"]


def test_masking_a_token_again_and_going_on_sends_the_canvas_and_keeps_the_story(opened):
    page, fake = opened()
    run(page)
    assert page.locator(".go-on").is_disabled()
    choose(page, 2, "Mask again")
    assert page.locator(".go-on").inner_text() == "Continue: 1 blank"
    page.locator("[name=seed]").fill("4")
    go_on(page)
    before = [fake.word(i) if i is not None else None for i in fake.requests[1]["canvas"]]
    assert before == ["A", " owl", None, " softly", " to", " in", " the", " wood."]
    assert "text" not in fake.requests[1]
    assert text_of(page)[2] == WORDS[7]
    assert page.locator(".slider").get_attribute("max") == "6"  # four steps, the reader's change, one more step
    assert page.locator(".token.anchor .shown").all_text_contents() == ["owl", "to"]
    page.locator(".slider").fill("4")
    assert text_of(page)[2] == "sings"


def test_what_is_kept_stays_when_the_rest_is_written_anew(opened):
    page, fake = opened()
    run(page)
    assert page.locator(".anew").is_hidden()
    choose(page, 3, "Keep")
    assert page.locator(".token.kept .shown").all_text_contents() == ["softly"]
    go_on(page, ".anew")
    assert [i for i, number in enumerate(fake.requests[1]["canvas"]) if number is None] == [1, 2, 4]
    page.locator(".undo").click()
    page.locator(".undo").click()
    assert page.locator(".token.kept").count() == 0
    assert page.locator(".undo").is_hidden()


def test_generation_goes_on_from_the_step_that_is_shown(opened):
    page, fake = opened()
    run(page)
    page.locator(".slider").fill("1")
    go_on(page)
    assert [i for i, number in enumerate(fake.requests[1]["canvas"]) if number is None] == [1, 2, 3]


def test_what_fills_up_a_row_is_not_shown_and_is_sent_back(opened):
    page, fake = opened(Fake(tail=3))
    run(page)
    assert text_of(page)[-1] == "wood."
    choose(page, 2, "Mask again")
    go_on(page)
    assert fake.requests[1]["canvas"][-4:] == [fake.number(" wood."), *[FILLING] * 3]
    assert page.locator(".slider").get_attribute("max") == "6"


def test_a_token_that_is_edited_goes_out_as_text_among_numbers(opened):
    page, fake = opened()
    run(page)
    choose(page, 1, "Edit")
    assert page.locator(".menu input[type=text]").input_value() == "owl"
    page.locator(".menu input[type=text]").fill("bear")
    page.keyboard.press("Enter")
    choose(page, 4, "Mask again")
    assert page.locator(".token.kept .shown").all_text_contents() == ["bear"]
    go_on(page)
    assert fake.requests[1]["canvas"][:3] == [fake.number("A"), " bear", fake.number(" sings")]
    assert text_of(page) == ["A", "bear", "sings", "softly", "the", "in", "the", "wood."]
    assert page.locator(".slider").get_attribute("max") == "6"
    choose(page, 2, "Mask again")
    go_on(page)
    assert fake.requests[2]["canvas"][1] == fake.number(" bear")


def test_a_text_of_several_tokens_moves_what_comes_behind_it(opened):
    page, _ = opened()
    run(page)
    choose(page, 4, "Keep")
    choose(page, 1, "Edit")
    page.locator(".menu input[type=text]").fill("very big bear")
    page.keyboard.press("Enter")
    choose(page, 2, "Mask again")
    go_on(page)
    assert text_of(page)[:4] == ["A", "very", "big", "bear"]
    assert text_of(page)[5:] == ["softly", "to", "in", "the", "wood."]
    assert page.locator(".token.kept .shown").all_text_contents() == ["very", "big", "bear", "to"]
    assert page.locator(".token.given .shown").all_text_contents() == ["A", "in", "the", "wood."]
    page.locator(".slider").fill("4")
    assert text_of(page) == ["A", "owl", "sings", "softly", "to", "in", "the", "wood."]


def test_what_is_behind_the_end_is_no_part_of_the_text_and_can_be_written_later(opened):
    page, fake = opened(Fake(ends_at=4))
    run(page, "A [MASK:6]")
    assert text_of(page) == ["A", "owl", "sings", "softly"]
    assert page.locator(".token.masked").count() == 0
    assert "100 %" in page.locator(".count").inner_text()
    assert page.locator(".go-on").is_disabled()
    choose(page, 2, "Mask again")
    fake.ends_at = None
    go_on(page)
    assert fake.requests[1]["canvas"][2:] == [None, fake.number(" softly"), None, None, None]
    assert len(text_of(page)) == 7


def test_going_on_is_by_probability_of_its_own_each_time(opened):
    page, fake = opened()
    run(page)
    choose(page, 3, "Keep")
    for _ in range(3):
        go_on(page, ".anew")
    assert [each["seed"] for each in fake.requests] == [0, 1, 2, 3]
    run(page)
    assert fake.requests[-1]["seed"] == 0


def test_letters_of_several_bytes_are_sent_back_as_they_were(opened):
    page, fake = opened(Fake(words=("\\xc3", "\\xa9", *WORDS)))
    run(page, "A [MASK:4] b")
    choose(page, 3, "Edit")
    page.locator(".menu input[type=text]").fill("é")
    page.keyboard.press("Enter")
    choose(page, 4, "Mask again")
    go_on(page)
    assert [each for each in fake.requests[1]["canvas"] if isinstance(each, str)] == [" é"]


def test_the_menu_tells_what_both_stages_expected_and_closes_when_left(opened):
    page, _ = opened()
    run(page)
    page.locator('.token[data-place="1"]').click()
    assert page.locator(".menu h4").all_text_contents() == ["anchor stage", "final stage"]
    for _ in range(4):
        page.keyboard.press("Tab")
    page.locator(".menu").wait_for(state="detached")


def test_a_long_prompt_is_scrolled_with_its_mirror(opened):
    page, _ = opened()
    page.locator("#prompt").fill("a line\n" * 60 + "[MASK:3]")
    page.locator("#prompt").evaluate("field => { field.scrollTop = 400; }")
    mirror = page.locator(".mirror")
    for _ in range(50):
        if mirror.evaluate("e => e.scrollTop") > 0:
            break
        page.wait_for_timeout(20)
    assert mirror.evaluate("e => e.scrollTop") == page.locator("#prompt").evaluate("e => e.scrollTop") > 0


def test_the_models_own_way_is_told(opened):
    page, _ = opened()
    assert "ancestral, steps 32, top_p 0.8" in page.locator(".about").inner_text()
    assert page.locator("[name=steps]").get_attribute("placeholder") == "32"


def test_a_model_that_reads_in_several_ways_says_how_it_fills_holes(opened):
    page, _ = opened(Fake(known={"attention": "block", "block_sizes": [1, 4, 0]}))
    assert page.locator(".about").inner_text().endswith("Holes are filled with the text on both sides in view.")


def test_a_blank_takes_one_of_the_expected_tokens(opened):
    page, _ = opened()
    run(page)
    page.locator(".slider").fill("0")
    choose(page, 1, "Write")
    page.locator(".suggestions").get_by_role("button", name="sings").click()
    assert text_of(page)[:2] == ["A", "sings"]


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (400, {}, "top_p is above 1 (top_p)"),
        (429, {"Retry-After": "1"}, "The server is busy: top_p is above 1"),
    ],
)
def test_a_refusal_is_shown_with_its_reason_and_can_be_tried_again(opened, status, headers, said):
    page, fake = opened(Fake(refusals=[(status, {"message": "top_p is above 1", "param": "top_p"}, headers)]))
    page.locator("#prompt").fill(HOLES)
    page.locator("#run").click()
    problem = page.locator(".problem")
    problem.wait_for()
    assert problem.locator("p").inner_text() == said
    assert problem.locator(".retry").is_disabled() == (status == 429)
    problem.locator(".retry").click()
    done(page)
    assert problem.is_hidden()
    assert fake.requests[0] == fake.requests[1]


def test_a_lost_connection_is_said_and_what_was_written_can_be_gone_on_from(opened):
    page, fake = opened(Fake(cut_after=2))
    page.locator("#prompt").fill(HOLES)
    page.locator("#run").click()
    page.locator(".problem").wait_for()
    assert page.locator(".problem p").inner_text() == "The connection was lost."
    fake.cut_after = None
    assert page.locator(".go-on").inner_text() == "Continue: 2 blanks"
    go_on(page)
    assert page.locator(".token.masked").count() == 0


def test_stopping_ends_the_request_and_leaves_what_was_written(opened):
    page, fake = opened(Fake(pause=0.15))
    page.locator("#prompt").fill("[MASK:99]")
    page.locator("#run").click()
    page.locator(".token.written").nth(1).wait_for()
    page.locator("#run").click()
    page.locator(".status").filter(has_text="Stopped after").wait_for()
    assert fake.left.wait(5)
    assert page.locator("#run").inner_text() == "Run"
    assert page.locator(".problem").is_hidden()
    assert not page.locator(".go-on").is_disabled()


def test_two_columns_ask_the_same_of_two_models(opened):
    page, fake = opened(Fake(models=("adlm", "mdlm")), width=1300)
    page.locator("#compare").select_option("two")
    run(page)
    done(page, 1)
    assert {each["model"] for each in fake.requests} == {"adlm", "mdlm"}
    assert len({each["text"] for each in fake.requests}) == 1
    assert text_of(page, 0) == text_of(page, 1)
    boxes = [page.locator(".lane").nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    page.locator("#compare").select_option("one")
    assert page.locator(".lane").count() == 1


def test_each_model_offers_its_own_samplers(opened):
    page, _ = opened(Fake(models=("adlm", "ar")))
    names = page.locator("[name=sampler] option")
    page.locator("[name=sampler]").select_option("ancestral")
    assert names.all_text_contents() == ["the model's own", "ancestral", "first-hitting"]
    page.locator("[name=model]").select_option("ar")
    assert names.all_text_contents() == ["the model's own", "first-hitting"]
    assert page.locator("[name=sampler]").input_value() == ""
    page.locator("[name=sampler]").select_option("first-hitting")
    assert page.locator("[name=steps]").is_disabled()


def test_everything_can_be_done_by_keyboard(opened):
    page, fake = opened()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type(HOLES)
    page.keyboard.press("Control+Enter")
    done(page)
    page.locator(".pace").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.place") == "2"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Keep"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.place") == "2"
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.place") == "2"
    assert page.locator(".token.masked").count() == 1
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(".token.masked").wait_for(state="detached")
    assert len(fake.requests) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_button(opened, scheme):
    page, _ = opened(color_scheme=scheme)
    brightness = "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert (page.evaluate(brightness) < 100) == (scheme == "dark")
    page.locator(".theme").click()
    assert (page.evaluate(brightness) < 100) != (scheme == "dark")


def test_nothing_is_wider_than_a_small_screen(opened):
    page, _ = opened(Fake(words=("x" * 200, " fox", *WORDS), models=("a" * 80, "b")), width=360, height=700)
    fits = "document.scrollingElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    page.locator("#compare").select_option("two")
    run(page, f"{'y' * 300} [MASK:16]")
    done(page, 1)
    assert page.evaluate(fits)
    page.locator(".token.written").nth(5).click()
    box = page.locator(".menu").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


def test_an_example_invites_and_runs_when_clicked(opened):
    page, fake = opened()
    assert page.locator(".example strong").all_text_contents() == ["Write a story", "Fill the blanks", "Continue"]
    page.locator(".example").nth(1).click()
    done(page)
    assert "[MASK:" in fake.requests[0]["text"]
    assert page.locator("#examples").is_hidden()


def test_hostile_tokens_stay_text(opened):
    page, _ = opened(Fake(words=HOSTILE, models=(HOSTILE[0], "b")))
    run(page, "<i>[MASK:7]")
    assert text_of(page) == ["<i>", *(HOSTILE[i % 7].strip() for i in range(1, 8))]
    page.locator(".token.written").nth(2).click()
    page.locator(".menu").get_by_role("button", name="Edit").click()
    assert page.locator("img, b, i").count() == 0
    assert page.title() == "adlm studio"


def test_the_saved_page_opens_without_the_server_and_plays(opened, tmp_path):
    page, fake = opened(Fake(words=HOSTILE, models=("</script><b>", "b")))
    run(page, "A [MASK:4] b")
    with page.expect_download() as download:
        page.locator("#share").click()
    file = tmp_path / "run.html"
    download.value.save_as(file)
    expected = text_of(page)
    saved = opened.aside(file)
    assert saved.locator(".token:not(.masked) .shown").all_text_contents() == expected
    saved.locator("button.back").click()
    assert saved.locator(".token.masked").count() == 1
    assert saved.locator("h2").inner_text() == "</script><b>, the model's own sampler, seed 0"
    assert saved.locator("img, b").count() == 0
    saved.locator(".theme").click()
    assert saved.evaluate("document.documentElement.dataset.theme") == "dark"
    assert fake.url not in file.read_text(encoding="utf-8")


def test_a_server_that_wants_a_key_is_given_it(opened):
    page, fake = opened(Fake(refusals=[(401, {"message": "a key is needed"}, {})]))
    page.locator("#prompt").fill(HOLES)
    page.locator("#run").click()
    page.locator("[name=key]").wait_for()
    page.locator("[name=key]").fill("secret")
    page.keyboard.press("Enter")
    done(page)
    assert fake.keys == [None, "Bearer secret"]
