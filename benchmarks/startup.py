"""How long a person waits for `adlm --help` and `import adlm`, beside an import of torch alone."""

import statistics
import subprocess
import sys
import time

from benchmarks._record import record

COMMANDS = {
    "adlm --help": [sys.executable, "-m", "adlm", "--help"],
    "import adlm": [sys.executable, "-c", "import adlm"],
    "import torch (for comparison)": [sys.executable, "-c", "import torch"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(7):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = [{"command": name, "seconds (median of 7)": value} for name, value in medians.items()]
    record("startup", rows, conclusion={"adlm --help, s": round(medians["adlm --help"], 3)}, method="new processes")


if __name__ == "__main__":
    main()
