"""What tests do on the studio page."""

HOLES = "A [MASK:4] in the wood."


def run(page, text=HOLES):
    page.locator("#prompt").fill(text)
    page.locator("#run").click()
    done(page)


def done(page, lane=0):
    page.locator(".status").nth(lane).filter(has_text="Done").wait_for()


def text_of(page, lane=0):
    return page.locator(".lane").nth(lane).locator(".token:not(.masked) .shown").all_text_contents()


def choose(page, position, item):
    page.locator(f'.token[data-place="{position}"]').click()
    page.locator(".menu").get_by_role("button", name=item, exact=True).click()


def go_on(page, button=".go-on"):
    page.locator(".status").evaluate("element => { element.textContent = '' }")
    page.locator(button).click()
    done(page)
