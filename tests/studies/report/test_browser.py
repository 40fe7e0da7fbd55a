"""The page in a browser. Skipped, saying so, where there is none."""

from dataclasses import replace

import pytest

from adlm_studies.report.page import write_report
from adlm_studies.report.sections import Chart, Code, Frame, Interval, Player, ReportPage, ReportTable, Series, Texts

WORDS = ["the", " fox", " met", " an", " owl", "."]
HOSTILE = ["</script><img src=x onerror=\"document.title='run'\">", " `code`", " שלום", " 🦊", " <b>x</b>", " &lt;"]


def player_of(words: list[str]) -> Player:
    """The first word is given, the others come from the last to the first, and the last is taken back once."""
    last = len(words) - 1
    predictions = [(i, [(words[i], 0.6), (" other", 0.3)], [(words[i], 0.9)]) for i in range(1, len(words))]
    frames = [Frame([], predictions), *(Frame([(i, words[i])]) for i in range(last, 0, -1))]
    frames[2:2] = [Frame([(last, None)]), Frame([(last, words[last])])]
    return Player("It plays", "A note.", name="p", length=len(words), given=[(0, words[0])], frames=frames, anchors=[1])


def report_of(words: list[str]) -> ReportPage:
    text = "".join(words)
    wide = ReportTable(
        "Wide", "", [f"column {i}" for i in range(20)], [[text, *[Interval(1.5, 1.25, 1.75, runs=3)] * 19]]
    )
    chart = Chart("Chart", "", "x", "y", [Series(text, [1, 2, 3], [3, 2, 1], [2, 1, 0], [4, 3, 2])])
    sections = [player_of(words), wide, chart, Texts("Texts", "", [(text, text)]), Code("Code", "", "word " * 80)]
    return ReportPage(text, text, [*sections, replace(player_of(words), title="Another")])


@pytest.fixture
def opened(context_with, tmp_path):
    """Opens a report; at the end, no request has left the page and nothing in it has complained."""
    pages, wrong = [], []

    def route(each):
        if each.request.url == (tmp_path / "r.html").as_uri():
            each.continue_()
        else:
            wrong.append(f"request: {each.request.url}")
            each.abort()

    def opens(report=None, *, width=1000, height=800, **options):
        write_report(report or report_of(WORDS), tmp_path / "r.html")
        page = context_with(**{"reduced_motion": "reduce", **options}).new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.route("**/*", route)
        page.on("console", lambda said: wrong.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.goto((tmp_path / "r.html").as_uri())
        return page

    yield opens
    for page in pages:
        page.close()
    assert not wrong


def text_of(player) -> list[str]:
    return player.locator(".token:not(.masked) .shown").all_text_contents()


def frame_of(player) -> int:
    return int(player.get_attribute("data-frame"))


def test_a_player_plays_to_the_end_and_shows_the_whole_text(opened):
    page = opened(reduced_motion="no-preference", height=2000)
    player = page.locator(".player").first
    player.locator(".pace").select_option("4")
    page.wait_for_selector('.player[data-frame="7"]:not(.playing)', timeout=10_000)
    assert text_of(player) == [word.strip() for word in WORDS]
    assert player.locator("button.play").get_attribute("aria-label") == "play"


def test_with_reduced_motion_it_waits_to_be_played_and_starts_over(opened):
    page = opened()
    player = page.locator(".player").first
    assert text_of(player) == [word.strip() for word in WORDS]
    page.wait_for_timeout(300)
    assert frame_of(player) == 7
    player.locator("button.play").click()
    assert frame_of(player) < 7
    assert player.locator("button.play").get_attribute("aria-label") == "pause"


def test_stepping_back_brings_masks_with_their_predictions(opened):
    player = opened().locator(".player").first
    assert player.locator(".token.masked").count() == 0
    player.locator("button.back").click()
    masked = player.locator(".token.masked .shown")
    assert masked.all_text_contents() == ["fox"]
    player.locator("button.forward").click()
    assert masked.count() == 0
    assert player.locator("button.forward").is_disabled()


def test_a_token_that_is_taken_back_is_masked_again(opened):
    player = opened().locator(".player").first
    slider = player.locator(".slider")
    slider.fill("1")
    assert text_of(player) == ["the", "."]
    slider.fill("2")
    assert text_of(player) == ["the"]
    assert player.locator(".token.taken").count() == 1
    slider.fill("3")
    assert text_of(player) == ["the", "."]


def test_the_keyboard_steps_plays_and_walks_through_positions(opened):
    page = opened()
    player = page.locator(".player").first
    player.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert frame_of(player) == 5
    page.keyboard.press("ArrowRight")
    assert frame_of(player) == 6
    page.keyboard.press("Space")
    assert player.locator("button.play").get_attribute("aria-label") == "pause"
    page.keyboard.press("Space")
    assert player.locator("button.play").get_attribute("aria-label") == "play"
    at = frame_of(player)
    player.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    assert player.locator(".token:focus").get_attribute("data-place") == "1"
    assert frame_of(player) == at


def test_focus_on_a_place_opens_both_stages_predictions_and_escape_closes_them(opened):
    page = opened()
    player = page.locator(".player").first
    player.locator(".slider").fill("0")
    player.locator(".token").nth(1).focus()
    panel = player.locator(".panel")
    assert panel.is_visible()
    assert panel.locator("h4").all_text_contents() == ["anchor stage", "final stage"]
    assert panel.locator(".share").all_text_contents() == ["60 %", "30 %", "90 %"]
    page.keyboard.press("Escape")
    assert panel.is_hidden()
    player.locator(".token").nth(2).hover()
    assert panel.is_visible()


def test_players_on_one_page_do_not_disturb_each_other(opened):
    players = opened().locator(".player")
    players.nth(0).locator("button.back").click()
    assert (frame_of(players.nth(0)), frame_of(players.nth(1))) == (6, 7)


def test_anchors_are_marked_once_they_stand_there(opened):
    player = opened().locator(".player").first
    assert player.locator(".anchor .shown").all_text_contents() == ["fox"]
    player.locator("button.back").click()
    assert player.locator(".token.anchor").count() == 0


@pytest.mark.parametrize("words", [WORDS, ["x" * 300, *WORDS], ["字" * 90, "字" * 90]])
def test_nothing_is_wider_than_a_small_screen(opened, words):
    page = opened(report_of(words), width=360, height=700)
    page.locator(".token").nth(1).focus()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    box = page.locator(".player").first.locator(".panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


def test_hostile_text_is_shown_and_runs_nothing(opened):
    page = opened(report_of(HOSTILE))
    player = page.locator(".player").first
    assert text_of(player) == [word.strip() for word in HOSTILE]
    player.locator(".token").nth(1).focus()
    page.locator("svg.chart").first.hover()
    assert page.locator("img").count() == 0
    assert page.title() == "".join(HOSTILE)
    assert page.locator(".sample-text").first.inner_text() == "".join(HOSTILE)


def test_empty_sections_do_no_harm(opened):
    page = opened(
        ReportPage("", "", [Player("Empty"), ReportTable("None"), Chart("Nothing"), Texts("No text"), Code("No code")])
    )
    page.locator("button.play").click()
    assert page.locator(".token").count() == 0


def test_dark_follows_the_system_and_the_button(opened):
    page = opened(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.locator(".theme").click()
    light = page.evaluate(ground)
    assert dark != light
    page.locator(".theme").click()
    assert page.evaluate(ground) == dark
    assert opened(color_scheme="light").evaluate(ground) == light


def test_figures_and_points_tell_more_when_looked_at(opened):
    page = opened()
    page.locator(".figure").first.focus()
    assert page.locator(".tip").inner_text() == "95 % interval 1.25 to 1.75, mean of 3 runs"
    page.locator("svg.chart .dot").nth(1).hover()
    assert page.locator(".tip").inner_text().endswith(": 2 (1 to 3) at 2")


def test_without_scripts_everything_but_the_player_is_there(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("[data-player]").first.inner_text() == "the fox met an owl."
    assert page.locator("svg.chart").count() == 1
    assert page.locator("table").first.is_visible()
