"""
Events from Kafka, by librdkafka's consumer group protocol.

Offsets are committed by hand, after the batch is applied. A rebalance happens only
inside a poll, when nothing is under way, so no partition is ever taken from a
consumer that is in the middle of a batch of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tollgate.errors import InputError, StoreError
from tollgate.stream.source import Buried, Message

log = logging.getLogger(__name__)

DEAD_LETTERS_SUFFIX = ".dead-letters"
_TIMEOUT_S = 10.0
# Ours by design; a file of settings must not undo them.
_FIXED = ("enable.auto.commit", "enable.auto.offset.store", "group.id")


class KafkaSource:
    """
    A share of a topic, as one consumer of a group.

    Args:
        brokers: host:port, joined by commas.
        topic: Events, keyed by one entity so that its events stay in order.
        group: Consumer group; new ones begin at the earliest event.
        settings: librdkafka's own, such as TLS and SASL.

    Raises:
        InputError: A setting is unknown, wrong, or one of ours.
    """

    def __init__(
        self, brokers: str, *, topic: str, group: str, settings: Mapping[str, Any]
    ) -> None:
        import confluent_kafka as kafka

        for name in _FIXED:
            if name in settings:
                raise InputError("kafka settings", "is set by Tollgate", where=name)
        shared = {"bootstrap.servers": brokers, **settings}
        self._kafka: Any = kafka
        self._topic = topic
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
            raise InputError("kafka settings", _words(exc)) from exc
        self._consumer.subscribe([topic])

    def poll(self, *, most: int, wait_s: float) -> Sequence[Message]:
        """
        Return up to so many messages.

        Raises:
            StoreError: The cluster refused: the topic or the rights to it are missing.
        """
        try:
            found = self._consumer.consume(num_messages=most, timeout=wait_s)
        except self._kafka.KafkaException as exc:
            raise StoreError(f"the feed cannot be read: {_words(exc)}") from exc
        messages = []
        for one in found:
            if one.error() is not None:
                self._judge(one.error())
                continue
            at = (one.topic(), one.partition())
            self._polled[at] = one.offset() + 1
            position = f"{at[0]}[{at[1]}]@{one.offset()}"
            messages.append(Message(one.value() or b"", position))
        return messages

    def bury(self, buried: Sequence[Buried]) -> None:
        """Produce messages to the topic of dead letters, acknowledged by all."""
        failed: list[str] = []

        def told(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error.str())

        for one in buried:
            headers = {"reason": one.reason, "position": one.message.position}
            self._produce(one.message.value, headers, told)
        left = self._producer.flush(_TIMEOUT_S)
        if left or failed:
            why = failed[0] if failed else "no acknowledgement in time"
            raise StoreError(f"dead letters cannot be written: {why}")

    def commit(self) -> None:
        """
        Commit the offsets of what was polled.

        A commit that comes too late, after others took the partition over, is no
        error: they apply the same events again, to no effect.
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
            log.warning("offsets are not committed: %s", _words(exc))
        self._polled = {}

    def backlog(self) -> int:
        """Count the events behind what was polled, in the partitions held."""
        waiting = 0
        try:
            held = self._consumer.assignment()
            self._held = len(held)
            for one, position in zip(held, self._consumer.position(held), strict=True):
                low, high = self._consumer.get_watermark_offsets(one, cached=True)
                if position.offset >= 0:
                    waiting += max(0, high - position.offset)
                else:
                    waiting += max(0, high - low)
        except self._kafka.KafkaException as exc:
            raise StoreError(f"the feed cannot be read: {_words(exc)}") from exc
        return waiting

    def partitions(self) -> int:
        """Count the partitions held when the backlog was counted last."""
        return self._held

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _produce(self, value: bytes, headers: dict[str, str], told: Any) -> None:
        topic = self._topic + DEAD_LETTERS_SUFFIX
        while True:
            try:
                self._producer.produce(
                    topic, value, headers=dict(headers), on_delivery=told
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _judge(self, error: Any) -> None:
        """Let librdkafka go on where it says that it will; raise what stays."""
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


def _words(error: BaseException) -> str:
    inner = error.args[0] if error.args else error
    text = inner.str() if hasattr(inner, "str") else str(inner)
    return " ".join(text.split())
