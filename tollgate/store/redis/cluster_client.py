"""Open a redis-py client for any store address: one Redis, or a cluster."""

from __future__ import annotations

import time
from typing import Any

import redis

from tollgate.errors import StoreError
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.redis.cluster_nodes import Nodes
from tollgate.store.redis.store_address import Address, open_client, read_address


def open_any_client(url: str, *, timeout_s: float) -> Any:
    """
    Open a client for commands of one key each.

    Args:
        url: docs/store.md, "Addresses".
        timeout_s: Timeout of one command, in addition to the time for which the command
            itself blocks.

    Raises:
        InputError: The address is invalid.
    """
    address = read_address(url)
    if address.cluster:
        return ClusterClient(address, timeout_s=timeout_s)
    return open_client(url, timeout_s=timeout_s)


class ClusterClient(redis.Redis):
    """
    Run redis-py's commands over the store's own connections to a cluster.

    Args:
        address: Address of a cluster.
        timeout_s: Timeout of one command.
    """

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        super().__init__(protocol=2)  # for parsing replies; it never connects
        self._nodes = Nodes(address, deadline_s=timeout_s, rules=BreakerRules())
        self._timeout_s = timeout_s

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """
        Run a command of one key on the node that holds the key.

        Raises:
            RedisError: The node refused, or did not reply.
        """
        name = args[0]
        rest = [one.encode() if isinstance(one, str) else one for one in args[1:]]
        command = (*name.encode().split(), *rest)
        blocks_s = 0.0
        if b"BLOCK" in command:
            blocks_s = int(command[command.index(b"BLOCK") + 1]) / 1e3
        until_s = time.monotonic() + self._timeout_s + blocks_s
        (reply,) = self._nodes.run([command], until_s)
        if isinstance(reply, StoreError):
            raise redis.ConnectionError(str(reply)) from reply
        if isinstance(reply, Exception):
            raise reply
        callbacks: Any = self.response_callbacks
        read = callbacks.get(name)
        return read(reply, **options) if read else reply

    def close(self) -> None:
        """Drop all connections."""
        self._nodes.close()
        super().close()
