"""
Measure how far a Kafka consumer is from the end of its partitions.

librdkafka reports the end only as of the last reply of a broker, and not the time of
that reply: a feed whose brokers are unavailable would look quiet. So this module
queries the ends, and a partition is caught up to the moment of the query when it has
been read that far.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tollgate.errors import StoreError

_COUNT_EVERY_S = 60.0  # partitions are added rarely
# A cluster that does not reply gets no queries for a while, twice as long each time:
# waiting for it would delay the events of other brokers.
_AWAY_S, _MOST_AWAY_S = 1.0, 10.0
_TIMEOUT_S = 1.0
_LATEST, _EARLIEST = -1, -2  # as times: the ends of the log (Kafka's ListOffsets)


class KafkaEnds:
    """
    Track the ends of the partitions that one consumer holds.

    Args:
        consumer: A confluent_kafka.Consumer; queried between its polls.
        topic: Its topic.
        now_us: The wall clock, µs since the epoch.
    """

    def __init__(self, consumer: Any, topic: str, *, now_us: Callable[[], int]) -> None:
        import confluent_kafka as kafka

        self._kafka: Any = kafka
        self._consumer = consumer
        self._topic = topic
        self._now_us = now_us
        self._goals: dict[int, tuple[int, int]] = {}  # end, time of the query
        self._reached_us: dict[int, int] = {}
        self._away_until_s = self._count_at_s = 0.0
        self._away_s = _AWAY_S
        self.partitions = 0

    def backlog(self) -> tuple[int, int]:
        """
        Count the events not polled yet, and the partitions held.

        Raises:
            StoreError: The cluster does not reply.
        """
        with self._asking():
            held = self._held()
            places = self._places(held)
            ends = self._offsets(held, _LATEST)
        waiting = (ends[at] - places[at] for at in ends.keys() & places.keys())
        return sum(max(0, one) for one in waiting), len(held)

    def caught_up(self) -> Mapping[int, int]:
        """
        Return the time up to which each partition held has been polled to its end.

        Call it about once a second. An end that is not reached yet stays the goal until
        it is reached, however many events come after it.

        Raises:
            StoreError: The cluster does not reply.
        """
        with self._asking():
            held = self._held()
            places = self._places(held)
            self._note_reached(places)
            self._count()
            asked_us = self._now_us()
            wanted = [at for at in held if at not in self._goals]
            for at, end in self._offsets(wanted, _LATEST).items():
                self._goals[at] = end, asked_us
            self._note_reached(places)
        return {at: self._reached_us[at] for at in held if at in self._reached_us}

    def _note_reached(self, places: Mapping[int, int]) -> None:
        """Compare the positions with the ends that were queried."""
        for at, place in places.items():
            if at in self._goals and place >= self._goals[at][0]:
                self._reached_us[at] = self._goals.pop(at)[1]

    def _held(self) -> list[int]:
        return [one.partition for one in self._consumer.assignment()]

    def _places(self, held: list[int]) -> dict[int, int]:
        """Find the next event of each partition, also where none was polled yet."""
        found = self._consumer.position(self._at(held, 0))
        places = {one.partition: one.offset for one in found if one.offset >= 0}
        if still := [at for at in held if at not in places]:
            committed = self._consumer.committed(self._at(still, 0), timeout=_TIMEOUT_S)
            places |= {
                one.partition: one.offset
                for one in committed
                if one.error is None and one.offset >= 0
            }
            fresh = [at for at in still if at not in places]
            places |= self._offsets(fresh, _EARLIEST)
        return places

    def _count(self) -> None:
        """Count the topic's partitions now and then."""
        if time.monotonic() >= self._count_at_s:
            found = self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S)
            self.partitions = len(found.topics[self._topic].partitions)
            self._count_at_s = time.monotonic() + _COUNT_EVERY_S

    def _offsets(self, partitions: list[int], at_time: int) -> dict[int, int]:
        if not partitions:
            return {}
        found = self._consumer.offsets_for_times(
            self._at(partitions, at_time), timeout=_TIMEOUT_S
        )
        return {one.partition: one.offset for one in found if one.error is None}

    def _at(self, partitions: list[int], offset: int) -> list[Any]:
        make = self._kafka.TopicPartition
        return [make(self._topic, partition, offset) for partition in partitions]

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Map Kafka's errors, and do not query an unavailable cluster for a while."""
        if time.monotonic() < self._away_until_s:
            raise StoreError("the feed did not answer a moment ago")
        try:
            yield
        except self._kafka.KafkaException as exc:
            self._away_until_s = time.monotonic() + self._away_s
            self._away_s = min(2 * self._away_s, _MOST_AWAY_S)
            raise StoreError(f"the feed cannot be read: {describe_error(exc)}") from exc
        self._away_s = _AWAY_S


def describe_error(error: BaseException) -> str:
    """Describe an error of librdkafka in one line."""
    inner = error.args[0] if error.args else error
    text = inner.str() if hasattr(inner, "str") else str(inner)
    return " ".join(text.split())
