"""Decisions of a real Triton are decided again, bit for bit, and explained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from tests.support.audit.random_records import REPOSITORY
from tests.support.store.history_loading import load_history
from tollgate.cli.app import app
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import history_of
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.server.serving.embedded import Embedded, serve
from tollgate_client import Client

pytestmark = pytest.mark.slow

ROWS = 3_000
PATIENCE_S = 600.0
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def served(
    simulated: pl.DataFrame,
    spec: FeatureSpec,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Embedded]:
    """Start a server with two months of history; decide the next day's purchases."""
    history = history_of(simulated, spec=spec, source="simulated")
    with serve(REPOSITORY, state=tmp_path_factory.mktemp("state")) as server:
        load_history(spec, history, store_url=server.store_url)
        decide(server, simulated)
        wait_for(server.store_url)
        yield server


def decide(server: Embedded, simulated: pl.DataFrame) -> None:
    """Decide purchases of known and new people, in requests of 1, 7 and 32 rows."""
    chance = np.random.default_rng(2)
    last = simulated[chance.integers(0, len(simulated), ROWS)]
    time_us = int(simulated["event_time"].to_physical().max()) + np.arange(ROWS)  # type: ignore[arg-type]
    ids = {name: last[name].cast(pl.String).to_list() for name in ("customer_id",)}
    new = chance.random(ROWS) < 0.1
    columns = {
        "transaction_id": [f"asked-{row}" for row in range(ROWS)],
        "customer_id": [
            f"new-{row}" if new[row] else ids["customer_id"][row] for row in range(ROWS)
        ],
        "terminal_id": last["terminal_id"].cast(pl.String).to_list(),
        "amount": np.round(chance.gamma(1.0, 250.0, ROWS) + 0.01, 2).tolist(),
        "event_time": time_us.tolist(),
    }
    sizes = np.tile([1, 7, 32], ROWS)
    ends = np.cumsum(sizes)
    starts = [0, *ends[ends < ROWS].tolist()]
    requests = [
        {name: values[at : at + size] for name, values in columns.items()}
        for at, size in zip(starts, sizes.tolist(), strict=False)
    ]
    with Client(server.grpc_url, timeout_s=20) as client, ThreadPoolExecutor(4) as many:
        list(many.map(client.decide, requests))


def wait_for(url: str) -> None:
    """Wait until every record is in the stream."""
    until_s = time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(url) as store:
        while True:
            found = [one for _, one in store.xrange(stream_key("fraud"))]
            chunks = [decode_chunk(one[CHUNK_FIELD]) for one in found]
            if sum(map(len, chunks)) >= ROWS:
                return
            assert time.monotonic() < until_s
            time.sleep(0.05)


def run(*arguments: str) -> str:
    """Run a command that must succeed; return its output in one line."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return " ".join(done.output.split())


def test_served_decisions_replay_to_the_bit_and_are_explained(
    served: Embedded, tmp_path: Path
) -> None:
    """Explained while pending; then sealed, verified, replayed without difference."""
    folder = tmp_path / "journal"
    repository = ("--repository", str(REPOSITORY))
    where = ("--folder", str(folder), "--journal-url", served.store_url)
    waiting = run("explain", "asked-7", *where, *repository)
    assert "the stream, not sealed yet" in waiting
    assert "moved the score by" in waiting
    run("journal", "run", *where, *repository, "--until-idle")
    assert "as sealed" in run("journal", "verify", str(folder))
    text = run("journal", "replay", str(folder), *repository)
    assert f"fraud-1: {ROWS:,} of {ROWS:,} the same (bit for bit" in text
    tables = [pl.read_parquet(path) for path in folder.glob("*.segment.parquet")]
    decided = pl.concat(tables)
    assert set(decided["decision"]) == {"approve", "review", "decline"}
    (path,) = folder.glob("*.reasons.parquet")
    explained = pl.read_parquet(path)["sequence"].n_unique()
    assert explained == int((decided["decision"] != "approve").sum())
    sealed = run("explain", "asked-7", *where, *repository)
    assert sealed.partition("link 3")[2].partition("thresholds")[2] in waiting
