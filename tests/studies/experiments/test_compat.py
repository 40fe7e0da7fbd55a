"""Results that version 0.1 wrote are read, reported and not computed again."""

import json
from pathlib import Path

import pytest

from adlm.config import from_json
from adlm_studies.experiments.anchoring import Anchoring
from adlm_studies.experiments.compat import current
from adlm_studies.experiments.named import STUDIES
from adlm_studies.experiments.study import descriptions, read_results, stored_result
from adlm_studies.report.sections import ReportTable

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_published_results_are_reported(path):
    study = from_json(STUDIES[path.stem], json.loads(path.read_text())["settings"])
    tables = [section for section in study.report(read_results(path)).sections if isinstance(section, ReportTable)]
    assert tables
    assert all(table.rows for table in tables)


def test_a_step_that_0_1_finished_is_not_run_again(tmp_path):
    step = Anchoring(corpora=("stories",), arms=("MDLM",), seeds=1).steps()[0]
    described = descriptions([step])[step.name]
    old = json.loads(
        json.dumps(described).replace('"TrainAndScore"', '"Train"').replace('"tokens_per_step"', '"tokens"')
    )
    assert old != described
    assert current(old) == described
    file = tmp_path / "steps" / f"{step.name}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"step": old, "result": {"nats_a_token": 1.0}}))
    assert stored_result(tmp_path, step.name, described) == {"nats_per_token": 1.0}
