"""
Send commands to Redis without waiting for earlier replies; read replies as they come.

A command that is sent has reached the store's machine, whatever happens to the sender.
Each call of a batch needs a reply; records only need to arrive (docs/journal.md).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tollgate.errors import StoreError, StoreLost, StoreTimeout
from tollgate.store.redis.cluster_store import ClusterStore, open_store
from tollgate.store.redis.redis_store import Command, Connection, describe_error
from tollgate.store.redis.store_address import Address, read_address

# One connection to one Redis that sends commands without waiting for replies.


class PipelineConnection(Connection):
    """
    Send commands over a connection before earlier replies have come.

    Args:
        address: A single Redis.

    Raises:
        InputError: A file of TLS cannot be used.
    """

    _broken: StoreError | None = None  # raised after the replies before it are read

    def post(self, commands: Sequence[Command], until_s: float) -> None:
        """
        Send commands after those without a reply; open the connection if necessary.

        Raises:
            StoreLost: The connection broke while sending.
            RedisError, OSError: No connection could be opened, and nothing was sent.
        """
        packed = self._pack(commands)
        self.open(until_s)
        try:
            self._send_whole(packed, until_s)
        except self.errors.TimeoutError:
            raise
        except (self.errors.ConnectionError, OSError) as exc:
            raise StoreLost(describe_error(exc)) from exc
        self._owed += len(commands)

    def arrived(self, wait_s: float, *, until_s: float) -> list[Any]:
        """
        Return the replies that have come; if there are none, wait for the first.

        Args:
            wait_s: Longest wait.
            until_s: Deadline for the rest of a reply of which a part has come.

        Raises:
            StoreLost: The connection broke, and nothing is left to read.
        """
        replies: list[Any] = []
        try:
            while self._owed and self._broken is None:
                if not self.readable(0 if replies else wait_s):
                    break
                replies.append(self._reply(until_s))
        except (self.errors.ConnectionError, OSError) as exc:
            self._broken = StoreLost(describe_error(exc))
        except StoreError as exc:
            self._broken = exc
        if not replies and self._broken is not None:
            raise self._broken
        return replies

    def close(self) -> None:
        """Drop the connection."""
        self._broken = None
        super().close()


_MOST_SILENT = 4  # deadlines in a row; a disk that syncs holds Redis up for 2 s


class CommandPipeline(ABC):
    """Send commands to one Redis or cluster without waiting for each reply."""

    @property
    @abstractmethod
    def opened(self) -> int:
        """
        Return the number of connections so far; 0 in a cluster, which does not count.
        """

    @property
    @abstractmethod
    def awaited(self) -> int:
        """Return the number of replies still to come, also of commands given up."""

    @abstractmethod
    def send(self, commands: Sequence[Command]) -> None:
        """
        Send commands after those already sent.

        Raises:
            StoreLost: The connection broke; the outcome of commands without a reply is
                unknown.
            StoreError: Likewise, or there is no connection.
        """

    @abstractmethod
    def collect(self, wait_s: float) -> list[Any]:
        """
        Return the replies that have come; if there are none, wait for the first.

        Returns:
            The replies, in the order of the commands; an error reply is one of them.

        Raises:
            StoreTimeout: The oldest reply is late. Replies may still come; this error
                is raised once for all commands sent so far.
            StoreError: The connection broke; the outcome of commands without a reply is
                unknown.
        """

    @abstractmethod
    def close(self) -> None:
        """Drop the connection; the next commands open a new one."""


def open_pipeline(url: str, *, deadline_s: float) -> CommandPipeline:
    """
    Open a line to an address, either one Redis or a cluster.

    Args:
        url: docs/store.md, "Addresses".
        deadline_s: Longest wait for a reply, connecting included.

    Raises:
        InputError: The address is invalid, or a file of TLS cannot be used.
    """
    store = open_store(url, deadline_s=deadline_s)
    if isinstance(store, ClusterStore):
        return ClusterPipeline(store)
    return RedisPipeline(read_address(url), deadline_s=deadline_s)


class RedisPipeline(CommandPipeline):
    """
    Send commands to one Redis.

    Args:
        address: Address of the Redis.
        deadline_s: Longest wait for a reply, connecting included.
    """

    def __init__(self, address: Address, *, deadline_s: float) -> None:
        self._link = PipelineConnection(address)
        self._deadline_s = deadline_s
        self._late = 0  # late replies; they come before those that are due
        self._due: deque[tuple[float, int]] = deque()  # deadline, and number of replies
        self._silent = 0  # consecutive deadlines without any reply

    @property
    def opened(self) -> int:
        """Return the number of connections so far."""
        return self._link.opened

    @property
    def awaited(self) -> int:
        """Return the number of replies still to come."""
        return self._late + sum(count for _, count in self._due)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands after those already sent."""
        until_s = time.monotonic() + self._deadline_s
        with self._mapped():
            self._link.post(commands, until_s)
        self._due.append((until_s, len(commands)))

    def collect(self, wait_s: float) -> list[Any]:
        """Return the replies that have come; if there are none, wait for the first."""
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
            # Judged by the clock before the wait: a thread that got no CPU is not late.
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
        """Mark all pending replies as late; drop the connection to a silent store."""
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
        """Drop the connection after an error, and raise it as one of our errors."""
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
            raise StoreError(f"the store failed: {describe_error(exc)}") from exc


class ClusterPipeline(CommandPipeline):
    """
    Send commands to a cluster; each `send` waits for all of its replies.

    Args:
        store: The cluster; closed with this object.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._replies: list[Any] = []

    @property
    def opened(self) -> int:
        """Return 0: a cluster does not count its connections."""
        return 0

    @property
    def awaited(self) -> int:
        """Return the number of replies that `collect` has not returned yet."""
        return len(self._replies)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands, each to its node, and wait for the replies."""
        self._replies += self._store.flush([], extra_commands=commands)[1]

    def collect(self, wait_s: float) -> list[Any]:
        """Return the replies; they have already come."""
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """Drop all connections."""
        self._replies = []
        self._store.close()
