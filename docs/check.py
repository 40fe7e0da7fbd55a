"""Checks the documentation: every relative link leads somewhere, and every Python example at least compiles."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def complaints(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    found = []
    for target in LINK.findall(text):
        if not target.startswith(("http://", "https://", "mailto:")) and not (page.parent / target).exists():
            found.append(f"{page.relative_to(ROOT)}: no {target}")
    for code in CODE.findall(text):
        try:
            compile(code, str(page), "exec")
        except SyntaxError as error:
            found.append(f"{page.relative_to(ROOT)}: {error}")
    return found


def main() -> int:
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    found = [line for page in pages for line in complaints(page)]
    print(*found, f"{len(pages)} pages, {len(found)} complaints", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
