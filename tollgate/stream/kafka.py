"""
Consume events from Kafka, by librdkafka's consumer group protocol; produce them.

Offsets are committed explicitly, after the batch is applied. A rebalance happens only
inside a poll, when no batch is in progress, so no partition is ever taken from a
consumer that is in the middle of a batch of it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tollgate.errors import InputError, StoreError
from tollgate.stream.source import DeadLetter, Message

# Measure how far a Kafka consumer is from the end of its partitions.
#
# librdkafka reports the end only as of the last reply of a broker, and not the time of
# that reply: a feed whose brokers are unavailable would look quiet. So this module
# queries the ends, and a partition is caught up to the moment of the query when it has
# been read that far.

_COUNT_EVERY_S = 60.0  # partitions are added rarely
# A cluster that does not reply gets no queries for a while, twice as long each time:
# waiting for it would delay the events of other brokers.
_AWAY_S, _MOST_AWAY_S = 1.0, 10.0
_ENDS_TIMEOUT_S = 1.0
_LATEST, _EARLIEST = -1, -2  # as times: the ends of the log (Kafka's ListOffsets)


class KafkaEnds:
    """
    Track the ends of the partitions that one consumer holds.

    Args:
        consumer: A confluent_kafka.Consumer; queried between its polls.
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
        with self._mapped_errors():
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
        with self._mapped_errors():
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
            committed = self._consumer.committed(
                self._at(still, 0), timeout=_ENDS_TIMEOUT_S
            )
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
            found = self._consumer.list_topics(self._topic, timeout=_ENDS_TIMEOUT_S)
            self.partitions = len(found.topics[self._topic].partitions)
            self._count_at_s = time.monotonic() + _COUNT_EVERY_S

    def _offsets(self, partitions: list[int], at_time: int) -> dict[int, int]:
        if not partitions:
            return {}
        found = self._consumer.offsets_for_times(
            self._at(partitions, at_time), timeout=_ENDS_TIMEOUT_S
        )
        return {one.partition: one.offset for one in found if one.error is None}

    def _at(self, partitions: list[int], offset: int) -> list[Any]:
        make = self._kafka.TopicPartition
        return [make(self._topic, partition, offset) for partition in partitions]

    @contextlib.contextmanager
    def _mapped_errors(self) -> Iterator[None]:
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


def _produce(
    producer: Any,
    topic: str,
    messages: Iterable[tuple[bytes, dict[str, Any]]],
    *,
    timeout_s: float,
) -> str:
    """
    Produce messages and wait for their acknowledgements.

    Args:
        messages: Bytes of each, and its key or headers.

    Returns:
        The reason why some are not stored; empty if all are.
    """
    failed: list[str] = []

    def on_delivery(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error.str())

    for value, options in messages:
        while True:
            try:
                producer.produce(topic, value, on_delivery=on_delivery, **options)
            except BufferError:  # its queue is full: give it time to send
                producer.poll(0.1)
            else:
                break
    left = producer.flush(timeout_s)
    return failed[0] if failed else "no acknowledgement in time" if left else ""


log = logging.getLogger(__name__)

DEAD_LETTERS_SUFFIX = ".dead-letters"
_TIMEOUT_S = 10.0
_FEED_TIMEOUT_S = 30.0
# Settings that this module requires; a file of settings must not change them.
_FIXED = ("enable.auto.commit", "enable.auto.offset.store", "group.id")


class KafkaSource:
    """
    Consume a share of a topic, as one consumer of a group.

    Args:
        brokers: host:port, joined by commas.
        topic: Events, keyed by one entity so that its events stay in order.
        group: Consumer group; a new group starts at the earliest event.
        settings: librdkafka's own, such as TLS and SASL.
        now_us: The wall clock, µs since the epoch.

    Raises:
        InputError: A setting is unknown, wrong, or required by this module.
    """

    def __init__(
        self,
        brokers: str,
        *,
        topic: str,
        group: str,
        settings: Mapping[str, Any],
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        import confluent_kafka as kafka

        for name in _FIXED:
            if name in settings:
                raise InputError("kafka settings", "is set by Tollgate", where=name)
        shared = {"bootstrap.servers": brokers, **settings}
        self._kafka: Any = kafka
        self.name = topic
        self._held = 0
        self._polled: dict[tuple[str, int], int] = {}
        try:
            self._consumer: Any = kafka.Consumer(
                {
                    "auto.offset.reset": "earliest",
                    "partition.assignment.strategy": "cooperative-sticky",
                    **shared,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                },
                logger=log,
            )
            self._producer: Any = kafka.Producer(
                {**shared, "enable.idempotence": True}, logger=log
            )
        except (kafka.KafkaException, ValueError, TypeError) as exc:
            raise InputError("kafka settings", describe_error(exc)) from exc
        self._consumer.subscribe([topic])
        self._ends = KafkaEnds(self._consumer, topic, now_us=now_us)

    def poll(self, *, most: int, wait_s: float) -> Sequence[Message]:
        """
        Return up to `most` messages.

        Raises:
            StoreError: The cluster refused: the topic or the rights to it are missing.
        """
        try:
            found = self._consumer.consume(num_messages=most, timeout=wait_s)
        except self._kafka.KafkaException as exc:
            raise StoreError(f"the feed cannot be read: {describe_error(exc)}") from exc
        messages = []
        for one in found:
            if one.error() is not None:
                self._judge(one.error())
                continue
            at = (one.topic(), one.partition())
            self._polled[at] = one.offset() + 1
            position = f"{at[0]}[{at[1]}]@{one.offset()}"
            messages.append(Message(one.value() or b"", position, at[1]))
        return messages

    def add_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Produce messages to the topic of dead letters, acknowledged by all."""
        messages = []
        for one in letters:
            headers = {"reason": one.reason, "position": one.message.position}
            messages.append((one.message.value, {"headers": headers}))
        topic = self.name + DEAD_LETTERS_SUFFIX
        if why := _produce(self._producer, topic, messages, timeout_s=_TIMEOUT_S):
            raise StoreError(f"dead letters cannot be written: {why}")

    def commit(self) -> None:
        """
        Commit the offsets of the polled messages.

        A commit that comes too late, after another consumer took the partition over, is
        no error: that consumer applies the same events again, without effect.
        """
        if not self._polled:
            return
        offsets = [
            self._kafka.TopicPartition(topic, partition, offset)
            for (topic, partition), offset in self._polled.items()
        ]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._kafka.KafkaException as exc:
            log.warning("offsets are not committed: %s", describe_error(exc))
        self._polled = {}

    def backlog(self) -> int:
        """
        Count the events not polled yet in the partitions held.

        Raises:
            StoreError: The cluster does not reply.
        """
        waiting, self._held = self._ends.backlog()
        return waiting

    def partitions(self) -> int:
        """Return the number of partitions held at the last count of the backlog."""
        return self._held

    def partition_count(self) -> int:
        """Return the number of the topic's partitions, as the cluster last reported."""
        return self._ends.partitions

    def caught_up(self) -> Mapping[int, int]:
        """
        Return the time up to which each partition held was polled to its end.

        Raises:
            StoreError: The cluster does not reply.
        """
        return self._ends.caught_up()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _judge(self, error: Any) -> None:
        """Log errors from which librdkafka recovers; raise the others."""
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            return
        if error.retriable() or error.code() in (
            self._kafka.KafkaError._ALL_BROKERS_DOWN,
            self._kafka.KafkaError._TRANSPORT,
            self._kafka.KafkaError._RESOLVE,
            self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
        ):
            log.warning("the feed: %s", error.str())
            return
        raise StoreError(f"the feed cannot be read: {error.str()}")


class KafkaFeed:
    """
    Send events to a Kafka topic.

    Args:
        brokers: host:port, joined by commas.
        topic: Topic to write to; it must exist, or the cluster must create it.
        settings: librdkafka's own, such as TLS and SASL.
    """

    def __init__(
        self, brokers: str, *, topic: str, settings: Mapping[str, Any]
    ) -> None:
        import confluent_kafka as kafka

        self._topic = topic
        try:
            self._producer: Any = kafka.Producer(
                {
                    "bootstrap.servers": brokers,
                    "linger.ms": 20,
                    **settings,
                    "enable.idempotence": True,
                }
            )
        except (kafka.KafkaException, ValueError, TypeError) as exc:
            raise InputError("kafka settings", str(exc)) from exc

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """Produce events and wait for their acknowledgements."""
        keyed = ((event, {"key": key}) for key, event in zip(keys, events, strict=True))
        if why := _produce(
            self._producer, self._topic, keyed, timeout_s=_FEED_TIMEOUT_S
        ):
            raise StoreError(f"the feed cannot be written: {why}")

    def close(self) -> None:
        """Do nothing: every send was flushed."""
