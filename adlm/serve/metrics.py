"""Counters in the text format that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from adlm.serve.engine import Engine

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds


class _Histogram:
    """Seconds by route, in the buckets above."""

    def __init__(self, name: str, about: str) -> None:
        self.name, self.about = name, about
        self._routes: dict[str, tuple[list[int], list[float]]] = {}

    def add(self, route: str, seconds: float) -> None:
        counts, total = self._routes.setdefault(route, ([0] * (len(_BUCKETS) + 1), [0.0]))
        counts[bisect_left(_BUCKETS, seconds)] += 1
        total[0] += seconds

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, "histogram", self.about)
        for route, (counts, total) in sorted(self._routes.items()):
            below = 0
            for bucket, count in zip([*map(str, _BUCKETS), "+Inf"], counts, strict=True):
                below += count
                yield f'{self.name}_bucket{{route="{route}",le="{bucket}"}} {below}'
            yield f'{self.name}_sum{{route="{route}"}} {total[0]:.6f}'
            yield f'{self.name}_count{{route="{route}"}} {below}'


class Metrics:
    """Counts answers by route and status. Routes are the server's own, so that no request makes a new series.

    Args:
        engine: whose work is counted too; None in the front of several workers.
    """

    def __init__(self, engine: Engine | None) -> None:
        self.engine = engine
        self._answers: Counter[tuple[str, int]] = Counter()
        self._whole = _Histogram("adlm_request_seconds", "Time from request to the end of the answer.")
        self._first = _Histogram("adlm_first_byte_seconds", "Time from request to the first bytes of the answer.")
        self._lock = threading.Lock()

    def answered(self, route: str, status: int, seconds: float, first: float) -> None:
        """Count one answer: its time to the end, and to the first bytes of its body."""
        with self._lock:
            self._answers[route, status] += 1
            self._whole.add(route, seconds)
            self._first.add(route, first or seconds)

    def text(self, workers: Iterable[str] = ()) -> str:
        """All of it.

        Args:
            workers: the metrics of several workers, which are added up.
        """
        with self._lock:
            own = [*self._lines()] if self._answers else []
        return "\n".join([*own, *self._engine_lines(), *summed(workers)]) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("adlm_requests_total", "counter", "Answers by route and status.")
        for (route, status), count in sorted(self._answers.items()):
            yield f'adlm_requests_total{{route="{route}",status="{status}"}} {count}'
        yield from self._whole.lines()
        yield from self._first.lines()

    def _engine_lines(self) -> Iterator[str]:
        engine = self.engine
        if engine is None:
            return
        for name, value, about in (
            ("running", engine.running, "Requests being computed."),
            ("waiting", engine.waiting, "Requests waiting."),
        ):
            yield from _head(f"adlm_{name}", "gauge", about)
            yield f"adlm_{name} {value}"
        for name, value, about in (
            ("cancelled_total", engine.cancelled, "Requests whose client disconnected."),
            ("timed_out_total", engine.timed_out, "Requests stopped at the time limit."),
        ):
            yield from _head(f"adlm_{name}", "counter", about)
            yield f"adlm_{name} {value}"
        for name, about in (("passes", "Passes through the network."), ("rows", "Rows in these passes.")):
            yield from _head(f"adlm_network_{name}_total", "counter", about)
            for model, batcher in engine.batchers.items():
                yield f'adlm_network_{name}_total{{model="{_escaped(model)}"}} {getattr(batcher, name)}'


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def summed(texts: Iterable[str]) -> list[str]:
    """Metrics of several processes with the same series, added up."""
    totals: dict[str, float | None] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("#"):
                totals.setdefault(line, None)
            else:
                name, _, value = line.rpartition(" ")
                totals[name] = (totals.get(name) or 0.0) + float(value)
    return [name if value is None else f"{name} {value:.6f}".rstrip("0").rstrip(".") for name, value in totals.items()]
