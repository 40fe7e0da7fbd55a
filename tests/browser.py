"""A Chromium for the tests of pages: the one that is installed, or one that can be installed.

    python -m tests.browser

`make test` runs this once. It looks for a browser, then tries Playwright's own, then (as root) the package manager,
and says what it found. Tests of pages are skipped if there is none, so a failure here fails nothing else.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = "python -m tests.browser"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 120  # for each way to install one


def installed() -> str | None:
    """The path of an installed Chromium, Playwright's own included, or None."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    paths = [*map(shutil.which, NAMES), own]
    return next((path for path in paths if path and Path(path).exists() and _starts(path)), None)


def install(run: Callable[[list[str]], bool], root: bool) -> str | None:
    """Try each way to install a browser; the path of the first that worked, or None."""
    ways = [[[sys.executable, "-m", "playwright", "install", "chromium"]]]
    if root and shutil.which("apt-get"):
        package = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
        ways.append([["apt-get", "update"], package])
    for commands in ways:
        if all(run(command) for command in commands) and (path := installed()):
            return path
    return None


def _starts(path: str) -> bool:
    """Whether the program runs at all: a downloaded browser may lack libraries of the system."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: list[str]) -> bool:
    print(f"Trying: {' '.join(command)}", flush=True)
    limits = {"PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "10000", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env={**os.environ, **limits}, capture_output=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def main() -> int:
    """Find or install a browser, and print what came of it."""
    try:
        path = installed() or install(_run, root=hasattr(os, "geteuid") and os.geteuid() == 0)
    except ImportError:
        print("Playwright is not installed: tests of pages will be skipped.")
        return 0
    if path is None:
        print(f"No browser could be installed: tests of pages will be skipped. To try again: {COMMAND}")
    else:
        print(f"Tests of pages use {path}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
