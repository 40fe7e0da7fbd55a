"""A picture of the studio while a text appears: docs/studio.png.

    adlm studio box --no-browser   # in another terminal
    python docs/studio.py http://127.0.0.1:8000/ --seed 5 --temperature 0.7 \\
        --prompt "One day a little girl found a [MASK:3] in the garden. [MASK:14] She was happy and went home."

The run is real and whole; the picture is of one of its steps. The speed is left out: it is that of the machine on which
the picture was made.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "studio.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--sampler", default="")
    parser.add_argument("--temperature", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fraction", type=float, default=0.6, help="how far into the run the step is")
    asked = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 900}, reduced_motion="reduce")
        page.goto(asked.address)
        page.locator("[name=sampler]").select_option(asked.sampler)
        page.locator("[name=temperature]").fill(asked.temperature)
        page.locator("[name=seed]").fill(str(asked.seed))
        page.locator("#prompt").fill(asked.prompt)
        page.locator("#run").click()
        page.locator(".status").filter(has_text="Done").wait_for(timeout=120_000)
        slider = page.locator(".slider")
        slider.fill(str(round(asked.fraction * int(slider.get_attribute("max") or 0))))
        blanks = page.locator(".token.masked")
        blanks.nth(blanks.count() // 2).hover()
        page.locator(".speed").evaluate("speed => { speed.textContent = ''; }")
        page.locator("footer").evaluate("footer => footer.remove()")
        page.screenshot(path=PICTURE, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
