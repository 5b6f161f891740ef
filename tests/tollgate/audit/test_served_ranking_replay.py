"""Lists of a real Triton are sealed, ranked again bit for bit, and explained."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from tests.support.audit.ranked_records import ITEMS, write_ranked_shop
from tests.tollgate.server.test_ranking_served import NOW_US, ask, write_events
from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.verification import verify
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.journal_replay import replay
from tollgate.audit.worker.audit_worker import JournalWorker
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.backfill.prepared_lists import open_ranking_release, prepare_lists
from tollgate.cli.app import app
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor
from tollgate.repository.slo import Form
from tollgate.server.serving.embedded import serve
from tollgate.store.redis.cluster_store import open_store

pytestmark = pytest.mark.slow

ROWS = 240
PATIENCE_S = 120.0


@pytest.mark.parametrize("form", ["ensemble", "fused"])
def test_served_lists_are_ranked_again_to_the_bit(tmp_path: Path, form: Form) -> None:
    """
    Users with and without events, exclusions, stock, several rows per request.

    The lists of half of the users were prepared a while before.
    """
    repository, state = tmp_path / "models", tmp_path / "state"
    release = write_ranked_shop(repository)
    config = repository / "shop_candidates/config.pbtxt"
    config.write_text(
        config.read_text().replace('string_value: "20"', 'string_value: "5000"')
    )
    chance = np.random.default_rng(3)
    home = tmp_path / "journal"
    chain = Chain(home, product="shop")
    sealer = Sealer(
        chain,
        subjects=Subjects(tmp_path / "journal.keys"),
        releases=ReleaseArchive(chain, repository=repository),
    )
    with serve(repository, products=["shop"], state=state, form=form) as server:
        events = [
            (
                f"user-{user}",
                f"i{item}",
                ("view", "cart", "purchase")[int(chance.integers(0, 3))],
                10 + number * 7,
            )
            for user in range(20)
            for number, item in enumerate(chance.integers(0, ITEMS + 5, user % 9))
        ]
        write_events(server, release.spec, events)
        with redis.Redis.from_url(server.store_url) as store:
            sold = [f"i{one}" for one in chance.integers(0, ITEMS, 9)]
            store.sadd("tollgate:shop:list:out_of_stock", *sold)
            lists = open_store(server.store_url, deadline_s=10.0)
            prepare_lists(
                open_ranking_release(repository, "shop"),
                lists,
                [b"user-%d" % user for user in range(0, 20, 2)],
                life_us=3_600 * 10**6,
                wall_us=lambda: NOW_US - 5_000_001,  # after every event
            )
            lists.close()
        sent = prepared = 0
        while sent < ROWS:
            size = int(chance.choice([1, 3, 8]))
            answer = ask(
                server,
                [f"user-{one}" for one in chance.integers(0, 25, size)],
                ids=[f"r-{sent + at}" for at in range(size)],
                exclude=[
                    "|".join(f"i{one}" for one in chance.integers(0, 70, count))
                    for count in chance.integers(0, 4, size)
                ],
                slot=("home", "product", "cart")[int(chance.integers(0, 3))],
                count=int(chance.integers(1, 11)),
            )
            sent += size
            prepared += sum(
                one.startswith(b"prepared:") for one in answer["source"][:, 0]
            )
        worker = JournalWorker(
            ChunkSource(server.store_url, product="shop"), sealer, chain=chain
        )
        until_s = time.monotonic() + PATIENCE_S
        while worker.tally.records < sent:
            assert time.monotonic() < until_s
            worker.run(threading.Event(), until_idle_s=0.3)
    assert verify(home).findings == []
    found = replay(chain, ReleaseArchive(chain), repository=repository, tolerance=0.0)
    (part,) = found.parts
    assert [one.what for one in found.differences] == []
    assert (part.rows, part.same, part.problem) == (sent, sent, "")
    assert ROWS // 5 < prepared < ROWS // 2
    monitor = ProductMonitor(home, repository=None, options=MonitorOptions(window=200))
    monitor.look(time.time_ns() // 1000)
    monitor.require_read()
    (stream,) = monitor.streams.values()
    assert (stream.fates()["baseline"], stream.fates()["unknown"]) == (200, 0)
    figures = stream.windows[0].lists
    assert figures is not None
    assert figures.lists == stream.windows[0].mix.rows
    shown = CliRunner().invoke(
        app,
        [
            *("explain", "r-0", "--folder", str(home)),
            *("--keys", str(tmp_path / "journal.keys")),
            *("--product", "shop", "--repository", str(repository)),
        ],
    )
    assert shown.exit_code == 0, shown.output
    assert " candidates:" in shown.output
    assert "newest events: " in shown.output
