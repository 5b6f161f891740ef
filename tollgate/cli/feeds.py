"""Open the feeds that commands read and write: Redis Streams, Kafka or MQTT."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.stream.source import Feed, Source

FeedUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of the Redis or MQTT broker with the events.",
        show_default="the store",
    ),
]
Partitions = Annotated[int, typer.Option(help="Number of Redis streams in the feed.")]
Kafka = Annotated[
    str | None,
    typer.Option(help="Kafka brokers, host:port joined by commas; replaces Redis."),
]
KafkaSettings = Annotated[
    Path | None,
    typer.Option(help="YAML file of librdkafka settings, such as TLS and SASL."),
]


def open_source(
    url: str,
    *,
    topic: str,
    group: str,
    partitions: int = 1,
    kafka: str | None = None,
    kafka_settings: Path | None = None,
) -> Source:
    """
    Open a feed as one consumer of a group.

    Args:
        url: Address of a Redis or of an MQTT broker; not used with `kafka`.

    Raises:
        InputError: An address, the topic or a setting is wrong.
    """
    from tollgate.stream.mqtt import SCHEMES, MqttSource

    if kafka is not None:
        from tollgate.stream.kafka import KafkaSource

        settings = read_kafka_settings(kafka_settings)
        return KafkaSource(kafka, topic=topic, group=group, settings=settings)
    if url.startswith(SCHEMES):
        return MqttSource(url, topic=topic, group=group)
    from tollgate.stream.redis_streams import RedisSource

    return RedisSource(url, feed=topic, group=group, partitions=partitions)


def open_feed(
    url: str,
    *,
    topic: str,
    partitions: int = 1,
    kafka: str | None = None,
    kafka_settings: Path | None = None,
) -> Feed:
    """
    Open a feed to send events to; see `open_source`.

    Raises:
        InputError: An address, the topic or a setting is wrong.
    """
    from tollgate.stream.mqtt import SCHEMES, MqttFeed

    if kafka is not None:
        from tollgate.stream.kafka import KafkaFeed

        settings = read_kafka_settings(kafka_settings)
        return KafkaFeed(kafka, topic=topic, settings=settings)
    if url.startswith(SCHEMES):
        return MqttFeed(url, topic=topic)
    from tollgate.stream.redis_streams import RedisFeed

    return RedisFeed(url, feed=topic, partitions=partitions)


def read_kafka_settings(path: Path | None) -> dict[str, Any]:
    """
    Read librdkafka's settings from a YAML file; None has none.

    Raises:
        InputError: The file cannot be read, or is not a mapping of settings.
    """
    import msgspec

    if path is None:
        return {}
    try:
        return msgspec.yaml.decode(
            path.read_bytes(), type=dict[str, str | int | float | bool]
        )
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, ValueError) as exc:
        raise InputError(path, " ".join(str(exc).split())) from exc
