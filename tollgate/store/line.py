"""
Commands sent before the ones before them are answered; replies as they come.

What was sent is with the store's machine, whatever becomes of the sender. The calls of
a batch need an answer each; records only need to get there (docs/journal.md).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tollgate.errors import StoreError, StoreTimeout
from tollgate.store.address import Address, read_address
from tollgate.store.cluster import ClusterStore, open_store
from tollgate.store.connection import Command
from tollgate.store.pipeline import Pipeline
from tollgate.store.wording import words_of

_MOST_SILENT = 4  # deadlines in a row; a disk that syncs holds Redis up for 2 s


class Line(ABC):
    """Commands to one Redis or cluster, whose replies nobody stands waiting for."""

    @property
    @abstractmethod
    def opened(self) -> int:
        """Count the connections so far; 0 in a cluster, where it is not known."""

    @property
    @abstractmethod
    def awaited(self) -> int:
        """Count the replies that may still come, of commands given up, too."""

    @abstractmethod
    def send(self, commands: Sequence[Command]) -> None:
        """
        Send commands behind those that were sent.

        Raises:
            StoreLost: The connection broke; what has no reply yet is in doubt.
            StoreError: Likewise, or there is no connection.
        """

    @abstractmethod
    def collect(self, wait_s: float) -> list[Any]:
        """
        Read the replies that are there; without any, wait so long for the first.

        Returns:
            Them, in the order of the commands; an error that was answered is one.

        Raises:
            StoreTimeout: The oldest is late. Their replies may come yet; none of those
                sent so far is late again.
            StoreError: The connection broke; what has no reply is in doubt.
        """

    @abstractmethod
    def close(self) -> None:
        """Drop the connection; the next commands open a new one."""


def open_line(url: str, *, deadline_s: float) -> Line:
    """
    Open a line to an address, be it one Redis or a cluster.

    Args:
        url: docs/store.md, "Addresses".
        deadline_s: How long a reply may take, connecting included.

    Raises:
        InputError: It is no address, or a file of TLS cannot be used.
    """
    store = open_store(url, deadline_s=deadline_s)
    if isinstance(store, ClusterStore):
        return ClusterLine(store)
    return RedisLine(read_address(url), deadline_s=deadline_s)


class RedisLine(Line):
    """
    A line to one Redis.

    Args:
        address: Its.
        deadline_s: How long a reply may take, connecting included.
    """

    def __init__(self, address: Address, *, deadline_s: float) -> None:
        self._link = Pipeline(address)
        self._deadline_s = deadline_s
        self._late = 0  # replies that are late, before those that are due
        self._due: deque[tuple[float, int]] = deque()  # until when, and how many
        self._silent = 0  # times that replies were late, since one came

    @property
    def opened(self) -> int:
        """Count the connections so far."""
        return self._link.opened

    @property
    def awaited(self) -> int:
        """Count the replies that may still come."""
        return self._late + sum(count for _, count in self._due)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands behind those that were sent."""
        until_s = time.monotonic() + self._deadline_s
        with self._mapped():
            self._link.post(commands, until_s)
        self._due.append((until_s, len(commands)))

    def collect(self, wait_s: float) -> list[Any]:
        """Read the replies that are there; without any, wait for the first."""
        if not self.awaited:
            return []
        now_s = time.monotonic()
        if self._due:
            wait_s = min(wait_s, max(0.0, self._due[0][0] - now_s))
        with self._mapped():
            replies = self._link.arrived(wait_s, until_s=now_s + self._deadline_s)
        if replies:
            self._note(len(replies))
        elif self._due and now_s + wait_s >= self._due[0][0]:
            # Judged by the clock before the wait: who got no processor is not late.
            self._miss()
        return replies

    def _note(self, number: int) -> None:
        """Count replies that came."""
        self._silent = 0
        late = min(number, self._late)
        self._late -= late
        number -= late
        while number:
            due_s, count = self._due.popleft()
            if count > number:
                self._due.appendleft((due_s, count - number))
            number -= min(count, number)

    def _miss(self) -> None:
        """Expect what is late no more; a store that is silent is connected to anew."""
        self._late = self.awaited
        self._due.clear()
        self._silent += 1
        if self._silent >= _MOST_SILENT:
            self.close()
        raise StoreTimeout(self._deadline_s)

    def close(self) -> None:
        """Drop the connection."""
        self._late = self._silent = 0
        self._due.clear()
        self._link.close()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Give up the connection after an error, and name the error ours."""
        errors = self._link.errors
        try:
            yield
        except errors.TimeoutError as exc:
            self.close()
            raise StoreTimeout(self._deadline_s) from exc
        except StoreError:
            self.close()
            raise
        except (errors.RedisError, OSError) as exc:
            self.close()
            raise StoreError(f"the store failed: {words_of(exc)}") from exc


class ClusterLine(Line):
    """
    A line to a cluster, where each command waits for those sent before.

    Args:
        store: The cluster; closed with this.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._replies: list[Any] = []

    @property
    def opened(self) -> int:
        """Not known."""
        return 0

    @property
    def awaited(self) -> int:
        """Count the replies that were not handed out."""
        return len(self._replies)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands, each to its node, and wait for the replies."""
        self._replies += self._store.flush([], beside=commands)[1]

    def collect(self, wait_s: float) -> list[Any]:
        """Hand out the replies; they are there."""
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """Drop all connections."""
        self._replies = []
        self._store.close()
