"""A queue in which clients take turns, so that one with many requests does not delay one with few."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FairQueue(Generic[K, V]):
    """Items by client. The next one is the oldest of the client whose turn it is."""

    def __init__(self) -> None:
        self._clients: dict[str, dict[K, V]] = {}  # in the order of their turns; none is empty
        self._client_of: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._client_of)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._client_of])

    def add(self, client: str, key: K, value: V) -> None:
        """Append an item to those of a client."""
        self._clients.setdefault(client, {})[key] = value
        self._client_of[key] = client

    def remove(self, key: K) -> V | None:
        """Take an item out, whichever turn it has; None if it is not here."""
        client = self._client_of.pop(key, None)
        if client is None:
            return None
        value = self._clients[client].pop(key)
        if not self._clients[client]:
            del self._clients[client]
        return value

    def take(self) -> tuple[K, V]:
        """The next item; its client's next turn comes after those of all others."""
        client = next(iter(self._clients))
        items = self._clients.pop(client)
        key = next(iter(items))
        value = items.pop(key)
        del self._client_of[key]
        if items:
            self._clients[client] = items
        return key, value
