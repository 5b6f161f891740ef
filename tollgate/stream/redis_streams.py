"""
Consume events from Redis Streams, and produce them.

A feed is one or more streams, its partitions, named `FEED:0`, `FEED:1`, …; a producer
puts all events of one entity into one of them (`partition_of`). Within a consumer group
a partition belongs to one consumer at a time, always under the same consumer name, so
the events that a dead consumer left unacknowledged go to the next one.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tollgate.errors import InputError, StoreError
from tollgate.store.redis.redis_store import redis_errors
from tollgate.store.redis.store_address import open_client
from tollgate.stream.redis_group import StreamGroup
from tollgate.stream.source import DeadLetter, Message

# Lease the partitions of a Redis feed: each belongs to one consumer at a time.

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
        Renew leases, release those beyond the share; take free ones and return them.

        It may be called often: it queries Redis three times per lease.

        Args:
            now_s: A clock that only goes forward.
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


FIELD = b"event"  # field of a stream entry with the event's JSON
DEAD_LETTERS = "dead-letters"
MAX_DEAD_LETTERS = 1_000_000  # the oldest are removed first
RETAIN_S = 86_400.0  # applied events stay for other readers of the feed

_TIDY_S = 60.0
_ANSWER_S = 5.0
_FEED_ANSWER_S = 30.0
_CONSUMER = "tollgate"
_NEW, _OURS = b">", b"0"


def partition_of(key: bytes, *, partitions: int) -> int:
    """Return the partition of an entity's events."""
    return zlib.crc32(key) % partitions


def stream_name(feed: str, partition: int) -> str:
    """Return the stream name of a partition."""
    return f"{feed}:{partition}"


class RedisSource:
    """
    Consume a share of a feed, as one consumer of a group.

    Args:
        url: redis://, rediss:// or unix:// address.
        feed: Prefix of the partitions' stream names.
        group: Consumer group; created on first use, reading from the beginning.
        partitions: Number of streams; the same for all users of the feed.
        retain_s: Time for which events stay in the stream after production; events
            that are not applied yet stay in any case. None never removes any.
        lease_s: Time after which other consumers take the partitions of a dead one.
        now_us: The wall clock, µs since the epoch.

    Raises:
        InputError: The address is not one of Redis, or there are no partitions.
    """

    def __init__(
        self,
        url: str,
        *,
        feed: str,
        group: str,
        partitions: int = 1,
        retain_s: float | None = RETAIN_S,
        lease_s: float = LEASE_S,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        if partitions < 1:
            raise InputError("partitions", f"{partitions} is not 1 or more")
        self._redis: Any = open_client(url, timeout_s=_ANSWER_S)
        self.name = feed
        self._now_us = now_us
        self._group = group
        self._members = StreamGroup(self._redis, group)
        self._retain_s = retain_s
        self._streams = [stream_name(feed, number) for number in range(partitions)]
        self._dead = f"{feed}:{DEAD_LETTERS}"
        self._leases = Leases(
            self._redis, f"{feed}:{group}", partitions=partitions, lease_s=lease_s
        )
        self._recovering: dict[int, bytes] = {}  # partition -> entry read last
        self._polled: dict[str, list[bytes]] = {}
        self._ended_us: dict[int, int] = {}  # partition -> time of reaching its end
        self._tidy_at_s = time.monotonic() + _TIDY_S

    def poll(self, *, most: int, wait_s: float) -> Sequence[Message]:
        """
        Return up to `most` messages, those that a dead consumer left first.

        Raises:
            StoreError: Redis did not reply.
        """
        with redis_errors("the feed cannot be read"):
            for number in self._leases.refresh(now_s=time.monotonic()):
                self._members.make(self._streams[number])
                self._recovering[number] = _OURS
            self._recovering = {
                number: at
                for number, at in self._recovering.items()
                if number in self._leases.held
            }
            found = self._left_over(most) or self._new(most, wait_s)
        return found

    def add_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Append messages to the stream of dead letters."""
        pipe = self._redis.pipeline(transaction=False)
        for one in letters:
            entry = {
                FIELD: one.message.value,
                b"reason": one.reason.encode(),
                b"position": one.message.position.encode(),
            }
            pipe.xadd(self._dead, entry, maxlen=MAX_DEAD_LETTERS, approximate=True)
        self._run(pipe)

    def commit(self) -> None:
        """Acknowledge the polled messages."""
        pipe = self._redis.pipeline(transaction=False)
        for stream, ids in self._polled.items():
            pipe.xack(stream, self._group, *ids)
        self._run(pipe)
        self._polled = {}
        if time.monotonic() >= self._tidy_at_s:
            self._tidy_at_s = time.monotonic() + _TIDY_S
            self._tidy()

    def backlog(self) -> int:
        """Count the events that are not acknowledged in the partitions held."""
        held = [self._streams[number] for number in self._leases.held]
        with redis_errors("the feed cannot be read"):
            return sum(self._members.backlog(stream) for stream in held)

    def partitions(self) -> int:
        """Return the number of partitions held."""
        return len(self._leases.held)

    def partition_count(self) -> int:
        """Return the number of the feed's partitions."""
        return len(self._streams)

    def caught_up(self) -> Mapping[int, int]:
        """Return the time up to which each partition held was read to its end."""
        return {
            number: self._ended_us[number]
            for number in self._leases.held
            if number in self._ended_us
        }

    def close(self) -> None:
        """Release the partitions."""
        # Leases that cannot be released expire.
        with contextlib.suppress(StoreError), redis_errors("leases are not released"):
            self._leases.drop()
        self._redis.close()

    def _left_over(self, most: int) -> list[Message]:
        """Read events that were delivered before and never acknowledged."""
        for number, after in list(self._recovering.items()):
            found = self._read({self._streams[number]: after}, most=most, block_ms=None)
            if found:
                self._recovering[number] = self._polled[self._streams[number]][-1]
                return found
            del self._recovering[number]
        return []

    def _new(self, most: int, wait_s: float) -> list[Message]:
        if not self._leases.held:
            time.sleep(min(wait_s, 0.1))
            return []
        held = self._leases.held
        wanted = {self._streams[number]: _NEW for number in held}
        # Redis counts per stream, and all that is read must fit one batch.
        share = max(1, most // len(wanted))
        asked_us = self._now_us()
        found = self._read(wanted, most=share, block_ms=max(1, int(wait_s * 1e3)))
        came = Counter(message.partition for message in found)
        # A stream that returned less than its share had no more at the time of the
        # query.
        self._ended_us |= {number: asked_us for number in held if came[number] < share}
        return found

    def _read(
        self, wanted: dict[str, bytes], *, most: int, block_ms: int | None
    ) -> list[Message]:
        reply = self._redis.xreadgroup(
            self._group, _CONSUMER, wanted, count=most, block=block_ms
        )
        messages = []
        numbers = {stream: number for number, stream in enumerate(self._streams)}
        for name, entries in _streams_of(reply):
            if not entries:  # no unacknowledged event is left
                continue
            stream = name.decode()
            self._polled.setdefault(stream, []).extend(at for at, _ in entries)
            for at, fields in entries:
                # An entry that was deleted while it was pending has no fields.
                value = (fields or {}).get(FIELD, b"")
                position = f"{stream}/{at.decode()}"
                messages.append(Message(value, position, numbers[stream]))
        return messages

    def _tidy(self) -> None:
        """
        Remove events older than `retain_s`, but no pending ones.

        Also schedule another read of unacknowledged events: a consumer that lost its
        lease unnoticed may have died with them.
        """
        self._recovering = dict.fromkeys(self._leases.held, _OURS)
        if self._retain_s is None:
            return
        before_ms = int((time.time() - self._retain_s) * 1e3)
        with redis_errors("the feed cannot be trimmed"):
            for number in self._leases.held:
                self._members.trim(self._streams[number], before_ms=before_ms)

    def _run(self, pipe: Any) -> None:
        with redis_errors("the feed cannot be written"):
            pipe.execute()


def _streams_of(reply: Any) -> list[tuple[bytes, list[tuple[bytes, Any]]]]:
    """Parse a reply of XREADGROUP, which RESP 3 returns as a map."""
    if isinstance(reply, dict):
        return [(name, entries[0]) for name, entries in reply.items()]
    return list(reply or [])


class RedisFeed:
    """
    Send events to Redis Streams.

    Args:
        url: redis://, rediss:// or unix:// address.
        feed: Prefix of the partitions' stream names.
        partitions: Number of streams; the same for all users of the feed.
    """

    def __init__(self, url: str, *, feed: str, partitions: int = 1) -> None:
        self._redis: Any = open_client(url, timeout_s=_FEED_ANSWER_S)
        self._feed = feed
        self._partitions = partitions

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """Append events to their partitions."""
        pipe = self._redis.pipeline(transaction=False)
        for key, event in zip(keys, events, strict=True):
            number = partition_of(key, partitions=self._partitions)
            pipe.xadd(stream_name(self._feed, number), {FIELD: event})
        with redis_errors("the feed cannot be written"):
            pipe.execute()

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()
