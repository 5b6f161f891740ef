"""A live product changes what it stores, is killed and rolled back; nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import redis

from tests.support.checkout import CHECKOUT, checkout_environment
from tests.support.store.hot_entities import with_hop
from tollgate.errors import StoreError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.repair.spool_segments import read_segment, segments
from tollgate.replay import labels_of, purchases_of
from tollgate.schema import Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.event_writer import EventWriter
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.testing.supervised import Supervised, supervised
from tollgate_client import Client, ClientError

FILES = CHECKOUT / "tests" / "fixtures" / "at_6610f03"
TOLLGATE = (sys.executable, "-c", "from tollgate.cli import main; main()")
PATIENCE_S = 600.0
SECOND_US = 1_000_000
HOUR_US, DAY_US = 3_600 * SECOND_US, 86_400 * SECOND_US
STORED_US = 1_760_000_000 * SECOND_US  # the first purchase of the fixture
CUSTOMERS, TERMINALS = 60, 45
RATE_PER_S = 80
STEP_US = 30 * SECOND_US  # between two purchases: some 40 hours in a minute
LABEL_EVERY = 9
Columns = dict[str, list[Any]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The product of 6610f03, and its next release: the same windows, with tiles."""
    copy = tmp_path / "model_repository"
    shutil.copytree(FILES / "model_repository", copy)
    step, model = copy / "fraud_features", copy / "fraud_model"
    shutil.copytree(step / "1", step / "2")
    spec = with_hop(step / "1" / "features.yaml", step / "2", "1h")
    shutil.copytree(model / "2", model / "3")
    record = model / "3" / "artifact.json"
    changed = json.loads(record.read_text()) | {"spec_hash": f"{spec.spec_hash:016x}"}
    record.write_text(json.dumps(changed))
    return copy


def stored_purchases() -> Columns:
    """Read the purchases in the fixture's values, and in its spool."""
    requests = json.loads((FILES / "requests.json").read_text())["first"]
    joined = {key: [one for r in requests for one in r[key]] for key in requests[0]}
    for path in segments(FILES / "state" / "spool" / "fraud"):
        for line in read_segment(path, path.read_bytes()).events:
            event = json.loads(line) | {"amount": json.loads(line)["cents"] / 100}
            for name, column in joined.items():
                column.append(event[name])
    return joined


class Load:
    """
    Send purchases until the context ends, each until it is answered, and label some.

    Labels are written like those of a stream that was started with the first release's
    features and is not restarted.

    Attributes:
        purchases: All that were answered.
        labels: Transaction id and label time of those that were labelled.
        releases: The releases that answered.
    """

    def __init__(
        self, product: Supervised, spec: FeatureSpec, *, start_us: int
    ) -> None:
        self.purchases: Columns = {
            name: [] for name in (*spec.id_names, "amount", "event_time")
        }
        self.labels: dict[str, int] = {}
        self.releases: set[str] = set()
        self._product, self._spec, self._start_us = product, spec, start_us
        self._chance = np.random.default_rng(5)
        self._number = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send) for _ in range(3)]
        self._threads.append(threading.Thread(target=self._label))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait(self, rows: int) -> None:
        """Wait until so many more rows are answered."""
        until, wanted = time.monotonic() + PATIENCE_S, len(self) + rows
        while len(self) < wanted:
            assert time.monotonic() < until, f"{len(self)} rows of {wanted}"
            time.sleep(0.02)

    def __len__(self) -> int:
        return len(self.purchases["event_time"])

    def _draw(self) -> Columns:
        """Draw the purchases of a request; times grow from request to request."""
        with self._lock:
            rows = int(self._chance.integers(1, 6))
            first, self._number = self._number, self._number + rows
            customers = self._chance.integers(0, CUSTOMERS, rows)
            terminals = self._chance.integers(0, TERMINALS, rows)
            amounts = np.round(self._chance.gamma(1.0, 90.0, rows) + 0.01, 2)
        times = self._start_us + STEP_US * np.arange(first, first + rows)
        return {
            "transaction_id": [f"live-{one}" for one in range(first, first + rows)],
            "customer_id": [f"c{one}" for one in customers],
            "terminal_id": [f"m{one}" for one in terminals],
            "amount": amounts.tolist(),
            "event_time": times.tolist(),
        }

    def _send(self) -> None:
        with Client(self._product.grpc_url, timeout_s=10) as client:
            while not self._ended.is_set():
                request = self._draw()
                rows = len(request["event_time"])
                while True:
                    with contextlib.suppress(ClientError):
                        found = client.decide(request)
                        if not any(found.error):
                            break
                    time.sleep(0.05)
                with self._lock:
                    self.releases |= set(map(str, found.release))
                    for name, column in request.items():
                        self.purchases[name] += column
                self._ended.wait(3 * rows / RATE_PER_S)

    def _label(self) -> None:
        """Label every ninth purchase as a fraud, in the order of label times."""
        store = RedisStore(self._product.address.store_url, deadline_s=2)
        writer, done = EventWriter(self._spec, store), 0
        while not self._ended.wait(0.05):
            with self._lock:
                part = slice(done, len(self) - len(self) % LABEL_EVERY)
                own = {name: one[part] for name, one in self.purchases.items()}
            done = part.stop
            places = range(0, len(own["event_time"]), LABEL_EVERY)
            known = {
                own["transaction_id"][at]: own["event_time"][at] + HOUR_US
                for at in places
            }
            if not known:
                continue
            known = dict(sorted(known.items(), key=lambda one: one[1]))
            rows = history(self._spec, own, known)
            while True:
                with contextlib.suppress(StoreError):
                    writer.labels(labels_of(self._spec, rows, frauds_of(rows)))
                    break
                time.sleep(0.05)
            self.labels |= known
        store.close()


def history(spec: FeatureSpec, columns: Columns, labels: dict[str, int]) -> History:
    """Make a history of purchases; times of the labels by transaction id."""
    ids = columns["transaction_id"]
    times = columns["event_time"]
    known = [labels.get(one, time) for one, time in zip(ids, times, strict=True)]
    table = pl.DataFrame(columns).with_columns(
        pl.col("event_time").cast(pl.Datetime("us")),
        label=pl.Series([int(one in labels) for one in ids], dtype=pl.Int8),
        label_time=pl.Series(known, dtype=pl.Int64).cast(pl.Datetime("us")),
    )
    return history_of(table, spec=spec, source="")


def frauds_of(rows: History) -> np.ndarray:
    """Find the frauds of a history, in the order in which they became known."""
    frauds = np.flatnonzero(rows.label == 1)
    return frauds[np.argsort(rows.label_time_us[frauds], kind="stable")]


def run(product: Supervised, repository: Path, *words: str) -> subprocess.Popen[str]:
    """Start a `tollgate` command for the product."""
    where = (f"--repository={repository}", f"--state={product.state}")
    return subprocess.Popen(
        [*TOLLGATE, *words, *where],
        cwd=CHECKOUT,
        env=checkout_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(product: Supervised, repository: Path, *words: str) -> str:
    """Run a `tollgate` command that must succeed; its output."""
    child = run(product, repository, *words)
    text, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, text
    return text


def kill(product: Supervised, part: str) -> None:
    """Kill a process of the product, and wait until it was replaced."""
    before = len(product.recovered_parts())
    os.kill(product.pid(part), signal.SIGKILL)
    product.wait_recovered(before + 1)


def activate(product: Supervised, repository: Path) -> None:
    """Switch to the release with tiles."""
    words = ("--set=features=2", "--set=model=3", "--reason=tiles")
    done(product, repository, "release", "activate", *words)


def keys_of(client: redis.Redis, spec: FeatureSpec) -> list[bytes]:
    """List the keys of a state's values."""
    return sorted(client.keys(f"tollgate:fraud:{spec.state_hash:016x}:*"))


def values_of(client: redis.Redis, spec: FeatureSpec) -> dict[bytes, bytes]:
    """Read the values of a state."""
    keys = keys_of(client, spec)
    return dict(zip(keys, client.mget(keys), strict=True))


def probes(after_us: int) -> Columns:
    """Make one purchase for each customer and each terminal."""
    rows = max(CUSTOMERS, TERMINALS)
    return {
        "transaction_id": [f"probe-{row}" for row in range(rows)],
        "customer_id": [f"c{row}" for row in range(rows)],
        "terminal_id": [f"m{row}" for row in range(rows)],
        "amount": [10.0] * rows,
        "event_time": [after_us + row for row in range(rows)],
    }


def different_vectors(
    spec: FeatureSpec, events: Columns, labels: dict[str, int], *, store_url: str
) -> list[dict[str, int]]:
    """Compare the store's windows with those of all events; count rows by feature."""
    store, found = RedisStore(store_url, deadline_s=30), []
    online = OnlineFeatures(spec, store)
    newest_us = max(events["event_time"])
    for after_us in (2 * HOUR_US, 8 * DAY_US, 20 * DAY_US):
        extra = probes(newest_us + after_us)
        rows = history(
            spec, {name: events[name] + extra[name] for name in extra}, labels
        )
        last = np.arange(len(events["event_time"]), len(rows))
        expected = build(spec, rows)[last]
        (online_rows,) = online.score([purchases_of(spec, rows, last)], write=[False])
        marks = online_rows.degraded & ~np.uint32(Degraded.COLD_START)
        differs = (online_rows.features != expected).sum(axis=0).tolist()
        names = [one.name for one in spec.features]
        by_name = dict(zip(names, differs, strict=True))
        by_name["degraded"] = int(np.count_nonzero(marks))
        found.append({name: count for name, count in by_name.items() if count})
    store.close()
    return found


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[str]:
    """An empty Redis; its address."""
    with EmbeddedRedis(tmp_path / "reference") as server:
        yield server.url


@pytest.mark.slow
def test_a_migration_with_kills_and_a_rollback_loses_no_event(
    repository: Path, tmp_path: Path, reference: str
) -> None:
    """Both generations have every event once, computed again from all of them."""
    step = repository / "fraud_features"
    old, new = (load_spec(step / one / "features.yaml") for one in ("1", "2"))
    state = tmp_path / "state"
    shutil.copytree(FILES / "state", state)
    # The steps import from the working folder of the server.
    (tmp_path / "tollgate").symlink_to(CHECKOUT / "tollgate")
    stored = stored_purchases()
    labels = {
        stored["transaction_id"][row]: stored["event_time"][row] + DAY_US
        for row in range(0, 100, 7)
    }
    start = ("migrate", "start", f"--spec={step / '2' / 'features.yaml'}")
    start_us = max(stored["event_time"]) + DAY_US
    with supervised(repository, state=state) as product:
        store_url = product.address.store_url
        client = redis.Redis.from_url(store_url)
        with Load(product, old, start_us=start_us) as load:
            load.wait(200)
            copy = run(product, repository, *start, "--rate=10")
            while not any(b"first-" in one for one in values_of(client, new).values()):
                assert copy.poll() is None, copy.communicate()[0]
                time.sleep(0.05)
            kill(product, "fraud_features")
            copy.kill()
            copy.communicate()
            load.wait(100)
            assert "is complete: activate" in done(product, repository, *start)
            load.wait(100)
            activate(product, repository)
            load.wait(200)
            kill(product, "redis-server")
            load.wait(200)
            kill(product, "fraud_features")
            load.wait(100)
            done(product, repository, "release", "rollback", "--reason=too slow")
            load.wait(200)
            kill(product, "tritonserver")
            load.wait(100)
            copy = run(product, repository, *start, "--rate=10")
            load.wait(100)
            activate(product, repository)
            copy.kill()
            copy.communicate()
            done(product, repository, "release", "rollback", "--reason=again")
            load.wait(100)
            activate(product, repository)
            load.wait(200)
        product.wait(lambda: not segments(state / "spool" / "fraud"))
        assert load.releases >= {"fraud-2", "fraud-3"}
        status = done(product, repository, "migrate", "status")
        assert status.count("complete since") == 2
        events = {name: stored[name] + load.purchases[name] for name in stored}
        labels |= load.labels
        found = values_of(client, old)
        rows = history(old, events, labels)
        writer = EventWriter(old, RedisStore(reference, deadline_s=30))
        writer.purchases(purchases_of(old, rows, np.arange(len(rows))))
        writer.labels(labels_of(old, rows, frauds_of(rows)))
        with redis.Redis.from_url(reference) as wanted:
            assert found == values_of(wanted, old)
        for spec in (old, new):
            counts = different_vectors(spec, events, labels, store_url=store_url)
            assert counts == [{}, {}, {}]
        assert not (state / "spool" / "fraud" / "dead-letters.jsonl").exists()
        assert "values deleted" in done(product, repository, "migrate", "end")
        assert keys_of(client, old) == []
        client.close()
