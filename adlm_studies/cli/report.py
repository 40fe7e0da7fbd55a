"""`adlm report`: trained runs side by side, on one page."""

from pathlib import Path
from typing import Annotated

import tyro

from adlm.cli.progress import console
from adlm_studies.report.compare import compare_runs
from adlm_studies.report.page import write_report


def command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")],
    /,
    *,
    out: Path = Path("report.html"),
    samples: int = 2,
    seed: int = 0,
    device: str = "auto",
) -> None:
    """Compare trained runs on one page: figures, curves, samples, and a text as it appears.

    For an unfinished run, the page has its curves and samples of its best model so far.

    Args:
        runs: folders that `adlm train` or `adlm demo` wrote.
        out: the page, a single self-contained file.
        samples: texts from each model; 0 loads no model at all.
        seed: seed of the samples.
        device: auto, cpu, cuda or mps.
    """
    write_report(compare_runs(runs, samples=samples, seed=seed, device=device), out)
    console().print(f"wrote {out}", soft_wrap=True, markup=False, highlight=False)
