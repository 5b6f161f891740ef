"""One connection to one Redis that sends commands without waiting for replies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tollgate.errors import StoreError, StoreLost
from tollgate.store.connection import Command, Connection
from tollgate.store.wording import describe_error


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
        packed = b"".join(map(self._pack, commands))
        self.open(until_s)
        try:
            # One system call: each of those that sendall with a timeout needs releases
            # the interpreter first, for up to 5 ms in a busy step.
            sent = 0 if self.secure else _written(self.fileno(), packed)
            if sent < len(packed):
                self._send_whole([packed[sent:]], until_s)
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
                if not self._connection.can_read(0 if replies else wait_s):
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


def _written(number: int, content: bytes) -> int:
    """Write as much as a socket takes at once; return the number of bytes."""
    try:
        return os.write(number, content)
    except BlockingIOError:
        return 0
