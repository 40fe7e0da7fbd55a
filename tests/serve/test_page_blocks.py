"""The studio page in a browser: blocks, several ways to write side by side, characters of several tokens."""

from tests.serve.fake import WORDS, Fake
from tests.serve.studio_page import choose, done, go_on, run, text_of

READINGS = {"attention": "block", "block_sizes": [1, 4, 0], "fills_holes": True}


def marked(page, name):
    return page.locator(f".token.{name}").evaluate_all("all => all.map(e => Number(e.dataset.place))")


def test_the_block_being_written_and_finished_blocks_are_marked(opened):
    page, fake = opened(Fake(known=READINGS))
    page.locator("[name=block_size]").select_option("4")
    page.locator("[name=max_tokens]").fill("9")
    run(page, "Once upon")
    assert fake.requests[0]["block_size"] == 4
    assert marked(page, "block-done") == [*range(2, 11)]
    assert "3 blocks" in page.locator(".count").inner_text()
    page.locator(".slider").fill("3")  # the first block has two blanks
    assert marked(page, "block-done") == [2, 3]
    assert marked(page, "block-now") == [4, 5, 6, 7]
    assert marked(page, "block-start") == [4, 8]
    assert "block 2 of 3" in page.locator(".count").inner_text()
    assert page.locator(".legend").inner_text().count("block") == 2


def test_blocks_are_marked_while_the_server_writes(opened):
    page, fake = opened(Fake(known=READINGS, hold_after=5))
    page.locator("[name=block_size]").select_option("4")
    page.locator("[name=max_tokens]").fill("8")
    page.locator("#prompt").fill("")
    page.locator("#run").click()
    page.locator(".token.block-done").nth(3).wait_for()
    assert marked(page, "block-done") == [0, 1, 2, 3]
    assert marked(page, "block-now") == [4, 5, 6, 7]
    fake.go.set()
    done(page)
    assert marked(page, "block-now") == []


def test_one_model_writes_in_three_ways_side_by_side_one_after_another(opened):
    page, fake = opened(Fake(known=READINGS), width=1300)
    facts = page.locator("#facts").inner_text()
    assert facts.startswith(
        "box · 2.6 M parameters · with an anchor stage · reads left to right, blocks of 4, whole row"
    )
    page.locator("#compare").select_option("readings")
    page.locator("[name=max_tokens]").fill("6")
    run(page, "Once upon")
    done(page, 1)
    done(page, 2)
    assert page.locator(".which").all_text_contents() == ["Left to right", "Blocks of 4", "Whole row"]
    assert [each["block_size"] for each in fake.requests] == [1, 4, 0]
    assert page.locator(".speed").all_text_contents() == ["24 tokens per second: 6 in 0.3 s, 6 network calls"] * 3
    assert page.locator(".settings").count() == 1
    boxes = [page.locator(".lane").nth(i).bounding_box() for i in range(3)]
    assert len({box["y"] for box in boxes}) == 1
    page.locator("#together").click()
    assert page.locator(".playing").count() == 3


def test_ways_to_write_are_asked_without_a_sampler_that_has_no_blocks(opened):
    own = {"sampling": {"sampler": "first-hitting"}}
    page, fake = opened(Fake(known={**READINGS, **own}), width=1300)
    assert page.locator("[name=block_size]").is_visible()  # the server chooses a sampler for blocks
    assert page.locator("[name=steps]").is_disabled()
    page.locator("[name=sampler]").select_option("first-hitting")
    assert page.locator("[name=block_size]").is_hidden()
    page.locator("#compare").select_option("readings")
    run(page, "Once upon")
    done(page, 2)
    assert [(each["sampler"], each["block_size"]) for each in fake.requests] == [(None, 1), (None, 4), (None, 0)]


def test_stopping_ends_those_that_wait_for_their_turn_too(opened):
    page, fake = opened(Fake(known=READINGS, pause=0.15))
    page.locator("#compare").select_option("readings")
    page.locator("#prompt").fill("[MASK:60]")
    page.locator("#run").click()
    page.locator(".token.written").nth(1).wait_for()
    assert page.locator(".lane.waiting").count() == 2
    page.locator("#run").click()
    page.locator(".status").first.filter(has_text="Stopped after").wait_for()
    assert page.locator(".lane.waiting").count() == 0
    assert len(fake.requests) == 1


def test_several_samples_are_written_side_by_side_with_seeds_of_their_own(opened):
    page, fake = opened(width=1300)
    page.locator("#compare").select_option("samples")
    page.locator("[name=seed]").fill("5")
    run(page)
    done(page, 1)
    done(page, 2)
    assert sorted(each["seed"] for each in fake.requests) == [5, 6, 7]
    assert page.locator(".which").all_text_contents() == ["Seed 5", "Seed 6", "Seed 7"]
    assert len({tuple(text_of(page, lane)) for lane in range(3)}) == 3


def test_another_one_draws_a_new_seed(opened):
    page, fake = opened()
    run(page)
    for _ in range(2):
        page.locator(".status").evaluate("element => { element.textContent = '' }")
        page.locator("#another").click()
        done(page)
    seeds = [each["seed"] for each in fake.requests]
    assert seeds[0] == 0
    assert len(set(seeds)) == 3
    assert page.locator("[name=seed]").input_value() == str(seeds[-1])


def test_characters_of_several_tokens_are_one_and_masked_together(opened):
    page, fake = opened(Fake(words=("\\xe2", "\\x80", "\\x94", " fox")))
    run(page, "[MASK:4] b")
    cells = page.locator(".token:not(.joined) .shown")
    assert cells.all_text_contents() == ["—", "fox", "b"]
    page.locator(".slider").fill("3")  # the last is written first: the dash has no beginning yet
    assert text_of(page)[:2] == ["◌", "\u00a0"]
    page.locator(".slider").fill("4")
    page.locator(".token").first.click()
    assert page.locator(".menu .items button").all_text_contents() == ["Keep", "Mask again"]
    page.keyboard.press("Escape")
    choose(page, 0, "Mask again")
    assert page.locator(".go-on").inner_text() == "Continue: 3 blanks"
    go_on(page)
    assert fake.requests[1]["canvas"] == [None, None, None, 3, fake.number(" b")]
    assert cells.all_text_contents() == ["◌", "fox", "fox", "b"]  # the next seed wrote no beginning


def test_anchors_are_marked_only_for_models_with_an_anchor_stage(opened):
    page, _ = opened(Fake(known={"stages": 1}))
    run(page)
    assert page.locator(".token.anchor").count() == 0
    assert "anchor" not in page.locator(".legend").inner_text()
    assert "anchor" not in page.locator("#facts").inner_text()


def test_the_probability_of_a_written_token_is_told_where_one_looks(opened):
    page, _ = opened()
    run(page)
    page.locator('.token[data-place="1"]').hover()
    assert page.locator(".panel .what").inner_text().startswith("“owl”, written in frame 4 with probability 50 %")
    page.locator('.token[data-place="1"]').click()
    assert page.locator(".menu .sure").inner_text() == "written with probability 50 %"
    assert WORDS[1] == " owl"
