"""Late checks of sealed segments, and removal of old segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tests.support.audit.random_records import DECIDED_US, made
from tollgate.audit.chain.verification import verify
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.retention import retain
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.decision_record import Records

Open = Callable[..., Any]


def plain(spec: FeatureSpec, rows: int, *, first: int = 0) -> Records:
    """Return records without any finding."""
    records = made(rows, first=first)
    values = {"during_weekend": 0, "during_night": 0, "amount": 20}
    counts = [
        values.get(name, 0 if "risk" in name else 40 if "avg" in name else 5)
        for name in spec.feature_names
    ]
    return msgspec.structs.replace(
        records,
        features=np.tile(np.array(counts, np.float32), (rows, 1)),
        rules=np.zeros(rows, np.uint64),
    )


def flags(journal: Any) -> list[tuple[str, int, str]]:
    """Run the late checks; return check, sequence number and detail of all flags."""
    found = []
    for link in flag_new(journal.chain, journal.releases):
        if link.table:
            table = pl.read_parquet(journal.folder / link.table)
            rows = table.select("check", "sequence", "detail").iter_rows()
            found += list(rows)
    return found


def test_valid_records_have_no_flag(open_journal: Open, spec: FeatureSpec) -> None:
    """Each segment is checked once, also if nothing is found."""
    journal = open_journal()
    journal.sealer.seal([plain(spec, 20)])
    (link,) = flag_new(journal.chain, journal.releases)
    assert (link.rows, link.facts, link.covers) == (0, {}, (3,))
    assert flag_new(journal.chain, journal.releases) == []


def test_late_checks_name_record_and_reason(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """One record each: out of range, wrong time, wrong score, unknown rule."""
    journal = open_journal()
    records = plain(spec, 8)
    records.features[1, 0] = 5_000
    records.event_time_us[2] = DECIDED_US - 3 * 86_400_000_000
    records.score[3] = 0.5
    records.rules[4] = 1 << 40
    records.reason_codes[5] = b"SCORE_REVIEW|NEVER_HEARD"
    records.probabilities[6] = [0.9, 0.9]
    records.score[6] = np.float32(0.9)
    records.transaction_id[7] = records.transaction_id[0]
    records.entity_id[0][7] = records.entity_id[0][0]
    journal.sealer.seal([records])
    found = {sequence: (check, detail) for check, sequence, detail in flags(journal)}
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]
    assert found[1] == ("range", "amount 5000 is not within 0 … 861.2")
    assert found[2][0] == "clock"
    assert found[2][1].startswith("the purchase was 259,20")
    assert found[3] == (
        "score",
        f"score 0.5, of the probabilities {records.probabilities[3, 1]:.9g}",
    )
    assert found[4] == ("rules", "no rule has its number")
    assert found[5] == ("rules", "no text for NEVER_HEARD")
    assert found[6][0] == "probabilities"
    assert found[7] == ("twin", "the transaction was decided before")
    assert verify(journal.folder, marks=journal.marks()).findings == []


def test_twin_in_the_previous_segment_is_found(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """Two answers to one purchase in consecutive segments."""
    journal = open_journal()
    first, second = plain(spec, 5), plain(spec, 5, first=5)
    second.transaction_id[0] = first.transaction_id[3]
    second.entity_id[0][0] = first.entity_id[0][3]
    for records in (first, second):
        journal.sealer.seal([records])
    assert [(check, number) for check, number, _ in flags(journal)] == [("twin", 5)]


def test_retention_removes_old_segments_and_leaves_the_chain_valid(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """Files of old links are gone, with their flags; links and proof remain."""
    journal = open_journal()
    day_us = 86_400_000_000
    for number in range(3):
        records = plain(spec, 10, first=10 * number)
        records.decided_us[:] += number * day_us
        journal.sealer.seal([records])
    flags(journal)
    assert retain(journal.chain, before_us=DECIDED_US) is None
    tombstone = retain(journal.chain, before_us=DECIDED_US + int(1.5 * day_us))
    assert tombstone is not None
    assert tombstone.facts["records"] == "20"
    assert len(list(journal.folder.glob("*.segment.parquet"))) == 1
    proof = verify(journal.folder, marks=journal.marks())
    assert proof.findings == []
    assert (proof.records, proof.removed) == (10, 20)
    # What was sealed once is known for ever.
    assert open_journal().sealer.seal([plain(spec, 30)]) == []


def test_restored_segment_is_found(open_journal: Open, spec: FeatureSpec) -> None:
    """Files that retention removed must not come back."""
    journal = open_journal()
    journal.sealer.seal([plain(spec, 10)])
    (path,) = journal.folder.glob("*.segment.parquet")
    content = path.read_bytes()
    retain(journal.chain, before_us=2**51)
    path.write_bytes(content)
    (finding,) = verify(journal.folder, marks=journal.marks()).findings
    assert str(finding) == f"{path.name}: was put back: retention removed it"
