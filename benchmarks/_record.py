"""What every benchmark does with its figures: a table on the terminal, and JSON with the machine beside them."""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine() -> dict[str, Any]:
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "system": platform.system(),
        "packages": {name: version(name) for name in ("adlm", "torch", "numpy", "tokenizers", "datasets")},
    }


def record(name: str, rows: list[dict[str, Any]], *, conclusion: dict[str, Any], method: str) -> None:
    """Write results/NAME.json and print the rows and the conclusion."""
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "date": date.today().isoformat(),
        "method": method,
        "machine": machine(),
        "rows": rows,
        "conclusion": conclusion,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    table = Table(*rows[0], title=name, caption=method)
    for row in rows:
        table.add_row(*(f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console()
    console.print(table)
    for key, value in conclusion.items():
        console.print(f"{key}: {value}", highlight=False)
