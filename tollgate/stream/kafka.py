"""
Consume events from Kafka, by librdkafka's consumer group protocol.

Offsets are committed explicitly, after the batch is applied. A rebalance happens only
inside a poll, when no batch is in progress, so no partition is ever taken from a
consumer that is in the middle of a batch of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tollgate.errors import InputError, StoreError
from tollgate.stream.kafka_ends import KafkaEnds, describe_error
from tollgate.stream.source import Buried, Message

log = logging.getLogger(__name__)

DEAD_LETTERS_SUFFIX = ".dead-letters"
_TIMEOUT_S = 10.0
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

    Attributes:
        name: Name of the topic.

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

    def bury(self, buried: Sequence[Buried]) -> None:
        """Produce messages to the topic of dead letters, acknowledged by all."""
        failed: list[str] = []

        def on_delivery(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error.str())

        for one in buried:
            headers = {"reason": one.reason, "position": one.message.position}
            self._produce(one.message.value, headers, on_delivery)
        left = self._producer.flush(_TIMEOUT_S)
        if left or failed:
            why = failed[0] if failed else "no acknowledgement in time"
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

    def _produce(self, value: bytes, headers: dict[str, str], on_delivery: Any) -> None:
        topic = self.name + DEAD_LETTERS_SUFFIX
        while True:
            try:
                self._producer.produce(
                    topic, value, headers=dict(headers), on_delivery=on_delivery
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

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
