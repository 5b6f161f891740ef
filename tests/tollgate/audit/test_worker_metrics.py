"""Metrics of the journal worker: sealed, repeated and lost records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.audit.random_records import DECIDED_US, made
from tollgate.audit.chain.links import utc_text, utc_us
from tollgate.audit.worker.audit_worker import JournalWorker, WorkerMetrics
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.stream_entries import (
    CHUNK_FIELD,
    END_FIELD,
    End,
    encode_end,
    stream_key,
)

STREAM = stream_key("fraud")


def work(journal: Any, url: str) -> dict[str, float]:
    """Seal everything in the stream; return every sample by name without the prefix."""
    metrics = WorkerMetrics("fraud")
    worker = JournalWorker(
        ChunkSource(url, product="fraud"),
        journal.sealer,
        chain=journal.chain,
        seal_s=0.05,
        metrics=metrics,
    )
    worker.run(threading.Event(), until_idle_s=0.1)
    text = generate_latest(metrics.registry).decode()
    return {
        sample.name.removeprefix("tollgate_journal_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
        and not sample.name.endswith("_created")
    }


def test_metrics_count_sealed_doubled_and_lost_records(
    open_journal: Callable[..., Any], store_url: str, redis_client: redis.Redis
) -> None:
    """Seven, five of them twice, four after a gap of three, and an end after two."""
    before_s = int(time.time())
    for raw in (
        encode_chunk(made(7)),
        encode_chunk(made(5, first=2)),
        encode_chunk(made(4, first=10)),
        b"no chunk",
    ):
        redis_client.xadd(STREAM, {CHUNK_FIELD: raw})
    end = End("0123456789abcdef", 16, killed=True)
    redis_client.xadd(STREAM, {END_FIELD: encode_end(end)})
    samples = work(open_journal(), store_url)
    assert samples["sealed_records_total"] == 11
    assert samples["doubled_records_total"] == 5
    assert samples["lost_records"] == 3 + 2
    assert samples["dead_letters_total"] == 1
    assert samples["segments_total"] >= 1
    assert samples["retries_total"] == 0
    assert before_s <= samples["last_sealed_timestamp_seconds"] <= time.time()
    assert (
        samples["sealed_lag_seconds_count"] == samples["sealed_lag_seconds_bucket"] == 3
    )
    ages_s = 3 * (time.time() - DECIDED_US / 1e6)
    assert abs(samples["sealed_lag_seconds_sum"] - ages_s) < 3 * 600


def test_next_worker_exports_lost_records_at_once(
    open_journal: Callable[..., Any], store_url: str, redis_client: redis.Redis
) -> None:
    """Counters start at 0 again; gauges follow from the chain."""
    redis_client.xadd(STREAM, {CHUNK_FIELD: encode_chunk(made(4, first=6))})
    first = work(open_journal(), store_url)
    second = work(open_journal(), store_url)
    assert first["lost_records"] == second["lost_records"] == 6
    assert second["sealed_records_total"] == 0
    name = "last_sealed_timestamp_seconds"
    assert first[name] == second[name] > 0


def test_formatted_time_is_parsed_to_the_same_value() -> None:
    """Whole seconds, UTC."""
    assert utc_text(DECIDED_US // 1_000_000 * 1_000_000) == utc_text(DECIDED_US)
    assert utc_us("1970-01-02T00:00:01Z") == 86_401_000_000
