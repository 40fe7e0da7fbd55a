"""A request's right to be computed."""

import time
from collections.abc import Callable
from dataclasses import dataclass


class Cancelled(Exception):
    """The client has disconnected, or the server is stopping."""


class TimedOut(Exception):
    """The request has used up its time."""


@dataclass
class Ticket:
    """A request's right to be computed, until it is cancelled or its time is over. Counts its passes.

    held: whether whoever reads its text is behind, so that no more should be written.
    """

    deadline: float
    cancelled: bool = False
    calls: int = 0
    held: Callable[[], bool] = lambda: False

    def check(self) -> None:
        """Raise if the request is to stop."""
        if self.cancelled:
            raise Cancelled
        if time.monotonic() > self.deadline:
            raise TimedOut
