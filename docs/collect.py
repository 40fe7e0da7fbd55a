"""Bring the results of studies into docs/results: NAME.json, its charts, and NAME.md with its tables.

    python docs/collect.py runs/anchoring runs/anchors ...

`make results` runs the studies and then this.
"""

import json
import shlex
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

from adlm.config import from_json
from adlm_studies.experiments.named import STUDIES
from adlm_studies.experiments.study import RESULTS, Study, read_results
from adlm_studies.report.chart import save_svg
from adlm_studies.report.sections import Cell, Chart, ReportTable, Section

OUT = Path(__file__).parent / "results"
KEPT_TEXTS = 1
OPENING = "After this page you know what the study `{}` found; the command below repeats it."


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        record = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        study = from_json(STUDIES[record["study"]], record["settings"])
        report = study.report(read_results(folder / RESULTS))
        for outcome in record["outcomes"]:
            outcome["result"].pop("player", None)  # made again when the study is run
            for score in outcome["result"].get("scores", {}).values():
                score.pop("row_nats", None)  # in the outcomes of the study
            if isinstance(outcome["result"].get("texts"), list):
                outcome["result"]["texts"] = outcome["result"]["texts"][:KEPT_TEXTS]
        text = json.dumps(record, indent=1) + "\n"
        if str(Path.home()) in text or str(Path.cwd()) in text:
            raise SystemExit(f"{folder}: a path of this machine is in the results")
        (OUT / f"{study.name}.json").write_text(text, encoding="utf-8")
        for old in OUT.glob(f"{study.name}-*.svg"):
            if old.stem.removeprefix(f"{study.name}-").isdecimal():  # anchoring-2-1.svg is not of anchoring
                old.unlink()
        lines = [f"# {report.title}", OPENING.format(study.name), _wrapped(report.lead)]
        lines += [f"```bash\n{_command(study)}\n```", f"[All numbers]({study.name}.json)."]
        charts = 0
        for section in report.sections:
            if isinstance(section, Chart):
                charts += 1
                picture = f"{study.name}-{charts}.svg"
                save_svg(section, OUT / picture)
                lines += [f"## {section.title}", f"![{section.title}]({picture})", _wrapped(section.note)]
            elif isinstance(section, ReportTable):
                lines += [f"## {section.title}", _table(section), _wrapped(section.note)]
            elif isinstance(section, Section):
                continue  # samples and players are for the page
        (OUT / f"{study.name}.md").write_text("\n\n".join(filter(None, lines)) + "\n", encoding="utf-8")
        print(f"{study.name}: {len(record['outcomes'])} outcomes, {charts} charts")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _command(study: Study) -> str:
    plain, words = type(study)(), [f"adlm experiment {study.name} --seeds {study.seeds}"]
    changed = {each.name: getattr(study, each.name) for each in fields(study) if each.name != "seeds"}
    for name, value in changed.items():
        if value != getattr(plain, name):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            words.append(f"--set {shlex.quote(f'{name}={text}')}")
    lines = words[:1]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= 118:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def _table(table: ReportTable) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *([_text(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(cell: Cell) -> str:
    return "" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell).replace("|", "\\|")


if __name__ == "__main__":
    main()
