"""Counters in the text format that Prometheus reads."""

import threading
from collections import Counter
from collections.abc import Iterator

from adlm.serve.engine import Engine


class Metrics:
    """Counts answers by route and status. Routes are the server's own, so that no request makes a new series."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._answers: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answered(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._answers[route, status] += 1
            self._seconds[route] += seconds  # type: ignore[assignment] # a counter of seconds

    def text(self) -> str:
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        engine = self.engine
        yield from _head("adlm_requests_total", "counter", "Answers by route and status.")
        for (route, status), count in sorted(self._answers.items()):
            yield f'adlm_requests_total{{route="{route}",status="{status}"}} {count}'
        yield from _head("adlm_request_seconds_total", "counter", "Time from request to the end of the answer.")
        for route, seconds in sorted(self._seconds.items()):
            yield f'adlm_request_seconds_total{{route="{route}"}} {seconds:.6f}'
        for name, value, about in (
            ("running", engine.running, "Requests that are worked on."),
            ("waiting", engine.waiting, "Requests that wait for their turn."),
        ):
            yield from _head(f"adlm_{name}", "gauge", about)
            yield f"adlm_{name} {value}"
        for name, value, about in (
            ("cancelled_total", engine.cancelled, "Requests that nobody waited for any more."),
            ("timed_out_total", engine.timed_out, "Requests that were stopped at the time limit."),
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
