"""A hook of mkdocs: lets pages link to files of the repository outside docs/, and keeps figures on one line.

Pages are read in the repository too, where `../runs/README.md` is a file. On the site such files are pages,
pictures and downloads under `repository/`, brought there when a page asks for them.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[([^\]]*)\]\()((?!https?:|mailto:|#)[^)#\s]+)([^)]*\))")
IN_A_FIGURE = re.compile(r"(?<=≤) (?=[\d.])|(?<=\d) (?=±)|(?<=±) (?=[\d.])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the pages link to outside docs/, and what is linked to from there."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while waiting:
        page = waiting.pop()
        for _, _, link, _ in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            position = _place(target)
            if target.is_file() and not target.is_relative_to(DOCS) and position not in files.src_uris:
                added = File.generated(config, position, abs_src_path=str(target))
                added.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(added)
                if target.suffix == ".md":
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to where their files are on the site. A folder has no page, so its name is left as text.

    Figures such as "≤ 4.20 ± 0.17" get spaces that do not break.
    """
    source = Path(page.file.abs_src_path or DOCS)

    def pointed(match: re.Match[str]) -> str:
        begin, text, link, end = match.groups()
        target = (source.parent / link).resolve()
        if source.is_relative_to(DOCS) and target.is_relative_to(DOCS):
            return match[0]
        if target.is_dir():
            return text
        return begin + "../" * page.file.src_uri.count("/") + _place(target) + end

    return IN_A_FIGURE.sub("\N{NO-BREAK SPACE}", LINK.sub(pointed, markdown))


def _place(target: Path) -> str:
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    return f"repository/{target.relative_to(ROOT).as_posix()}"
