"""Apply events from Redis Streams or Kafka to the store: `tollgate stream`, `feed`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollgate.cli import console, running_server
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import Product, Repository, State, StoreUrl
from tollgate.cli.repositories import open_for_reading
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.settings import Settings
    from tollgate.stream.consumer import StreamConsumer, Tally
    from tollgate.stream.source import Feed, Source

STORE_DEADLINE_S = 5.0  # no caller waits for a stream's write
_SEND_ROWS = 1_000

FeedUrl = Annotated[
    str | None,
    typer.Option(help="URL of the Redis with the events.", show_default="the store"),
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
Topic = Annotated[
    str | None,
    typer.Option(
        help="Name of the feed: stream or Kafka topic.",
        show_default="tollgate.PRODUCT.events",
    ),
]


def stream(
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    feed_url: FeedUrl = None,
    partitions: Partitions = 1,
    kafka: Kafka = None,
    kafka_settings: KafkaSettings = None,
    topic: Topic = None,
    group: Annotated[
        str, typer.Option(help="Name of the consumer group that shares the feed.")
    ] = "tollgate",
    feeds: Annotated[
        str | None,
        typer.Option(
            help="Feeds to write the watermarks of, joined by commas.",
            show_default="purchases,labels; labels where scoring alone updates",
        ),
    ] = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    until_idle: Annotated[
        bool, typer.Option(help="End after a second without new events.")
    ] = False,
) -> None:
    """Apply purchase and label events to the store, until Ctrl-C or SIGTERM."""
    from tollgate.store.event_writer import EventWriter
    from tollgate.store.redis.cluster_store import open_store
    from tollgate.stream.consumer import FeedMarks, StreamConsumer, StreamMetrics

    chosen = console.settings(
        product=product,
        repository=repository,
        state=state,
        store_url=store_url,
        feed_url=feed_url,
    )
    require_metrics_port(metrics_port, host=metrics_host)
    with open_for_reading(chosen) as models:
        spec = _spec(models, chosen.product)
        chosen_feeds = _feeds(models, chosen.product, feeds)
    store_url = running_server.store_url(chosen)
    source: Source
    if kafka is not None:
        from tollgate.stream.kafka import KafkaSource

        source = KafkaSource(
            kafka,
            topic=topic or _topic(chosen),
            group=group,
            settings=_kafka_settings(kafka_settings),
        )
    else:
        from tollgate.stream.redis_streams import RedisSource

        source = RedisSource(
            chosen.feed_url or store_url,
            feed=topic or _topic(chosen),
            group=group,
            partitions=partitions,
        )
    metrics = StreamMetrics(chosen.product)
    serve_metrics(metrics.registry, metrics_port, host=metrics_host)
    store = open_store(store_url, deadline_s=STORE_DEADLINE_S)
    marks = FeedMarks(
        source, store, product=spec.product, feeds=chosen_feeds, metrics=metrics
    )
    consumer = StreamConsumer(
        source, EventWriter(spec, store), metrics=metrics, marks=marks
    )
    _run(consumer, source, until_idle=until_idle)


def feed(
    history: Annotated[
        Path, typer.Argument(help="History: Parquet, CSV or JSON lines.")
    ],
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    feed_url: FeedUrl = None,
    partitions: Partitions = 1,
    kafka: Kafka = None,
    kafka_settings: KafkaSettings = None,
    topic: Topic = None,
) -> None:
    """Send a history's purchases and labels to a feed, as a payment system would."""
    chosen = console.settings(
        product=product,
        repository=repository,
        state=state,
        store_url=store_url,
        feed_url=feed_url,
    )
    with open_for_reading(chosen) as models:
        spec = _spec(models, chosen.product)
    name = topic or _topic(chosen)
    target: Feed
    if kafka is not None:
        from tollgate.stream.kafka import KafkaFeed

        settings = _kafka_settings(kafka_settings)
        target = KafkaFeed(kafka, topic=name, settings=settings)
    else:
        from tollgate.stream.redis_streams import RedisFeed

        target = RedisFeed(
            chosen.feed_url or running_server.store_url(chosen),
            feed=name,
            partitions=partitions,
        )
    sent, taken_s = _send(history, spec, target)
    console.say(f"{sent:,} events in {taken_s:.1f} s → {name}")


def _send(history: Path, spec: FeatureSpec, target: Feed) -> tuple[int, float]:
    """Send labels and purchases in the order in which they become known."""
    from tollgate.history import read_history
    from tollgate.replay import labels_of, purchases_of, spans
    from tollgate.stream.events import EventCodec

    rows = read_history(history, spec=spec)
    codec = EventCodec(spec)
    started_s, sent = time.monotonic(), 0
    with console.progress("sending") as advance:
        done = 0
        for span in spans(spec, rows, batch_rows=_SEND_ROWS):
            labels = labels_of(spec, rows, span.labels)
            purchases = purchases_of(spec, rows, span.purchases)
            if len(labels):
                target.send(labels.entity_id[0], codec.encode_labels(labels))
            target.send(purchases.entity_id[0], codec.encode_purchases(purchases))
            sent += len(labels) + len(purchases)
            done += len(purchases)
            advance(done, len(rows))
    target.close()
    return sent, time.monotonic() - started_s


def _run(consumer: StreamConsumer, source: Source, *, until_idle: bool) -> None:
    stopped = stop_on_signal()
    console.say("applying events; Ctrl-C ends")
    consumer.run(stopped, until_idle_s=1.0 if until_idle else None)
    source.close()
    console.out.print(_tally_text(consumer.tally), highlight=False)


def _tally_text(tally: Tally) -> str:
    return (
        f"applied {tally.applied:,}, had already {tally.duplicates:,}, "
        f"dead letters {tally.dead_letters:,}, retries {tally.retries:,}"
    )


def _feeds(repository: Path, product: str, given: str | None) -> list[str]:
    """
    Name the feeds whose watermarks this stream advances: each has only one writer.
    """
    from tollgate.repository.configs import read_config
    from tollgate.repository.releases.served_versions import read_served
    from tollgate.schema import UPDATES, UPDATES_PARAMETER
    from tollgate.store.lookups import FEEDS, LABELS

    if given is not None:
        named = [name for name in given.split(",") if name]
        for name in named:
            if name not in FEEDS:
                problem = f"{name!r} is none of {', '.join(FEEDS)}"
                raise InputError("--feeds", problem)
        return named
    step = read_served(repository, product).product.features_step
    parameters = read_config(repository, step).parameters
    by = parameters[UPDATES_PARAMETER].string_value or UPDATES[0]
    return [LABELS] if by == UPDATES[0] else list(FEEDS)


def _spec(repository: Path, product: str) -> FeatureSpec:
    """Read the features of the product's release; refuse a product without entities."""
    from tollgate.cli.repositories import require_entities
    from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
    from tollgate.repository.releases.served_versions import read_served

    served = read_served(repository, product)
    spec = load_spec(served.file(served.product.features_step, name=SPEC_FILE))
    require_entities(spec)
    return spec


def _topic(chosen: Settings) -> str:
    return f"tollgate.{chosen.product}.events"


def _kafka_settings(path: Path | None) -> dict[str, Any]:
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
