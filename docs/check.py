"""Checks the documentation: links lead somewhere, Python examples compile, generated tables are current.

`python docs/check.py --write` writes the tables anew.
"""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


TABLE = re.compile(r"(^<!-- table: (\w+) -->\n)(.*?)(^<!-- end -->)", re.M | re.S)


def samplers() -> str:
    """The samplers of the registry; options that all have are left out."""
    from adlm.samplers.named import named_samplers

    found = named_samplers()
    common = set.intersection(*(set(sampler.options) for sampler in found.values()))
    common |= {"stale_anchors", "block_size", "window"}
    lines = ["| name | what it does | options (default) | models |", "|---|---|---|---|"]
    for sampler in found.values():
        name = ", ".join(f"`{each}`" for each in (sampler.name, *sampler.aliases))
        own = {name: option for name, option in sampler.options.items() if name not in common}
        options = ", ".join(
            f"`{name}`" + ("" if option.default is None else f" ({option.default:g})") for name, option in own.items()
        )
        lines.append(f"| {name} | {sampler.summary} | {options} | {sampler.needs} |")
    return "\n".join(lines) + "\n"


def recipes() -> str:
    """The named runs at their usual size."""
    from adlm.recipes.named import recipes as named_runs
    from adlm.train.plan import summary

    lines = ["| recipe | layers x width | parameters | rows per step | steps | tokens |", "|---|---|---|---|---|---|"]
    for name, run in named_runs().items():
        cost, layers = summary(run), " + ".join(map(str, run.network.layers))
        tokens = f"{cost.all_tokens / 1e6:.3g} M" if cost.all_tokens < 1e9 else f"{cost.all_tokens / 1e9:.3g} G"
        lines.append(
            f"| `{name}` | {layers} x {run.network.width} | {cost.parameters.total / 1e6:.3g} M "
            f"| {cost.rows} of {cost.length:,} | {cost.steps:,} | {tokens} |"
        )
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command and its summary."""
    from adlm.cli import commands as listed

    lines = ["| command | what it does |", "|---|---|"]

    def add(prefix: str, package: str) -> None:
        for name, command in listed(package).items():
            summary = command.summary[0].upper() + command.summary[1:]
            lines.append(f"| `{prefix} {name}` | {summary} |")
            if hasattr(module := importlib.import_module(command.module), "COMMANDS"):
                add(f"{prefix} {name}", module.__name__)

    add("adlm", "adlm.cli")
    return "\n".join(lines) + "\n"


TABLES = {"samplers": samplers, "recipes": recipes, "commands": commands}


def with_tables(text: str) -> str:
    """A page with its tables as they should be."""
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[4], text)


def complaints(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    found = []
    if text != with_tables(text):
        found.append(f"{page.relative_to(ROOT)}: a table is out of date: python docs/check.py --write")
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
    if "--write" in sys.argv[1:]:
        for page in pages:
            page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    found = [line for page in pages for line in complaints(page)]
    print(*found, f"{len(pages)} pages, {len(found)} complaints", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
