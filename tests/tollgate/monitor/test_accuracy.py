"""Accuracy with a known truth and a known lag of the labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.monitor.sealed_journals import (
    DAY_US,
    LOOKED_US,
    Sealed,
    decisions,
    labels_of,
)
from tollgate.audit.releases.record_rows import EVENT, MOMENT
from tollgate.audit.worker.label_journal import (
    REVISION,
    pseudonymised,
    read_labels,
    seal_labels,
)
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.monitor.accuracy import DailyAccuracy, LabelRule, known_by
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor

DAYS, PER_DAY = 40, 4_000
FRAUD, CAUGHT, FALSE = 0.05, 0.6, 0.02
MEAN_LAG_DAYS = 5.0
PRECISION = FRAUD * CAUGHT / (FRAUD * CAUGHT + (1 - FRAUD) * FALSE)


class World:
    """Forty days of a model that never changes; frauds are reported after 5 days."""

    def __init__(self) -> None:
        chance = np.random.default_rng(1)
        rows = DAYS * PER_DAY
        self.fraud = chance.random(rows) < FRAUD
        flagged = np.where(
            self.fraud, chance.random(rows) < CAUGHT, chance.random(rows) < FALSE
        )
        event_us = np.repeat(np.arange(DAYS), PER_DAY) * DAY_US + DAY_US // 2
        took_us = (chance.exponential(MEAN_LAG_DAYS, rows) * DAY_US).astype(np.int64)
        ids = pl.Series([f"t-{row}" for row in range(rows)])
        self.segment = pl.DataFrame(
            {
                TRANSACTION: ids,
                "release": pl.Series(["fraud-1"]).new_from_index(0, rows),
                "decision": np.where(flagged, "decline", "approve"),
                EVENT: pl.Series(event_us).cast(MOMENT),
            }
        )
        which = np.flatnonzero(self.fraud)
        self.labels = pl.DataFrame(
            {
                TRANSACTION: ids.gather(which),
                LABEL: pl.Series(np.ones(len(which), np.uint8)),
                LABEL_TIME: pl.Series((event_us + took_us)[which]).cast(MOMENT),
                REVISION: pl.Series(np.zeros(len(which), np.int64)),
            }
        )

    def judged(self, *, lag_days: float) -> DailyAccuracy:
        """Judge at the end of the last day, by the labels known then."""
        now_us = DAYS * DAY_US
        rule = LabelRule(
            as_of_us=now_us, lag_us=int(lag_days * DAY_US), legitimate=True
        )
        found = DailyAccuracy(rule)
        found.add(self.segment, known_by(self.labels, now_us))
        return found


@pytest.fixture(scope="module")
def world() -> World:
    """Return the world that all tests share."""
    return World()


def test_without_a_lag_the_newest_days_look_worse(world: World) -> None:
    """Precision by the labels known now falls to nothing."""
    known = known_by(world.labels, DAYS * DAY_US)
    joined = world.segment.join(known, on=TRANSACTION, how="left").with_columns(
        (pl.col(EVENT).dt.epoch("us") // DAY_US).alias("day")
    )
    flagged = joined.filter(pl.col("decision") == "decline")
    by_day = flagged.group_by("day").agg(pl.col(LABEL).fill_null(0).mean()).sort("day")
    assert by_day[LABEL][:10].mean() == pytest.approx(PRECISION, abs=0.02)
    assert by_day[LABEL][-1] < PRECISION / 5


def test_days_judged_at_one_age_are_alike_and_correct(world: World) -> None:
    """At 25 days, five times the mean lag, every day shows the truth."""
    found = world.judged(lag_days=25)
    days = found.days["fraud-1"]
    old = {day: one for day, one in days.items() if one.old}
    assert sorted(old) == list(range(15))
    for one in old.values():
        assert one.precision(2).value == pytest.approx(PRECISION, abs=0.08)
        assert one.recall(2).value == pytest.approx(CAUGHT, abs=0.12)
    whole = found.total("fraud-1")
    assert whole.precision(2).value == pytest.approx(PRECISION, abs=0.015)
    assert whole.young == 25 * PER_DAY
    truth = world.fraud[: 15 * PER_DAY].sum()
    assert whole.frauds / truth == pytest.approx(1 - np.exp(-5), abs=0.01)
    newest = found.newest("fraud-1")
    assert newest is not None
    assert newest.known.tolist() == days[14].known.tolist()


def test_too_short_lag_has_a_constant_error_and_is_reported(
    world: World,
) -> None:
    """At 5 days 63 % of the frauds are known; no day is worse than another."""
    found = world.judged(lag_days=5)
    share = 1 - np.exp(-1)
    assert found.in_time == pytest.approx(share, abs=0.02)
    days = sorted(found.days["fraud-1"].items())
    old = [one for _, one in days if one.old]
    first, last = old[:10], old[-10:]
    for ten in (first, last):
        precision = np.mean([one.precision(2).value for one in ten])
        assert precision == pytest.approx(PRECISION * share, abs=0.04)
    assert found.total("fraud-1").late > 0


def test_unlabelled_decisions_are_left_out_unless_legitimate(
    world: World,
) -> None:
    """If both outcomes are reported, a missing label is no outcome."""
    now_us = DAYS * DAY_US
    found = DailyAccuracy(
        LabelRule(as_of_us=now_us, lag_us=25 * DAY_US, legitimate=False)
    )
    found.add(world.segment, known_by(world.labels, now_us))
    whole = found.total("fraud-1")
    assert whole.labelled == whole.frauds > 0
    assert whole.old == 15 * PER_DAY


def test_label_revised_within_the_lag_counts_as_revised() -> None:
    """The highest revision known at that age counts; a later one changes nothing."""
    segment = pl.DataFrame(
        {
            TRANSACTION: ["a", "b"],
            "release": ["r", "r"],
            "decision": ["decline", "review"],
            EVENT: pl.Series([0, 0]).cast(MOMENT),
        }
    )
    labels = pl.DataFrame(
        {
            TRANSACTION: ["a", "a", "b", "b"],
            LABEL: pl.Series([1, 0, 1, 0], dtype=pl.UInt8),
            LABEL_TIME: (pl.Series([1, 9, 1, 11]) * DAY_US).cast(MOMENT),
            REVISION: [0, 1, 0, 1],
        }
    )
    found = DailyAccuracy(
        LabelRule(as_of_us=30 * DAY_US, lag_us=10 * DAY_US, legitimate=False)
    )
    found.add(segment, labels)
    assert found.total("r").known.tolist() == [[0, 0], [0, 1], [1, 0]]


def test_sealed_labels_and_labels_of_a_file_count_alike(
    tmp_path: Path, spec: FeatureSpec
) -> None:
    """Through pseudonyms; judged again when labels come, not before."""
    sealed = Sealed(tmp_path)
    records = decisions(1_000)
    sealed.seal(records)
    label = (np.arange(1_000) % 4 == 0).astype(np.int64)
    path = labels_of(
        records, label, tmp_path / "labels.parquet", took_us=np.full(1_000, DAY_US)
    )
    read = read_labels(path, spec=spec)
    options = MonitorOptions(window=1_000, lag_us=2 * DAY_US)
    with_file, with_sealed = (
        ProductMonitor(sealed.folder, repository=None, options=options)
        for _ in range(2)
    )
    for one in (with_file, with_sealed):
        one.look(LOOKED_US)
        one.judge(LOOKED_US)
        assert one.accuracy is None
    more = pseudonymised(read, spec=spec, subjects=sealed.subjects)
    with_file.judge(LOOKED_US, more=more)
    seal_labels(sealed.chain, read, spec=spec, subjects=sealed.subjects)
    with_sealed.look(LOOKED_US)
    with_sealed.judge(LOOKED_US)
    flagged = records.decision > 0
    for one in (with_file, with_sealed):
        assert one.accuracy is not None
        whole = one.accuracy.total("fraud-1")
        assert (whole.labelled, whole.frauds) == (1_000, 250)
        assert whole.precision(1).value == pytest.approx(label[flagged].mean())
        assert whole.recall(1).value == pytest.approx(flagged[label == 1].mean())
    again = with_sealed.accuracy
    with_sealed.judge(LOOKED_US + 1)
    assert with_sealed.accuracy is again


def test_readable_segments_are_judged_at_the_next_look(
    tmp_path: Path, spec: FeatureSpec
) -> None:
    """At the next look, not on the next day."""
    sealed = Sealed(tmp_path)
    parts = [decisions(500, first=first) for first in (0, 500)]
    sealed.seal(*parts)
    for number, part in enumerate(parts):
        path = labels_of(
            part,
            np.ones(500, np.int64),
            tmp_path / f"{number}.parquet",
            took_us=np.full(500, DAY_US),
        )
        read = read_labels(path, spec=spec)
        seal_labels(sealed.chain, read, spec=spec, subjects=sealed.subjects)
    damaged = sorted(sealed.folder.glob("*.segment.parquet"))[0]
    whole = damaged.read_bytes()
    options = MonitorOptions(window=1_000, lag_us=2 * DAY_US)
    found = ProductMonitor(sealed.folder, repository=None, options=options)
    for content, labelled in ((whole[:4], 500), (whole, 1_000)):
        damaged.write_bytes(content)
        found.look(LOOKED_US)
        found.judge(LOOKED_US)
        assert found.accuracy is not None
        assert found.accuracy.total("fraud-1").labelled == labelled
