"""SIGTERM and Ctrl-C as a request to stop, which is read between steps instead of interrupting one."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


@contextmanager
def stop_signal(on_first: Callable[[signal.Signals], None] | None = None) -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and Ctrl-C are noted: yields a function that returns the signal's number, 0 before.

    A second Ctrl-C stops at once. Signals belong to the main thread; in any other nothing is noted.

    Args:
        on_first: called with the first signal.
    """
    received = 0
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, received = not received, number
        if first and on_first is not None:
            # A signal may come in the middle of a print, and Python refuses another one then.
            with suppress(RuntimeError):
                on_first(signal.Signals(number))

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
