"""A product whose windows a stream keeps, on a real Triton, with a real stream."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tollgate.features.spec.feature_spec import load_spec
from tollgate.repair.spool_segments import segments
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import spec_hash_text, write_release
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import Degraded
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton.launcher import SPOOL_FOLDER
from tollgate.store.store_events import Purchases
from tollgate.stream.events import EventCodec
from tollgate.stream.redis_streams import RedisFeed
from tollgate_client import Client, Decisions

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]
NOW_US = time.time_ns() // 1000
LONG_S = 600.0
UPDATES = 'parameters { key: "updates" value { string_value: "stream" } }\n'
FEEDS = """
feeds:
  purchases: {max_age: 8s}
  labels: {max_age: 8s}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with limits for its feeds, and a stream that updates."""
    copy = tmp_path / "model_repository"
    shutil.copytree(CHECKOUT / "model_repository", copy)
    path = copy / "fraud_features/1/features.yaml"
    path.write_text(path.read_text() + FEEDS)
    config = copy / "fraud_features/config.pbtxt"
    text = config.read_text().replace('_value: "5"', '_value: "2000"')
    config.write_text(text + UPDATES)
    release = compose_release(
        RepositorySnapshot(copy),
        product="fraud",
        versions={"fraud_features": 1, "fraud_model": 1, "fraud_decision": 1},
        actor="test",
        reason="feeds",
        spec_hash=spec_hash_text(load_spec(path).spec_hash),
    )
    write_release(copy, release)
    return copy


@pytest.fixture
def served(repository: Path, tmp_path: Path) -> Iterator[Embedded]:
    """That product, served."""
    with serve(repository, state=tmp_path / "state") as server:
        yield server


def start_stream(repository: Path, store_url: str) -> subprocess.Popen[bytes]:
    """Start `tollgate stream` over the served store."""
    code = "from tollgate.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "stream", "--repository", str(repository)],
        cwd=CHECKOUT,
        env=os.environ | {"TOLLGATE_STORE_URL": store_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def until(done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < until_s
        time.sleep(0.2)


def test_a_served_product_reports_that_its_stream_is_behind(
    served: Embedded, repository: Path, tmp_path: Path
) -> None:
    """
    Stale before a stream runs, whole while it does, quiet or not, stale without it.

    Calls write nothing; purchases count when the stream brings them.
    """
    columns = {
        "transaction_id": ["t1", "t2"],
        "customer_id": ["c", "c"],
        "terminal_id": ["m", "m"],
        "amount": [10.0, 20.0],
        "event_time": [NOW_US, NOW_US + 1],
    }
    store = redis.Redis.from_url(served.store_url)
    with store, Client(served.grpc_url, timeout_s=20) as client:

        def ask() -> Decisions:
            return client.decide(columns, dry_run=True)  # a decision would stand

        def bits() -> int:
            return int(np.bitwise_or.reduce(ask().degraded))

        assert bits() == Degraded.FEED_STALE | Degraded.COLD_START
        assert store.keys(b"*") == []
        child = start_stream(repository, served.store_url)
        try:
            until(lambda: not bits() & Degraded.FEED_STALE)  # of an empty feed
            assert store.keys(b"*:customer:*") == []
            alone = ask()
            feed = RedisFeed(served.store_url, feed="tollgate.fraud.events")
            batch = Purchases(
                transaction_id=[b"t1", b"t2"],
                entity_id=[[b"c", b"c"], [b"m", b"m"]],
                event_time_us=np.array([NOW_US, NOW_US + 1]),
                cents=np.array([1_000, 2_000]),
            )
            spec = load_spec(repository / "fraud_features/1/features.yaml")
            feed.send([b"c", b"c"], EventCodec(spec).encode_purchases(batch))
            feed.close()
            until(lambda: bool(store.keys(b"*:customer:*")))
            time.sleep(1.5)  # longer than identical dry requests share a look
            again = ask()
            assert again.score.tobytes() == alone.score.tobytes()
            time.sleep(10)  # longer than the feeds may be old, without an event
            assert not bits() & Degraded.FEED_STALE
        finally:
            child.terminate()
            child.wait(LONG_S)
        until(lambda: bool(bits() & Degraded.FEED_STALE))
        assert segments(tmp_path / "state" / SPOOL_FOLDER / "fraud") == []
