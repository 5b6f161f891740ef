"""Score readings and deliver alarms: `tollgate alarms run` and `alarms deliver`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tollgate.cli import console, running_server
from tollgate.cli.decisions.decision_commands import read_proof
from tollgate.cli.feeds import (
    FeedUrl,
    Kafka,
    KafkaSettings,
    Partitions,
    open_feed,
    open_source,
)
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import (
    Product,
    Repository,
    State,
    StoreUrl,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
)
from tollgate.cli.repositories import open_for_reading
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.settings import Settings
    from tollgate.stream.batch_consumer import BatchConsumer, ConsumerMetrics

_DEFAULT_URL = "127.0.0.1:8001"
_STORE_DEADLINE_S = 5.0  # no caller waits

AlarmsUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of the Redis or MQTT broker with the alarms.",
        show_default="that of the readings",
    ),
]
AlarmsTopic = Annotated[
    str | None,
    typer.Option(
        help="Name of the alarms: stream, or topic of Kafka or MQTT.",
        show_default="tollgate.PRODUCT.alarms",
    ),
]
UntilIdle = Annotated[
    bool, typer.Option(help="End after a second without new messages.")
]


def run(
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="host:port of the server.", show_default="that of --state, or :8001"
        ),
    ] = None,
    feed_url: FeedUrl = None,
    partitions: Partitions = 1,
    kafka: Kafka = None,
    kafka_settings: KafkaSettings = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="Name of the readings: stream, or topic of Kafka or MQTT.",
            show_default="tollgate.PRODUCT.readings",
        ),
    ] = None,
    group: Annotated[
        str, typer.Option(help="Name of the consumer group that shares the readings.")
    ] = "tollgate-alarms",
    alarms_url: AlarmsUrl = None,
    alarms_kafka: Annotated[
        str | None,
        typer.Option(
            help="Kafka brokers for the alarms, host:port joined by commas.",
            show_default="--kafka, unless --alarms-url is given",
        ),
    ] = None,
    alarms_topic: AlarmsTopic = None,
    outcomes: Annotated[
        str | None,
        typer.Option(
            help="Outcomes that raise an alarm, joined by commas.",
            show_default="all but the mildest",
        ),
    ] = None,
    report: Annotated[
        Literal["changes", "every"],
        typer.Option(
            help="Publish each change of a machine's outcome, or every reading "
            "whose outcome raises an alarm."
        ),
    ] = "changes",
    entity: Annotated[
        str | None,
        typer.Option(
            help="Entity that is the machine.",
            show_default="that of the policy's hysteresis, or first of features.yaml",
        ),
    ] = None,
    in_flight: Annotated[
        int, typer.Option(min=1, help="Maximum requests in flight, of 32 readings.")
    ] = 4,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, help="Deadline of a request, seconds.")
    ] = 2.0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    until_idle: UntilIdle = False,
) -> None:
    """Score readings from a stream and publish alarms, until Ctrl-C or SIGTERM."""
    from tollgate.alarms.alarm import OutcomeRules
    from tollgate.alarms.consumer import AlarmConsumer, AlarmMetrics
    from tollgate.alarms.outcomes import OutcomeStore
    from tollgate.alarms.readings import ReadingCodec
    from tollgate.alarms.scoring import ServerScorer
    from tollgate.repository.releases.served_versions import served_policy, served_spec
    from tollgate.store.redis.cluster_store import open_store

    tls, token = read_proof(tls_ca, tls_cert, key=tls_key, token=token_file)
    chosen = console.settings(
        product=product,
        repository=repository,
        state=state,
        store_url=store_url,
        feed_url=feed_url,
        alarms_url=alarms_url,
    )
    require_metrics_port(metrics_port, host=metrics_host)
    with open_for_reading(chosen) as models:
        spec = served_spec(models, product=chosen.product)
        policy = served_policy(models, product=chosen.product)
    steady = policy.hysteresis.entity if policy.hysteresis else ""
    codec = ReadingCodec(spec, machine=entity or steady)
    if report == "changes" and not codec.machine_key:
        problem = (
            f"{chosen.product} has no entity, so nothing has an outcome that changes"
        )
        raise InputError("--report", f"{problem}; use --report every")
    words = [word for word in (outcomes or "").split(",") if word]
    rules = OutcomeRules(policy.outcomes.words, words)
    store = running_server.store_url(chosen)
    source = open_source(
        chosen.feed_url or store,
        topic=topic or f"tollgate.{chosen.product}.readings",
        group=group,
        partitions=partitions,
        kafka=kafka,
        kafka_settings=kafka_settings,
    )
    alarms = open_feed(
        chosen.alarms_url or chosen.feed_url or store,
        topic=alarms_topic or _alarms_topic(chosen),
        kafka=alarms_kafka or (None if chosen.alarms_url else kafka),
        kafka_settings=kafka_settings,
    )
    metrics = AlarmMetrics(chosen.product)
    stopped = stop_on_signal()
    scorer = ServerScorer(
        url or _server_url(chosen),
        product=chosen.product,
        codec=codec,
        in_flight=in_flight,
        timeout_s=timeout_s,
        tls=tls,
        token=token,
    )
    consumer = AlarmConsumer(
        source,
        scorer,
        alarms,
        product=chosen.product,
        codec=codec,
        rules=rules,
        outcomes=OutcomeStore(
            open_store(store, deadline_s=_STORE_DEADLINE_S),
            product=chosen.product,
            mildest=rules.mildest,
        ),
        metrics=metrics,
        stopped=stopped,
        report=report,
    )
    counts = _consume(
        consumer, metrics, port=metrics_port, host=metrics_host, until_idle=until_idle
    )
    source.close()
    alarms.close()
    scorer.close()
    console.result(
        f"decided {consumer.decided:,}, alarms {consumer.alarms:,}, {counts}"
    )


def deliver(
    webhook_url: Annotated[
        str | None,
        typer.Option(help="Address that alarms are sent to, by POST."),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(help="File of the secrets that sign: whsec_… lines. Required."),
    ] = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    alarms_url: AlarmsUrl = None,
    alarms_topic: AlarmsTopic = None,
    kafka: Kafka = None,
    kafka_settings: KafkaSettings = None,
    group: Annotated[
        str, typer.Option(help="Name of the consumer group; one for each receiver.")
    ] = "tollgate-webhook",
    give_up_after_s: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds of attempts after which an alarm is a dead letter."
        ),
    ] = 86_400.0,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, help="Longest wait for the receiver, seconds.")
    ] = 10.0,
    webhook_ca: Annotated[
        Path | None,
        typer.Option(
            help="Certificate authority of the receiver; PEM.",
            show_default="those of the system",
        ),
    ] = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    until_idle: UntilIdle = False,
) -> None:
    """Deliver alarms to a webhook, signed and retried, until Ctrl-C or SIGTERM."""
    from tollgate.alarms.webhook import (
        Webhook,
        WebhookDeliverer,
        WebhookMetrics,
        read_secrets,
    )

    chosen = console.settings(
        product=product,
        repository=repository,
        state=state,
        store_url=store_url,
        alarms_url=alarms_url,
        webhook_url=webhook_url,
    )
    if not chosen.webhook_url:
        raise InputError("--webhook-url", "names no receiver")
    if secret_file is None:
        raise InputError("--secret-file", "is missing: every alarm is signed")
    webhook = Webhook(
        chosen.webhook_url,
        secrets=read_secrets(secret_file),
        timeout_s=timeout_s,
        authority=webhook_ca,
    )
    require_metrics_port(metrics_port, host=metrics_host)
    url = "" if kafka else chosen.alarms_url or chosen.feed_url
    source = open_source(
        url if url or kafka else running_server.store_url(chosen),
        topic=alarms_topic or _alarms_topic(chosen),
        group=group,
        kafka=kafka,
        kafka_settings=kafka_settings,
    )
    metrics = WebhookMetrics(chosen.product)
    deliverer = WebhookDeliverer(
        source,
        webhook,
        metrics=metrics,
        stopped=stop_on_signal(),
        give_up_s=give_up_after_s,
    )
    counts = _consume(
        deliverer, metrics, port=metrics_port, host=metrics_host, until_idle=until_idle
    )
    source.close()
    deliverer.close()
    console.result(f"delivered {deliverer.delivered:,}, {counts}")


def _consume(
    consumer: BatchConsumer,
    metrics: ConsumerMetrics,
    *,
    port: int,
    host: str,
    until_idle: bool,
) -> str:
    """Export metrics and run until stopped; return the counts that all have."""
    serve_metrics(metrics.registry, port, host=host, problem=lambda: consumer.problem)
    console.say(f"{consumer.name} runs; Ctrl-C ends")
    # Modules and settings stay: a full collection over them takes 30 ms and more.
    gc.collect()
    gc.freeze()
    consumer.run(until_idle_s=1.0 if until_idle else None)
    return f"dead letters {consumer.dead_letters:,}, retries {consumer.retries:,}"


def _alarms_topic(chosen: Settings) -> str:
    return f"tollgate.{chosen.product}.alarms"


def _server_url(chosen: Settings) -> str:
    """Return the address of the local server, or the default one."""
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    return found.grpc_url if found else _DEFAULT_URL
