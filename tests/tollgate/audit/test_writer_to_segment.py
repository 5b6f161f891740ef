"""From the writer of a step, through a real Redis, into sealed segments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import redis

from tests.support.journal.numbered_decisions import (
    HEADING,
    name_of,
    rows_of,
    writer_of,
)
from tollgate.audit.chain.verification import verify
from tollgate.audit.review.lookup import find_record
from tollgate.audit.worker.audit_worker import JournalWorker
from tollgate.audit.worker.chunk_source import ChunkSource

Open = Callable[..., Any]


def test_decisions_of_a_step_are_sealed_and_found(
    open_journal: Open, store_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """Every decision, with its features to the bit; and the end of the writer."""
    writer = writer_of(store_url, tmp_path / "spool")
    for first in range(0, 600, 20):
        writer.append(rows_of(first, 20))
    name = writer.writer
    writer.close()
    journal = open_journal()
    worker = JournalWorker(
        ChunkSource(store_url, product=HEADING.product),
        journal.sealer,
        chain=journal.chain,
        seal_s=0.05,
    )
    worker.run(threading.Event(), until_idle_s=0.1)
    proof = verify(journal.folder, marks=journal.marks())
    assert (proof.findings, proof.records, proof.missing) == ([], 600, {})
    (link,) = journal.chain.alive("ends")
    assert [(one.writer, one.sequence) for one in link.ends] == [(name, 600)]
    tables = sorted(journal.folder.glob("*.segment.parquet"))
    whole = pl.concat([pl.read_parquet(one) for one in tables]).sort("sequence")
    assert whole["feature_amount"].to_list() == [float(one) for one in range(600)]
    assert whole["field_channel"].to_list() == [-one for one in range(600)]
    found = find_record(
        journal.folder, name_of(345).decode(), subjects=journal.subjects
    )
    assert found.values["sequence"] == 345
    assert found.values["amount_cents"] == 345 * 3
