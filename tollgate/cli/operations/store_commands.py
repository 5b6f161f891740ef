"""
Load events and tables into the store.

`tollgate stream`, `feed`, `materialize`, `migrate`, `rebuild` and `repair drain`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server, table_files
from tollgate.cli.feeds import (
    FeedUrl,
    Kafka,
    KafkaSettings,
    Partitions,
    open_feed,
    open_source,
)
from tollgate.cli.history_files import read_history_file
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import HistoryFile, Json, Product, Repository, State, StoreUrl
from tollgate.cli.repositories import open_for_reading, require_entities
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError, SetupError
from tollgate.settings import Settings

if TYPE_CHECKING:
    from tollgate.backfill.copying import CopyCounts
    from tollgate.backfill.materialize import MaterializeCounts
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.repair.drain import DrainResult
    from tollgate.store.redis.redis_store import RedisStore
    from tollgate.stream.consumer import StreamConsumer, Tally
    from tollgate.stream.source import Feed, Source


STORE_DEADLINE_S = 5.0  # no caller waits for a stream's write
_SEND_ROWS = 1_000

Rate = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Maximum events per second; 0 for no limit.",
        show_default="as fast as Redis allows, a third of that while it serves",
    ),
]
Topic = Annotated[
    str | None,
    typer.Option(
        help="Name of the feed: stream, or topic of Kafka or MQTT.",
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
    source = open_source(
        chosen.feed_url or store_url,
        topic=topic or _topic(chosen),
        group=group,
        partitions=partitions,
        kafka=kafka,
        kafka_settings=kafka_settings,
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
    history: HistoryFile,
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
    target = open_feed(
        "" if kafka else chosen.feed_url or running_server.store_url(chosen),
        topic=name,
        partitions=partitions,
        kafka=kafka,
        kafka_settings=kafka_settings,
    )
    sent, taken_s = _send(history, spec, target)
    console.say(f"{sent:,} events in {taken_s:.1f} s → {name}")


def _send(history: Path, spec: FeatureSpec, target: Feed) -> tuple[int, float]:
    """Send labels and purchases in the order in which they become known."""
    from tollgate.replay import labels_of, purchases_of, spans
    from tollgate.stream.events import EventCodec

    rows = read_history_file(history, spec=spec)
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
    console.result(_tally_text(consumer.tally))


def _tally_text(tally: Tally) -> str:
    return (
        f"applied {tally.applied:,}, had already {tally.duplicates:,}, "
        f"dead letters {tally.dead_letters:,}, retries {tally.retries:,}"
    )


def _feeds(repository: Path, product: str, given: str | None) -> list[str]:
    """Name the feeds whose watermarks this stream advances: each has one writer."""
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
    from tollgate.features.spec.feature_spec import load_spec

    spec = load_spec(_spec_path(repository, product))
    require_entities(spec)
    return spec


def _spec_path(repository: Path, product: str) -> Path:
    """Find the features.yaml of the product's release."""
    from tollgate.features.spec.feature_spec import SPEC_FILE
    from tollgate.repository.releases.served_versions import read_served

    served = read_served(repository, product)
    return served.file(served.product.features_step, name=SPEC_FILE)


def _topic(chosen: Settings) -> str:
    return f"tollgate.{chosen.product}.events"


def materialize(
    history: Annotated[
        list[Path] | None,
        typer.Argument(help="Histories, oldest first: Parquet, CSV or JSON lines."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="features.yaml to load the store for.", show_default="the released one"
        ),
    ] = None,
    copy_from: Annotated[
        Path | None,
        typer.Option(
            help="features.yaml in service: also copy its events that are "
            "newer than the history."
        ),
    ] = None,
    table: table_files.TableFiles = None,
    lists: Annotated[
        bool,
        typer.Option(
            "--lists", help="Prepare lists of a product that ranks, for active users."
        ),
    ] = False,
    users: Annotated[
        int | None,
        typer.Option(min=1, help="Prepare lists for so many users, most active first."),
    ] = None,
    users_from: Annotated[
        Path | None,
        typer.Option(help="Prepare lists for the users of a file, one id per line."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            min=1, max=10_080, help="Mean time for which a prepared list holds."
        ),
    ] = 60,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    rate: Rate = None,
    as_json: Json = False,
) -> None:
    """
    Load histories and tables into the online store; resume after a kill.

    With --lists, prepare lists from the events in the store instead. The store may
    serve meanwhile: the command pauses between writes to leave capacity for decisions.
    """
    from tollgate.backfill.copying import check_copy, copy_state, reach_warnings
    from tollgate.features.spec.feature_spec import load_spec
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )
    if lists:
        if history or spec or copy_from or table:
            problem = "reads the store: it takes no history, --spec, --copy-from or "
            raise InputError("--lists", problem + "--table")
        _prepare(chosen, users, users_from, minutes=minutes, rate=rate, as_json=as_json)
        return
    if users is not None or users_from is not None:
        raise InputError("--users", "is for --lists")
    filled = load_spec(spec) if spec else _released(chosen)
    require_entities(filled)
    source = load_spec(copy_from) if copy_from else None
    if not (history or table or source):
        raise InputError("materialize", "name a history, a --table or --copy-from")
    if source:
        check_copy(source, filled)  # check before anything is written
        for line in [] if history else reach_warnings(source, filled):
            console.say(line)
    read = table_files.read_tables(table, filled)
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    print_line = console.say if as_json else console.result
    loaded = table_files.load_tables(
        read, filled, store, rate=rate, print_line=print_line
    )
    done, newest_us = _histories(
        history or [], filled, store, rate=rate, print_line=print_line
    )
    copied = None
    if source is not None:
        since_us = newest_us - filled.lateness_us if history else 0
        copied = copy_state(source, filled, store, since_us=since_us, rate_per_s=rate)
        print_line(_copy_text(copied))
    if as_json:
        console.print_json({"tables": loaded, "histories": done, "copied": copied})


def _prepare(
    chosen: Settings,
    users: int | None,
    users_from: Path | None,
    *,
    minutes: float,
    rate: float | None,
    as_json: bool,
) -> None:
    """Prepare the lists of the most active users, or of those of a file."""
    from tollgate.backfill import prepared_lists
    from tollgate.store.redis.cluster_store import open_store

    if (users is None) == (users_from is None):
        raise InputError("--lists", "needs either --users N or --users-from FILE")
    named = None if users_from is None else prepared_lists.read_users(users_from)
    with open_for_reading(chosen) as models:
        release = prepared_lists.open_ranking_release(models, chosen.product)
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    started_s = time.monotonic()
    if named is None:
        with console.progress("finding the most active users"):
            named = prepared_lists.most_active_users(
                release.spec, store, users or 0, now_us=time.time_ns() // 1000
            )
    with console.progress("preparing lists") as advance:
        done = prepared_lists.prepare_lists(
            release,
            store,
            named,
            life_us=round(minutes * 60e6),
            rate_per_s=rate,
            progress=advance,
        )
    taken_s = time.monotonic() - started_s
    if as_json:
        console.print_json({"lists": done})
        return
    text = f"{done.users:,} users: {done.prepared:,} lists prepared, "
    text += f"{done.fresh:,} still hold"
    if done.without_events:
        text += f", {done.without_events:,} have no events"
    console.result(f"{text}: {done.bytes:,} bytes written, in {taken_s:.1f} s")


def migrate_start(
    spec: Annotated[Path, typer.Option(help="features.yaml of the next release.")],
    history: Annotated[
        list[Path] | None,
        typer.Argument(help="Histories, oldest first: Parquet, CSV or JSON lines."),
    ] = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    rate: Rate = None,
    days: Annotated[
        int, typer.Option(min=1, help="End the dual writes after so many days.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """
    Write every event to the next release's values, too, and fill them.

    Run it again after a kill. Activate the release when it is complete; the values of
    the release that serves now stay complete for a rollback, until `migrate end`.
    """
    from tollgate.backfill import copying
    from tollgate.features.spec.feature_spec import load_spec
    from tollgate.repository.releases.activation import now_text
    from tollgate.store.dual_writes import state_text, written_state
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )
    filled, now = load_spec(spec), now_text()
    require_entities(filled)
    with open_for_reading(chosen) as models:
        path = _spec_path(models, chosen.product)
        served, own = load_spec(path), written_state(path, since=now, filled=now)
    warnings = copying.check_dual_writes(served, filled)
    reason = None
    try:
        copying.check_copy(served, filled)
        warnings += [] if history else copying.reach_warnings(served, filled)
    except InputError as error:
        if not history:
            raise
        reason = str(error)
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    states = [own, written_state(spec, since=now)]
    name = state_text(filled)
    print_line = console.say if as_json else console.result
    print_line(f"dual writes to {own.state} (served) and {name}, for {days} days")
    for line in warnings:
        console.say(line)
    copying.start_dual_writes(chosen.product, states, store, days=days)
    done, newest_us = _histories(
        history or [], filled, store, rate=rate, print_line=print_line
    )
    copied = None
    if reason is None:
        since_us = newest_us - filled.lateness_us if history else 0
        try:
            copied = copying.copy_state(
                served, filled, store, since_us=since_us, rate_per_s=rate
            )
            print_line(_copy_text(copied))
        except InputError as error:  # a cluster
            if not history:
                raise
            reason = str(error)
    if reason is not None:
        console.say(f"not copied: {reason}; the history must reach up to {now}")
    copying.mark_filled(chosen.product, name, store, filled=now_text())
    print_line(f"{name} is complete: activate its release")
    if as_json:
        console.print_json({"state": name, "histories": done, "copied": copied})


def migrate_status(
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List the states to which every event is written, and which are complete."""
    from tollgate.backfill.copying import read_states
    from tollgate.store.dual_writes import state_text
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )
    served = state_text(_released(chosen))
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    rows = [
        {
            "state": one.state,
            "serves": one.state == served,
            "since": one.since,
            "complete": one.filled,
        }
        for one in read_states(chosen.product, store)
    ]
    if as_json:
        console.print_json(rows)
        return
    for row in rows:
        text = f"{row['state']}  written since {row['since']}, "
        text += f"complete since {row['complete']}" if row["complete"] else "incomplete"
        console.result(text + (", serves" if row["serves"] else ""))
    if not rows:
        console.result(f"{served} alone is written, and serves")


def migrate_end(
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """
    End the dual writes, and delete the values that no active release reads.

    A rollback to a release with other values finds empty windows from then on.
    """
    from tollgate.backfill.copying import delete_values, end_dual_writes, read_states
    from tollgate.store.dual_writes import state_text
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )
    served = state_text(_released(chosen))
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    states = [one.state for one in read_states(chosen.product, store)]
    ended = [one for one in states if one != served]
    deleted: dict[str, int] = {}
    end_dual_writes(chosen.product, ended, store)
    try:
        for one in ended:
            deleted[one] = delete_values(chosen.product, one, store)
    except InputError as error:  # a cluster
        console.say(f"not deleted, the values expire: {error}")
    if as_json:
        console.print_json({"served": served, "deleted": deleted})
        return
    for one, number in deleted.items():
        console.result(f"{one}: {number:,} values deleted")
    console.result(f"{served} alone is written, and serves")


def rebuild(
    history: Annotated[
        list[Path],
        typer.Argument(help="Histories, oldest first: Parquet, CSV or JSON lines."),
    ],
    table: table_files.TableFiles = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    spool: Spool = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Maximum events per second; 0 for no limit.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Refill a lost store from tables, histories and the spool, in this order."""
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product,
        repository=repository,
        state=state,
        store_url=store_url,
        spool=str(spool) if spool else None,
    )
    filled = _released(chosen)
    require_entities(filled)
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    started_s = time.monotonic()
    print_line = console.say if as_json else console.result
    read = table_files.read_tables(table, filled)
    loaded = table_files.load_tables(
        read, filled, store, rate=rate, print_line=print_line
    )
    done, _ = _histories(history, filled, store, rate=rate, print_line=print_line)
    drained = drain_once(chosen, rate=rate)
    if drained is None:
        console.say("the server is draining the spool")
    elif not as_json:
        print_drained(drained)
    if as_json:
        report = {"tables": loaded, "histories": done, "spools": drained}
        console.print_json(report)
    console.say(f"rebuilt in {time.monotonic() - started_s:.1f} s")


def _released(chosen: Settings) -> FeatureSpec:
    from tollgate.repository.releases.served_versions import served_spec

    with open_for_reading(chosen) as repository:
        return served_spec(repository, product=chosen.product)


def _histories(
    files: list[Path],
    spec: FeatureSpec,
    store: RedisStore,
    *,
    rate: float | None,
    print_line: Callable[[str], None],
) -> tuple[dict[str, MaterializeCounts], int]:
    """
    Load files; return results, and the time of the newest purchase, µs.

    Files are loaded one after the other; for values with tiles as one history, because
    these take all purchases in the order of time.
    """
    from tollgate.backfill.materialize import materialize as run
    from tollgate.history import concatenate

    tiled = any(entity.tiles for entity in spec.entities)
    newest_us, found = 0, {}
    for group in [files] if tiled and files else [[file] for file in files]:
        parts = []
        for file in group:
            with console.progress(f"reading {file.name}"):
                parts.append(read_history_file(file, spec=spec))
        rows = concatenate(parts)
        started_s = time.monotonic()
        with console.progress("materializing") as advance:
            done = run(spec, rows, store, rate_per_s=rate, progress=advance)
        taken_s = time.monotonic() - started_s
        print_line(
            f"{rows.source}: {_counts_text(done, spec.rows_noun)}, in {taken_s:.1f} s"
        )
        found[rows.source] = done
        newest_us = max(newest_us, int(rows.event_time_us.max(initial=0)))
    return found, newest_us


def _counts_text(done: MaterializeCounts, noun: str) -> str:
    parts = [
        f"{done.history:,} {noun}, {done.out_of_reach:,} out of reach of any window",
        f"{done.done_before:,} done before",
        f"{done.sent:,} sent with {done.labels:,} labels",
        f"{done.applied:,} applied",
        f"{done.duplicates:,} there already",
    ]
    for number, text in (
        (done.too_late, "too late"),
        (done.late_labels, "late labels"),
        (done.foreign, "of damaged values"),
    ):
        if number:
            parts.append(f"{number:,} {text}")
    text = ", ".join(parts)
    if done.full:
        text += f"; {done.full:,} ids have more than their entity's cap: "
        text += f"{done.over_cap:,} of their {noun} are not stored (WINDOW_OVERFLOW)"
    return text


def _copy_text(done: CopyCounts) -> str:
    text = f"copied {done.values:,} values: {done.events:,} events, "
    text += f"{done.applied:,} of them new"
    for number, what in (
        (done.too_late, "events are too late, or in tiles already"),
        (done.damaged, "values are damaged"),
        (done.full, "values are full"),
    ):
        if number:
            text += f"; {number:,} {what}"
    return text


def _deadline_s() -> float:
    from tollgate.backfill.materialize import STORE_DEADLINE_S

    return STORE_DEADLINE_S


Spool = Annotated[
    Path | None, typer.Option(help="Spool folder to drain.", show_default="STATE/spool")
]


def drain(
    state: State = None,
    store_url: StoreUrl = None,
    spool: Spool = None,
    rate: Annotated[
        float,
        typer.Option(
            help="Maximum events per second, to leave capacity for decisions."
        ),
    ] = 4_000,
    as_json: Json = False,
) -> None:
    """
    Apply the purchases that the store missed; `tollgate up` also does this on its own.
    """
    chosen = console.settings(
        state=state, store_url=store_url, spool=str(spool) if spool else None
    )
    if spool is not None and not spool.is_dir():
        raise InputError("--spool", f"{spool} is no folder")
    drained = drain_once(chosen, rate=rate)
    if drained is None:
        raise SetupError("the spool is being drained", remedy="wait for it to end")
    if as_json:
        console.print_json(drained)
    else:
        print_drained(drained)


def print_drained(drained: Mapping[str, DrainResult]) -> None:
    """Print the result of each spool."""
    from tollgate.repair.drain import drain_text

    for name, done in drained.items():
        console.result(f"{name}: {drain_text(done)}")


def drain_once(chosen: Settings, *, rate: float) -> dict[str, DrainResult] | None:
    """Drain all spools; return the results, None if another drain is running."""
    from tollgate.repair.drain import STORE_DEADLINE_S, SpoolDrain
    from tollgate.repair.spool_segments import segments, spools
    from tollgate.server.triton.launcher import SPOOL_FOLDER
    from tollgate.store.redis.cluster_store import open_store

    folder = Path(chosen.spool or chosen.state_path / SPOOL_FOLDER)
    store = open_store(running_server.store_url(chosen), deadline_s=STORE_DEADLINE_S)
    found = spools(folder)
    drained = {}
    for spool in found:
        done = SpoolDrain(spool, store, rate_per_s=rate).run()
        if done is None:
            return None
        drained[spool.name] = done
    left = sum(len(segments(spool)) for spool in found)
    if left:
        console.say(f"{left} segments left: still being written, or unreadable here")
    return drained
