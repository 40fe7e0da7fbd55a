"""Being told to stop: the step is finished, all is saved, then the run ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """`asked` is the number of the signal that came, or 0."""

    def __init__(self) -> None:
        self.asked = 0


@contextmanager
def noticed(say: Callable[[str], None]) -> Iterator[Interruption]:
    """Inside, SIGTERM and Ctrl-C are taken note of; a second Ctrl-C stops at once.

    Signals are the main thread's; in any other this notices nothing.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def take_note(number: int, frame: FrameType | None) -> None:
        if interruption.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, interruption.asked = not interruption.asked, number
        if first:
            # A signal may come in the middle of a print, where Python refuses another one.
            with suppress(RuntimeError):
                say(f"{signal.Signals(number).name}: finishing this step, then saving; Ctrl-C again stops at once")

    before: dict[signal.Signals, Any] = {number: signal.signal(number, take_note) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
