"""Fill and read the lists: plain commands on the sets of `tollgate.store.id_lists`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tollgate.errors import InputError, StoreError
from tollgate.schema import MAX_ID_BYTES
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.redis.cluster_nodes import Nodes
from tollgate.store.redis.store_address import open_client, read_address

_IDS_AT_ONCE = 1_000  # ids per command: others do not wait long behind it
_SCANNED_AT_ONCE = b"1000"

Run = Callable[[tuple[Any, ...]], Any]


class ListStore:
    """
    Access the lists of a store, either one Redis or a cluster.

    Args:
        url: docs/store.md, "Addresses".
        timeout_s: Timeout of one command.

    Raises:
        InputError: The address is invalid.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        address = read_address(url)
        self._close: Callable[[], None]
        self._run: Run
        if address.cluster:
            nodes = Nodes(address, deadline_s=timeout_s, rules=BreakerRules())
            self._run = lambda command: nodes.run(
                [command], time.monotonic() + timeout_s
            )[0]
            self._close = nodes.close
        else:
            client = open_client(url, timeout_s=timeout_s)
            self._run = lambda command: client.execute_command(*command)
            self._close = client.close

    def add(self, key: bytes, ids: Iterable[bytes]) -> int:
        """Add ids to a list; return how many are new."""
        return self._change(b"SADD", key, ids)

    def remove(self, key: bytes, ids: Iterable[bytes]) -> int:
        """Remove ids from a list; return how many it contained."""
        return self._change(b"SREM", key, ids)

    def size(self, key: bytes) -> int:
        """Return the number of ids of a list."""
        return int(self._execute((b"SCARD", key)))

    def holds(self, key: bytes, ids: list[bytes]) -> list[bool]:
        """Return which ids a list contains."""
        return [bool(one) for one in self._execute((b"SMISMEMBER", key, *ids))]

    def members(self, key: bytes) -> Iterator[bytes]:
        """List the ids, each once, in no order; this does not block the store."""
        cursor, seen = b"0", set[bytes]()
        while True:
            command = (b"SSCAN", key, cursor, b"COUNT", _SCANNED_AT_ONCE)
            cursor, found = self._execute(command)
            for one in found:
                if one not in seen:
                    seen.add(one)
                    yield one
            if int(cursor) == 0:
                return

    def close(self) -> None:
        """Close the connections."""
        self._close()

    def _change(self, name: bytes, key: bytes, ids: Iterable[bytes]) -> int:
        wanted = list(dict.fromkeys(ids))
        for one in wanted:
            if not 0 < len(one) <= MAX_ID_BYTES:
                problem = f"{one[:40]!r} is not of 1 to {MAX_ID_BYTES} bytes"
                raise InputError("id", problem)
        return sum(
            int(self._execute((name, key, *wanted[at : at + _IDS_AT_ONCE])))
            for at in range(0, len(wanted), _IDS_AT_ONCE)
        )

    def _execute(self, command: tuple[Any, ...]) -> Any:
        import redis

        try:
            found = self._run(command)
        except redis.RedisError as exc:
            raise StoreError(f"the store did not answer: {exc}") from exc
        if isinstance(found, StoreError):
            raise found
        if isinstance(found, Exception):
            raise StoreError(f"the store refused: {found}") from found
        return found
