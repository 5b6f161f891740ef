"""Which rows the decision step journals, and what it exports to Prometheus."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import redis

from tollgate import compiled
from tollgate.engine.decision_stage import row_marks
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import MAX_DETAILS_BYTES, Heading
from tollgate.journal.journal_writer import JournalCounts
from tollgate.journal.stream_entries import stream_key
from tollgate.policy.decide import PolicyDecisions
from tollgate.schema import context_dtype
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.steps.step_journal import (
    FAMILIES,
    FATES,
    JOURNAL_URL_VARIABLE,
    JournalMetrics,
    StepJournal,
    open_journal,
)

PAPER = Path(__file__).parents[3] / "docs" / "journal.md"
HEADING = Heading("fraud", "fraud-1", 77, ("customer",), ())


def context_of(rows: int) -> np.ndarray:
    """Good rows with numbered ids."""
    context = np.zeros(rows, context_dtype(HEADING.entities))
    context["spec_hash"] = HEADING.spec_hash
    names = np.array([b"t%03d" % row for row in range(rows)], "S128")
    context["transaction_id"] = names.view("V128")
    context["transaction_id_length"] = 4
    return context


def decided_of(rows: int) -> PolicyDecisions:
    """What was decided on them."""
    return PolicyDecisions(
        decision=np.arange(rows).astype(np.uint8) % 3,
        score=np.arange(rows, dtype=np.float32),
        reason_codes=np.full(rows, b"CODE", np.object_),
        degraded=np.zeros(rows, np.uint32),
        rules=np.arange(rows).astype(np.uint64),
        segment=np.zeros(rows, np.uint8),
    )


def journaled(
    context: np.ndarray,
    folder: Path,
    *,
    details: list[bytes] | None = None,
    excluded: np.ndarray | None = None,
) -> list[Records]:
    """Journal rows, then spoil all memory they came in; what the stream has."""
    rows = len(context)
    heading = msgspec.structs.replace(HEADING, details=details is not None)
    decided = decided_of(rows)
    features = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 3, axis=1)
    probabilities = np.ones((rows, 2), np.float32)
    with EmbeddedRedis(folder) as server, redis.Redis.from_url(server.url) as client:
        writer = open_writer(server.url, heading, folder="", deadline_s=5.0)
        journal = StepJournal(writer)
        journal.record(
            context,
            decided,
            features=features,
            probabilities=probabilities,
            began_us=time.monotonic_ns() // 1000,
            marks=row_marks(context, spec_hash=HEADING.spec_hash),
            excluded=excluded,
            details=details,
        )
        context[:] = np.zeros(1, context.dtype)
        features[:] = probabilities[:] = np.nan
        journal.close()
        entries = [entry for _, entry in client.xrange(stream_key("fraud"))]
    return [decode_chunk(entry[b"c"]) for entry in entries if b"c" in entry]


def test_memory_of_triton_is_copied(tmp_path: Path) -> None:
    """What Triton does to a tensor after the answer changes no record."""
    (chunk,) = journaled(context_of(5), tmp_path)
    assert chunk.transaction_id == [b"t%03d" % row for row in range(5)]
    assert chunk.features[:, 2].tolist() == [0, 1, 2, 3, 4]
    assert chunk.probabilities.tolist() == [[1, 1]] * 5


@pytest.mark.parametrize(
    ("field", "value"),
    [("dry_run", 1), ("bad", 1), ("earlier_length", 30), ("spec_hash", 78)],
)
def test_rows_apart_leave_no_record(tmp_path: Path, field: str, value: int) -> None:
    """Shown only, not decided, decided before, or refused; the others keep theirs."""
    context = context_of(6)
    context[field][[1, 4]] = value
    (chunk,) = journaled(context, tmp_path / "some")
    assert chunk.transaction_id == [b"t000", b"t002", b"t003", b"t005"]
    assert chunk.score.tolist() == [0, 2, 3, 5]
    assert chunk.rules.tolist() == [0, 2, 3, 5]
    assert chunk.features[:, 0].tolist() == [0, 2, 3, 5]
    context = context_of(2)
    context[field] = value
    assert journaled(context, tmp_path / "none") == []


def test_each_row_keeps_its_own_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that leave no record take theirs along; too long ones cost no record."""
    context = context_of(6)
    context["dry_run"][1] = 1
    excluded = np.array([False, False, False, True, False, False])
    details = [b"%d" % row * 3_000 for row in range(6)]
    details[4] = bytes(MAX_DETAILS_BYTES + 1)
    (chunk,) = journaled(context, tmp_path, details=details, excluded=excluded)
    assert chunk.transaction_id == [b"t000", b"t002", b"t004", b"t005"]
    assert chunk.details == [b"0" * 3_000, b"2" * 3_000, b"", b"5" * 3_000]
    assert "details of a record are left out: 16385 bytes" in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_compiled_loop_finds_marked_rows_as_numpy_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mostly none; every mark in any row, alone and together, in parts of a batch."""
    rng = np.random.default_rng(seed)
    context = context_of(int(rng.integers(1, 40)))
    for field in ("dry_run", "bad", "earlier_length", "spec_hash"):
        if rng.random() < 0.3:
            rows = rng.random(len(context)) < 0.2
            context[field][rows] = rng.choice([1, 2, 128])
    parts = (context, context[1:], context[::2], context[:0])
    found = [row_marks(part, spec_hash=HEADING.spec_hash) for part in parts]
    monkeypatch.setattr(compiled, "decisions", None)
    for part, marks in zip(parts, found, strict=True):
        bits = sum(
            mark * (part[name] != usual)
            for mark, name, usual in (
                (1, "dry_run", 0),
                (2, "bad", 0),
                (4, "earlier_length", 0),
                (8, "spec_hash", HEADING.spec_hash),
            )
        )
        by_numpy = row_marks(part, spec_hash=HEADING.spec_hash)
        for one in (marks, by_numpy):
            assert (one is None) == (not bits.any())
            assert one is None or one.tolist() == bits.tolist()


def test_without_an_address_there_is_no_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step starts and decides; its log says that nothing is recorded."""
    monkeypatch.delenv(JOURNAL_URL_VARIABLE, raising=False)
    assert open_journal(None, HEADING, window_s=600, labels={}) is None


class Family:
    """A metric family that remembers, in the place of Triton's."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    reported: ClassVar[dict[str, list[float]]] = {}

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(
        self, *, labels: dict[str, str], buckets: list[float] | None = None
    ) -> SimpleNamespace:
        """Make one metric."""
        reported = self.reported.setdefault(" ".join([self.name, *labels.values()]), [])
        return SimpleNamespace(
            increment=reported.append, set=reported.append, observe=reported.append
        )


def test_counters_are_exported_as_increments() -> None:
    """Each fate by what it rose; the longest lag, and none when there was none."""
    Family.reported.clear()
    metrics = JournalMetrics(SimpleNamespace(MetricFamily=Family), labels={})
    metrics.export(JournalCounts(appended=5, written=3, buffered=2), [0.004, 0.009])
    metrics._due_s = metrics._lag_due_s = 0.0
    metrics.export(JournalCounts(appended=9, written=9, full=True), [])
    reported = Family.reported
    assert reported["tollgate_journal_records_total appended"] == [5, 4]
    assert reported["tollgate_journal_records_total written"] == [3, 6]
    assert reported["tollgate_journal_records_total dropped"] == []
    assert reported["tollgate_journal_buffered_records"] == [2, 0]
    assert reported["tollgate_journal_stream_full"] == [0, 1]
    assert reported["tollgate_journal_lag_seconds"] == [0.009]


def test_paper_has_every_metric() -> None:
    """Name and kind of each, and every fate."""
    rows = re.findall(r"^\| `(tollgate_\w+)` \| (\w+) \|", PAPER.read_text(), re.M)
    assert {name: kind.upper() for name, kind in rows} == {
        name: kind for name, (kind, _) in FAMILIES.items()
    }
    for fate in FATES:
        assert f"`{fate}`" in PAPER.read_text()
