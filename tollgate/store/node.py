"""One node of a Redis Cluster, its connection and its circuit breaker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from tollgate.errors import StoreError, StoreTimeout
from tollgate.store.address import Address
from tollgate.store.breaker import BreakerRules, CircuitBreaker
from tollgate.store.connection import Command, Connection
from tollgate.store.prober import Prober
from tollgate.store.wording import describe_error

_MAX_OWED = 1_024  # a node replies to each key separately


class Node:
    """
    Combine a connection to a node with its circuit breaker.

    Args:
        address: Address of the node.
        rules: Rules of the circuit breaker.
        deadline_s: Longest duration of a probe.
        needed: Returns True while the node has slots; a node without any is not probed.
    """

    def __init__(
        self,
        address: Address,
        rules: BreakerRules,
        *,
        deadline_s: float,
        needed: Callable[[], bool],
    ) -> None:
        self._link = Connection(address, max_owed=_MAX_OWED)
        self._deadline_s = deadline_s
        self._needed = needed
        self._breaker = CircuitBreaker(time.monotonic, random.random, rules=rules)
        self._prober = Prober(self._breaker, self._probe)

    @property
    def allowed(self) -> bool:
        """Return True if the node may be called now."""
        return self._breaker.allows()

    @property
    def connected(self) -> bool:
        """
        Return True if the connection is open, so that commands can be sent at once.
        """
        return self._link.is_open

    def fileno(self) -> int:
        """Return the socket's file descriptor, for poll."""
        return self._link.fileno()

    def send(self, commands: Sequence[Command], until_s: float) -> None:
        """
        Send commands; `receive` must follow.

        Raises:
            StoreError: They were not sent, or not all; the circuit breaker counts it.
        """
        self._guarded(lambda: self._link.send(commands, until_s))

    def receive(self, count: int, until_s: float) -> list[Any]:
        """
        Read the replies; errors that the node replied are among them.

        Raises:
            StoreError: They did not come in time, or the connection broke.
        """
        replies: list[Any] = self._guarded(lambda: self._link.receive(count, until_s))
        self._breaker.succeeded()
        return replies

    def close(self) -> None:
        """Stop the prober and close the connection."""
        self._prober.close()
        self._link.close()

    def _guarded(self, work: Callable[[], Any]) -> Any:
        errors = self._link.errors
        try:
            return work()
        except errors.TimeoutError as exc:
            error: StoreError = StoreTimeout(self._deadline_s)
            error.__cause__ = exc
        except StoreError as exc:
            error = exc
        except (errors.RedisError, OSError) as exc:
            error = StoreError(f"a node failed: {describe_error(exc)}")
            error.__cause__ = exc
        if self._breaker.failed():
            self._prober.wake()
        raise error

    def _probe(self) -> bool:
        return not self._needed() or self._link.probe(self._deadline_s)
