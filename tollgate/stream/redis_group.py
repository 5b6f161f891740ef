"""
Read the state of a consumer group on one Redis stream: position and pending events.
"""

from __future__ import annotations

from typing import Any

MOST_COUNTED = 10_000  # unread events that are counted at most, before Redis 7

_UNREAD = "return #redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])"


class StreamGroup:
    """Access a consumer group by a client that returns bytes; raises its errors."""

    def __init__(self, redis: Any, name: str) -> None:
        from redis.exceptions import ResponseError

        self._redis = redis
        self._name = name
        self._refused = ResponseError
        self._unread = redis.register_script(_UNREAD)

    def make(self, stream: str) -> None:
        """Create the group, reading from the beginning, and stream if needed."""
        try:
            self._redis.xgroup_create(stream, self._name, id="0", mkstream=True)
        except self._refused as exc:
            if "BUSYGROUP" not in str(exc):
                raise

    def backlog(self, stream: str) -> int:
        """Count the events that are not acknowledged."""
        group = self._state(stream)
        behind = group.get("lag")  # Redis 7 reports it; with 6.2 a script counts
        if behind is None:
            last = group["last-delivered-id"]
            behind = self._unread(keys=[stream], args=[b"(" + last, MOST_COUNTED])
        return int(group["pending"]) + int(behind)

    def trim(self, stream: str, *, before_ms: int) -> None:
        """Remove events that were produced before a time, but no pending ones."""
        oldest = self._redis.xpending(stream, self._name)["min"]
        if oldest is None:
            oldest = self._state(stream)["last-delivered-id"]
        millis, number = min((before_ms, 0), _id_of(oldest))
        self._redis.xtrim(stream, minid=f"{millis}-{number}", approximate=False)

    def _state(self, stream: str) -> dict[str, Any]:
        for group in self._redis.xinfo_groups(stream):
            if group["name"] == self._name.encode():
                found: dict[str, Any] = group
                return found
        raise self._refused(f"the group {self._name} is gone")


def _id_of(text: bytes) -> tuple[int, int]:
    """Parse an entry's id: milliseconds and a number within them."""
    millis, _, number = text.partition(b"-")
    return int(millis), int(number)
