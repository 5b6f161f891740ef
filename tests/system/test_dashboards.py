"""Every query of the dashboards has an answer from a live Prometheus."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator

import polars as pl
import pytest

from tests.support.observability.live_prometheus import (
    PATIENCE_S,
    Watched,
    filled,
    purchases,
    watched,
)
from tollgate.observability.dashboards import BOARDS, Board

pytestmark = pytest.mark.system("prometheus", "nginx", "openssl")


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, simulated: pl.DataFrame
) -> Iterator[Watched]:
    """A server, and a Prometheus that has watched it for some seconds."""
    folder = tmp_path_factory.mktemp("watched")
    history = folder / "history.parquet"
    simulated.head(200).write_parquet(history)
    with watched(folder, history) as made:
        yield made


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))
def test_every_query_has_data_or_says_why_not(board: Board, found: Watched) -> None:
    """A series with a number for each; what is declared to be empty is so."""
    wrong = []
    for panel in board.panels:
        for query in panel.queries:
            series = found.prometheus.ask(filled(query))
            values = [float(one["value"][1]) for one in series]
            there = any(not math.isnan(value) for value in values)
            if there == bool(query.empty):
                wrong.append(f"{panel.title}: {filled(query)}: {values}")
    assert not wrong, "\n".join(wrong)


def test_prometheus_works_out_every_rule(found: Watched) -> None:
    """None has an error, against pages as they are; nothing of fraud is told."""
    groups = found.prometheus.get("/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert {rule["health"] for rule in rules} == {"ok"}
    told = {
        rule["name"]
        for rule in rules
        if rule.get("state") == "firing" and rule["labels"].get("product") != "credit"
    }
    assert told == set()


def test_a_store_that_hangs_is_told(found: Watched) -> None:
    """The alert waits to be sent as soon as a batch leaves the store alone."""
    told = 'ALERTS{alertname="TollgateStoreBreakerOpen",product="fraud"}'
    until_s = time.monotonic() + PATIENCE_S
    while found.prometheus.ask(told):  # a busy machine opens the breaker by itself
        assert time.monotonic() < until_s
        time.sleep(0.1)
    os.kill(found.product.pid("redis-server"), signal.SIGSTOP)
    until_s = time.monotonic() + PATIENCE_S
    while not found.prometheus.ask(told):
        found.client.decide(purchases(f"h{time.monotonic_ns()}-"))
        assert time.monotonic() < until_s
        time.sleep(0.02)
