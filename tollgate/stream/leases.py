"""Lease the partitions of a Redis feed: each belongs to one consumer at a time."""

from __future__ import annotations

import math
import uuid
from typing import Any

# Longer leases make a takeover slower, shorter ones cost round trips. A lease that was
# lost unnoticed does no harm: events are idempotent.
LEASE_S = 5.0
_RENEWALS = 3  # renewals within one lease

_RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class Leases:
    """
    Lease partitions for one consumer of a group.

    Live consumers are listed in a sorted set that each of them refreshes; each takes no
    more than its equal share, rounded up, so a new consumer finds free ones.

    Args:
        redis: A redis-py client that returns bytes.
        prefix: Prefix of the keys used here.
        partitions: Number of partitions.
        lease_s: Time for which a partition stays with a silent consumer.
    """

    def __init__(
        self, redis: Any, prefix: str, *, partitions: int, lease_s: float = LEASE_S
    ) -> None:
        self._redis = redis
        self._members = f"{prefix}:consumers"
        self._keys = [f"{prefix}:lease:{number}" for number in range(partitions)]
        self._lease_s = lease_s
        self._me = uuid.uuid4().hex
        self._renew = redis.register_script(_RENEW)
        self._release = redis.register_script(_RELEASE)
        self._next_s = -math.inf
        self.held: list[int] = []

    def refresh(self, *, now_s: float) -> list[int]:
        """
        Renew held leases, release those beyond the share, take free ones.

        It may be called often: it queries Redis three times per lease.

        Args:
            now_s: A clock that only goes forward.

        Returns:
            Partitions that are new since the last call.
        """
        if now_s < self._next_s:
            return []
        self._next_s = now_s + self._lease_s / _RENEWALS
        lease_ms = int(self._lease_s * 1e3)
        share = math.ceil(len(self._keys) / self._living(lease_ms))
        renewed: list[int] = []
        for number in self.held:
            if len(renewed) < share:
                if self._renew(keys=[self._keys[number]], args=[self._me, lease_ms]):
                    renewed.append(number)
            else:
                self._release(keys=[self._keys[number]], args=[self._me])
        taken: list[int] = []
        for number, key in enumerate(self._keys):
            if len(renewed) + len(taken) >= share:
                break
            if number in renewed or number in self.held:
                continue
            if self._redis.set(key, self._me, nx=True, px=lease_ms):
                taken.append(number)
        self.held = sorted(renewed + taken)
        return taken

    def drop(self) -> None:
        """Release all leases."""
        for number in self.held:
            self._release(keys=[self._keys[number]], args=[self._me])
        self._redis.zrem(self._members, self._me)
        self.held = []

    def _living(self, lease_ms: int) -> int:
        """Register this consumer as alive, and count the live ones."""
        seconds, micros = self._redis.time()  # one clock for all of them
        now_ms = seconds * 1000 + micros // 1000
        pipe = self._redis.pipeline(transaction=False)
        pipe.zadd(self._members, {self._me: now_ms})
        pipe.zremrangebyscore(self._members, "-inf", now_ms - lease_ms)
        pipe.zcard(self._members)
        return int(pipe.execute()[-1])
