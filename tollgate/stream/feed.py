"""Produce events to a feed: for a trial, for tests, or to replay a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tollgate.errors import InputError, StoreError
from tollgate.store.redis.redis_store import describe_error
from tollgate.store.redis.store_address import open_client
from tollgate.stream.redis_streams import FIELD, partition_of, stream_name

_TIMEOUT_S = 30.0


class Feed(Protocol):
    """Send events, each with the id of the entity that determines their order."""

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """Send events to the feed; they are stored when it returns."""

    def close(self) -> None:
        """Close the connection."""


class RedisFeed:
    """
    Send events to Redis Streams.

    Args:
        url: redis://, rediss:// or unix:// address.
        feed: Prefix of the partitions' stream names.
        partitions: Number of streams; the same for all users of the feed.
    """

    def __init__(self, url: str, *, feed: str, partitions: int = 1) -> None:
        import redis

        self._errors = redis.exceptions
        self._redis: Any = open_client(url, timeout_s=_TIMEOUT_S)
        self._feed = feed
        self._partitions = partitions

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """Append events to their partitions."""
        pipe = self._redis.pipeline(transaction=False)
        for key, event in zip(keys, events, strict=True):
            number = partition_of(key, partitions=self._partitions)
            pipe.xadd(stream_name(self._feed, number), {FIELD: event})
        try:
            pipe.execute()
        except (self._errors.RedisError, OSError) as exc:
            raise StoreError(
                f"the feed cannot be written: {describe_error(exc)}"
            ) from exc

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


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
        self._failed: list[str] = []
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
        for key, event in zip(keys, events, strict=True):
            while True:
                try:
                    self._producer.produce(
                        self._topic, event, key=key, on_delivery=self._on_delivery
                    )
                except BufferError:  # its queue is full: give it time to send
                    self._producer.poll(0.1)
                else:
                    break
        left = self._producer.flush(_TIMEOUT_S)
        if left or self._failed:
            why = self._failed[0] if self._failed else "no acknowledgement in time"
            raise StoreError(f"the feed cannot be written: {why}")

    def close(self) -> None:
        """Do nothing: every send was flushed."""

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(error.str())
