"""Run and explain every stage of a decision on simulated purchases: `tollgate demo`."""

from __future__ import annotations

import shutil
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.cli import console
from tollgate.cli.models.simulate_command import CREDIT, simulated_product
from tollgate.cli.options import Product
from tollgate.cli.products import demo_report
from tollgate.cli.products.credit_demo import demo_credit

if TYPE_CHECKING:
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.history import History
    from tollgate.settings import Settings

# The weeks of the handbook's baseline, within our own simulated history.
_TRAIN_FROM = date(2018, 7, 25)
_TRAIN_DAYS, _DELAY_DAYS, _TEST_DAYS = 7, 7, 7
_EVALUATION_ROWS = (
    "simulated purchases (their frauds follow three simple rules, so these figures say "
    "nothing about real payments; cards known as defrauded are left out)"
)
_DAY_US = 86_400_000_000
_HELD_OUT = 5_000
_NEXT = 20
_BATCH_ROWS, _IN_FLIGHT = 1, 8
_FORMAT = 2


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


def demo(product: Product = None) -> None:
    """
    Simulate, train, publish, serve, and decide 5,000 purchases over gRPC.

    `--product credit`: the same of 2,000 loan applications, with a notice of reasons.
    """
    chosen = console.settings(product=product, product_is_known=False)
    if simulated_product(product) == CREDIT:
        demo_credit(chosen)
        return
    state = chosen.state_path
    state.mkdir(parents=True, exist_ok=True)
    history_file = state / "demo" / "history.parquet"
    with demo_report.timed("simulated history") as note:
        note(_simulate_if_missing(history_file))
    copy = state / "model_repository"
    source = chosen.repository_path
    spec, purchases = _read(source, history_file, product=chosen.product)
    last = int(np.searchsorted(purchases.event_time_us, _decide_from_us())) + _HELD_OUT
    with demo_report.timed("trained, converted, proven, published, released") as note:
        note(
            _publish_if_changed(source, copy, spec=spec, history=purchases, state=state)
        )
    decided = purchases.take(slice(0, last))
    _serve_and_decide(copy, spec=spec, history=decided, chosen=chosen)


def _simulate_if_missing(path: Path) -> str:
    if path.exists():
        return f"unchanged since the last run ({path.stat().st_size / 1e6:.0f} MB)"
    from tollgate.simulate import simulate, write

    with console.progress("simulating") as advance:
        frame = simulate(progress=advance)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(frame, path)
    share = frame["label"].sum() / len(frame)
    return f"{len(frame):,} purchases, {share:.2%} fraud"


def _read(repository: Path, path: Path, *, product: str) -> tuple[FeatureSpec, History]:
    """Read the part of the history that the demo needs."""
    from tollgate.cli import pipeline
    from tollgate.cli.replaying import purchases_in_reach
    from tollgate.history import read_history

    pipeline.require_repository(repository)
    spec = pipeline.served_spec(repository, product=product)
    whole = read_history(path, spec=spec)
    first_us = _us(_TRAIN_FROM)
    last = int(np.searchsorted(whole.event_time_us, _decide_from_us())) + _HELD_OUT
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

    from tollgate.cli.pipeline import request_columns

    columns = request_columns(history, rows, spec=spec)
    decoded = {
        name: [one.decode() for one in values] if isinstance(values, list) else values
        for name, values in columns.items()
    }
    pl.DataFrame(decoded).write_csv(folder / demo_report.NEXT_FILE)


def _publish_if_changed(
    source: Path, copy: Path, *, spec: FeatureSpec, history: History, state: Path
) -> str:
    """Train and publish into a copy of the repository, unless an earlier demo did."""
    from tollgate.cli import pipeline
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
    with console.progress("training") as advance:
        release = pipeline.train_and_release(
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


def _serve_and_decide(
    copy: Path, *, spec: FeatureSpec, history: History, chosen: Settings
) -> None:
    from tollgate.cli import pipeline
    from tollgate.server.serving.embedded import serve
    from tollgate_client import join

    started = time.monotonic()
    with serve(
        copy,
        products=(spec.product,),
        state=chosen.state_path,
        store_server=chosen.store_server,
    ) as server:
        seconds = time.monotonic() - started
        serving = server.serving[spec.product]
        demo_report.step(
            "server up",
            f"Triton and Redis, release {serving.release}, grpc {server.grpc_url}",
            seconds,
        )
        with (
            demo_report.timed(f"decided {_HELD_OUT:,} held-out purchases") as note,
            console.progress("filling the store, then deciding") as advance,
        ):
            answered = list(
                pipeline.decide_history(
                    _not_in_store(history, spec=spec, store_url=server.store_url),
                    spec=spec,
                    grpc_url=server.grpc_url,
                    store_url=server.store_url,
                    decide_from_us=_decide_from_us(),
                    batch_rows=_BATCH_ROWS,
                    in_flight=_IN_FLIGHT,
                    progress=advance,
                )
            )
            note(f"over gRPC, one a request, {_IN_FLIGHT} in flight")
    decided = history.take(np.flatnonzero(history.event_time_us >= _decide_from_us()))
    demo_report.decisions(decided, join([answer for _, answer in answered]), spec=spec)


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
