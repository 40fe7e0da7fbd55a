"""Reports: one HTML file with tables, charts, texts and recordings.

write_report(compare_runs([Path("runs/a"), Path("runs/b")]), Path("report.html"))
"""

from adlm_studies.report.chart import save_svg
from adlm_studies.report.compare import compare_runs
from adlm_studies.report.page import page, write_report
from adlm_studies.report.recording import record_generation
from adlm_studies.report.sections import (
    Chart,
    Code,
    Interval,
    Player,
    ReportPage,
    ReportTable,
    Section,
    Series,
    Texts,
)

__all__ = [
    "Chart",
    "Code",
    "Interval",
    "Player",
    "ReportPage",
    "ReportTable",
    "Section",
    "Series",
    "Texts",
    "compare_runs",
    "page",
    "record_generation",
    "save_svg",
    "write_report",
]
