"""The dashboard of lists has an answer from a live Prometheus to every query."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.audit.ranked_records import ITEMS, write_ranked_shop
from tests.support.observability.live_prometheus import (
    PATIENCE_S,
    filled,
    prometheus,
    running,
)
from tests.tollgate.server.test_ranking_served import write_events
from tollgate.cli.app import app
from tollgate.observability.dashboards import BOARDS
from tollgate.server.processes.environment import free_port
from tollgate.testing.supervised import supervised
from tollgate_client import (
    RECOMMENDER_OPTIONS,
    FallbackItems,
    RecommendationRequest,
    Recommendations,
    Recommender,
)

pytestmark = pytest.mark.system("prometheus")

UP = ("up", "--product", "shop")
FIELDS = {"slot": "BYTES"}  # the small shop has no device
ROWS = 1_500  # the first window of 500 valid lists is the baseline of the second


def test_every_query_of_the_lists_has_data(tmp_path: Path) -> None:
    """Served, some from prepared lists, journalled, sealed, monitored and scraped."""
    repository, state = tmp_path / "models", tmp_path / "state"
    release = write_ranked_shop(repository)
    config = repository / "shop_candidates/config.pbtxt"
    config.write_text(  # a busy machine's store may be late
        config.read_text().replace('string_value: "20"', 'string_value: "5000"')
    )
    chosen = ["--state", str(state), "--repository", str(repository)]
    journal = ("journal", "run", "--product", "shop", "--seal-after", "1s", *chosen)
    port = free_port()
    monitor = ("monitor", "--every", "1s", "--window", "500", *chosen)
    (board,) = (one for one in BOARDS if one.uid == "tollgate-lists")
    queries = [query for panel in board.panels for query in panel.queries]
    with (
        supervised(repository, state=state, words=UP) as product,
        running(journal),
        running([*monitor, "--metrics-port", str(port)]),
        prometheus(tmp_path, targets(product.metrics_url, port)) as found,
        Recommender(
            product.grpc_url,
            fallback=FallbackItems(tuple(f"own-{one}" for one in range(5))),
            options=replace(RECOMMENDER_OPTIONS, fields=FIELDS, deadline_s=20.0),
        ) as shop,
    ):
        viewed = [
            (f"user-{user}", f"i{item}", "view", 60 + item)
            for user in range(10)
            for item in range(5)
        ]
        write_events(product.address, release.spec, viewed)
        prepare = ("materialize", "--lists", "--product", "shop", "--users", "10")
        done = CliRunner().invoke(app, [*prepare, *chosen])
        assert done.exit_code == 0, done.output
        until_s = time.monotonic() + 4 * PATIENCE_S
        missing = queries
        asked = 0
        while missing:
            asked = ask(shop, asked)
            missing = [
                query
                for query in missing
                if not any(
                    not math.isnan(float(one["value"][1]))
                    for one in found.ask(filled(query, product="shop"))
                )
            ]
            assert time.monotonic() < until_s, [one.expr for one in missing]
            time.sleep(0.05 if asked < ROWS else 0.5)
        shares = found.ask('sum(tollgate_monitor_shown_share{product="shop"})')
        assert float(shares[0]["value"][1]) == pytest.approx(1)
        (coverage,) = found.ask('tollgate_monitor_coverage{product="shop"}')
        shown = float(coverage["value"][1]) * ITEMS
        assert 5 <= shown <= ITEMS
        assert shown == pytest.approx(round(shown))


def ask(shop: Recommender, asked: int) -> int:
    """Request 32 lists; return how many were requested in all."""
    now_us = time.time_ns() // 1000
    requests = [
        RecommendationRequest(f"r-{asked + row}", f"user-{(asked + row) % 40}", now_us)
        for row in range(32)
    ]
    for answer in shop.recommend_rows(requests, count=5):
        assert isinstance(answer, Recommendations)
        assert answer.source_of_list == "server"
    return asked + len(requests)


def targets(metrics_url: str, port: int) -> list[str]:
    """Name the pages of Triton and of the monitor."""
    return [
        metrics_url.removeprefix("http://").partition("/")[0],
        f"127.0.0.1:{port}",
    ]
