"""Finished steps as files that outlive the machine: small enough for the repository, and read back on another one.

OUTCOMES/NAME.json    the step, its result, versions, the machine, and a checksum of step and result

A file counts for a step only if the step stored in it is the study's own, field by field: a changed run is run again.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from adlm.errors import DataError
from adlm.files import write_atomically
from adlm_studies.experiments.study import Study, descriptions, digest, is_outcome, read_record, step_file


class Exchanged(NamedTuple):
    """Names of steps by what became of them.

    Args:
        changed: their files are of other steps of the same name, and were left alone.
    """

    exported: list[str]
    imported: list[str]
    changed: list[str]


def exchange(study: Study, root: Path, outcomes: Path) -> Exchanged:
    """Bring the outcomes of finished steps from the study's folder to `outcomes`, and those that only it has back."""
    found = Exchanged([], [], [])
    for name, described in descriptions(study.steps()).items():
        here, there = step_file(root, name), outcomes / f"{name}.json"
        mine, other = read_record(here), _checked(there)
        if mine is not None and is_outcome(mine, described):
            if other is None or not is_outcome(other, described):
                _write(there, {"study": study.name, "checksum": _checksum(mine), **mine})
                found.exported.append(name)
        elif other is not None and is_outcome(other, described):
            here.parent.mkdir(parents=True, exist_ok=True)
            kept = {key: value for key, value in other.items() if key not in ("study", "checksum")}
            write_atomically(here, json.dumps(kept, indent=1) + "\n")
            found.imported.append(name)
        elif other is not None:
            found.changed.append(name)
    return found


def _checked(path: Path) -> dict[str, Any] | None:
    record = read_record(path)
    if record is None and path.exists():
        raise DataError(f"{path} is not a JSON object: restore it or delete it", subject=str(path))
    if record is not None and record.get("checksum") != _checksum(record):
        raise DataError(f"{path} was changed since it was written: restore it or delete it", subject=str(path))
    return record


def _checksum(record: dict[str, Any]) -> str:
    return digest({key: record.get(key) for key in ("step", "result")})


def _write(path: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    if str(Path.home()) in text or str(Path.cwd()) in text:
        raise DataError(f"a path of this machine is in the outcome {path.name}", subject=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text + "\n")
