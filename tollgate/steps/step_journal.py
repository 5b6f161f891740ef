"""Write the decision step's rows to the journal, and export the journal's metrics."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tollgate.errors import InputError
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import MAX_DETAILS_BYTES, Heading, Rows
from tollgate.journal.journal_writer import JournalCounts
from tollgate.journal.stored_decision_commands import StoreCommands
from tollgate.policy.decide import PolicyDecisions
from tollgate.schema import STORE_URL_VARIABLE
from tollgate.steps import triton

log = logging.getLogger(__name__)

JOURNAL_URL_VARIABLE = "TOLLGATE_JOURNAL_URL"
JOURNAL_SPOOL_VARIABLE = "TOLLGATE_JOURNAL_SPOOL"  # folder of chunks that wait for it

_INTERVAL_S = 1.0
_LAG_INTERVAL_S = 0.1
_LAG_BUCKETS_S = (
    *(0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1),
    *(0.25, 1.0, 5.0, 30.0),
)

# Name -> kind and description; docs/journal.md has the same table.
FAMILIES = {
    "tollgate_journal_records_total": ("COUNTER", "Records by what became of them"),
    "tollgate_journal_drained_chunks_total": ("COUNTER", "Chunks out of the spool"),
    "tollgate_journal_unreadable_chunks_total": (
        "COUNTER",
        "Chunks out of the spool that this version cannot read",
    ),
    "tollgate_journal_buffered_records": ("GAUGE", "Records in memory"),
    "tollgate_journal_stream_full": ("GAUGE", "1 while the stream holds all it may"),
    "tollgate_journal_lag_seconds": (
        "HISTOGRAM",
        "Decision to durable record, the longest of each 0.1 s",
    ),
}
_CHUNKS = ("drained", "unreadable")
FATES = ("appended", "written", "spooled", "dropped")

Array = triton.Array


class RecordWriter(Protocol):
    """Write rows of decisions somewhere."""

    def append(self, rows: Rows) -> bool:
        """Take rows; return whether there was room for them."""
        ...

    def close(self) -> None:
        """Write all pending rows."""
        ...


class StepJournal:
    """
    Write decisions to the journal.

    Args:
        writer: Closed with this object.
    """

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def record(
        self,
        context: Array,
        decided: PolicyDecisions,
        *,
        features: Array,
        probabilities: Array,
        began_us: int,
        marks: Array | None,
        excluded: Array | None = None,
        details: list[bytes] | None = None,
    ) -> None:
        """
        Journal a batch's decisions, except those of marked rows.

        Args:
            context: Of tollgate.schema.context_dtype; [N]. It, features and
                probabilities may be memory of Triton's.
            decided: The decisions.
            features: float32 [N, F].
            probabilities: float32 [N, K].
            began_us: CLOCK_MONOTONIC when the step took the batch.
            marks: Of `row_marks`.
            excluded: Rows that another journal records; bool [N], None for none.
            details: What else the product records of each row, N byte strings; None for
                a product without details. A record whose details are longer than
                MAX_DETAILS_BYTES is written with empty ones.
        """
        skipped = excluded if marks is None else marks
        if marks is not None and excluded is not None:
            skipped = marks | excluded
        decisions: tuple[Array, ...] = (
            *(decided.score, decided.degraded, decided.decision),
            *(decided.reason_codes, decided.rules),
        )
        if skipped is not None and np.count_nonzero(skipped):
            chosen = np.flatnonzero(skipped == 0)
            if not len(chosen):
                return
            context = context[chosen]
            features, probabilities = (
                features[chosen],
                probabilities[chosen],
            )
            decisions = tuple(column[chosen] for column in decisions)
            if details is not None:
                details = [details[row] for row in chosen.tolist()]
        else:
            # Decisions are new arrays; if no row is left out, nothing changes them.
            features, probabilities = features.copy(), probabilities.copy()
        score, degraded, decision, codes, rules = decisions
        rows = Rows(
            decided_us=time.time_ns() // 1000,
            context=context.tobytes(),
            features=features,
            probabilities=probabilities,
            score=score,
            degraded=degraded,
            decision=decision,
            reason_codes=codes,
            rules=rules,
            began_us=began_us,
            decision_us=time.monotonic_ns() // 1000 - began_us,
            details=None if details is None else _shorter_details(details),
        )
        self._writer.append(rows)

    def close(self) -> None:
        """Write all pending records."""
        self._writer.close()


def _shorter_details(details: list[bytes]) -> list[bytes]:
    """Return details, empty in place of any that are too long for a record."""
    longest = max(map(len, details), default=0)
    if longest <= MAX_DETAILS_BYTES:
        return details
    text = "details of a record are left out: %d bytes, and a record takes %d"
    log.warning(text, longest, MAX_DETAILS_BYTES)
    return [b"" if len(one) > MAX_DETAILS_BYTES else one for one in details]


def open_journal(
    pb: Any, heading: Heading, *, window_s: int, labels: Mapping[str, str]
) -> StepJournal | None:
    """
    Open the journal that the environment names; None when it names none.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        heading: The values that all records share.
        window_s: Time for which an answer is valid for its transaction id.
        labels: Labels of every metric; product, model and version.
    """
    url = os.environ.get(JOURNAL_URL_VARIABLE, "")
    if not url:
        text = "%s is not set: decisions leave no record"
        triton.log.warning(text, JOURNAL_URL_VARIABLE)
        return None
    try:
        writer = open_writer(
            url,
            heading,
            folder=os.environ.get(JOURNAL_SPOOL_VARIABLE, ""),
            extra_commands=StoreCommands(window_s=window_s),
            extra_commands_url=os.environ.get(STORE_URL_VARIABLE, url),
            on_report=JournalMetrics(pb, labels=labels).export,
        )
    except InputError as error:
        problem = f"{JOURNAL_URL_VARIABLE}: {error.problem}"
        raise pb.TritonModelException(problem) from error
    return StepJournal(writer)


class JournalMetrics:
    """
    Export the metrics of one writer, from its thread: no answer waits for them.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        labels: Labels of every metric.
    """

    def __init__(self, pb: Any, *, labels: Mapping[str, str]) -> None:
        families = {
            name: pb.MetricFamily(
                name=name, description=text, kind=getattr(pb.MetricFamily, kind)
            )
            for name, (kind, text) in FAMILIES.items()
        }
        self._fates = {
            fate: families["tollgate_journal_records_total"].Metric(
                labels={**labels, "fate": fate}
            )
            for fate in FATES
        }
        self._exported = dict.fromkeys((*FATES, *_CHUNKS), 0)
        self._chunks = {
            name: families[f"tollgate_journal_{name}_chunks_total"].Metric(
                labels=dict(labels)
            )
            for name in _CHUNKS
        }
        self._buffered, self._full = (
            families[f"tollgate_journal_{name}"].Metric(labels=dict(labels))
            for name in ("buffered_records", "stream_full")
        )
        self._lag = families["tollgate_journal_lag_seconds"].Metric(
            labels=dict(labels), buckets=list(_LAG_BUCKETS_S)
        )
        self._families = families  # Triton's metrics do not outlive them
        self._due_s = self._lag_due_s = 0.0
        self._longest_s = -1.0  # longest lag since the last export

    def export(self, counts: JournalCounts, lags: Sequence[float]) -> None:
        """Export the writer's numbers: counters each second, lags each 0.1 s."""
        now_s = time.monotonic()
        self._longest_s = max(self._longest_s, *lags) if lags else self._longest_s
        if now_s >= self._lag_due_s and self._longest_s >= 0:
            # Each update is a message to the server, which costs more than the record.
            self._lag.observe(self._longest_s)
            self._longest_s = -1.0
            self._lag_due_s = now_s + _LAG_INTERVAL_S
        if now_s < self._due_s:
            return
        self._due_s = now_s + _INTERVAL_S
        for name, metric in (*self._fates.items(), *self._chunks.items()):
            number = getattr(counts, name)
            if number > self._exported[name]:
                metric.increment(number - self._exported[name])
                self._exported[name] = number
        self._buffered.set(counts.buffered)
        self._full.set(int(counts.full))
