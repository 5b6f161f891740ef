"""The lists of a journal: their figures by plain Python, and drift from the first."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from tests.support.audit.ranked_records import catalogue_of, ranked, write_ranked_shop
from tests.support.monitor.sealed_journals import LIST_METRICS, Sealed
from tollgate.audit.releases.past_release import OpenedRelease
from tollgate.cli.decisions.monitor_command import monitor_report, monitor_tables
from tollgate.journal.decision_record import Records
from tollgate.metrics import PAGES
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor
from tollgate.monitor.monitor_metrics import MonitorMetrics, samples_of
from tollgate.monitor.monitor_page import monitor_page
from tollgate.monitor.shown_lists import ListReader
from tollgate.ranking.ranking_record import decode_ranking, encode_ranking
from tollgate.schema import Degraded

SIZE = 500
COLUMNS = ["events_1h", "events_30d", "history_events", "history_age_h"]
COLUMNS += ["popularity", "score"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name the repository of a shop of 60 items."""
    return tmp_path_factory.mktemp("shop") / "models"


@pytest.fixture(scope="module")
def release(repository: Path) -> OpenedRelease:
    """Release the shop."""
    return write_ranked_shop(repository)


@pytest.fixture(scope="module")
def records(release: OpenedRelease) -> Records:
    """Lists of 1,500 requests, by users of whom each asked a few times."""
    return with_users(ranked(3 * SIZE, by=release), users=400)


def with_users(records: Records, *, users: int) -> Records:
    """Let users ask at random, one request in a hundred degraded."""
    chance = np.random.default_rng(1)
    rows = len(records)
    degraded = records.degraded.copy()
    degraded[::100] |= np.uint32(Degraded.STORE_UNAVAILABLE)
    names = [f"user-{one}".encode() for one in chance.integers(0, users, rows)]
    return msgspec.structs.replace(records, entity_id=[names], degraded=degraded)


def part(records: Records, start: int, stop: int) -> Records:
    """Take some rows."""
    columns: dict[str, object] = {
        name: value[start:stop]
        for name in records.__struct_fields__
        if isinstance(value := getattr(records, name), (list, np.ndarray))
    }
    columns |= {
        "entities": records.entities,
        "entity_id": [records.entity_id[0][start:stop]],
        "fields": {name: one[start:stop] for name, one in records.fields.items()},
        "first_sequence": records.first_sequence + start,
    }
    return msgspec.structs.replace(records, **columns)


def watched(state: Path, repository: Path, *records: Records) -> ProductMonitor:
    """Seal records, and monitor them; no day is over."""
    sealed = Sealed(state, product="shop", repository=repository)
    sealed.seal(*records)
    found = ProductMonitor(
        sealed.folder,
        repository=None,
        options=MonitorOptions(window=SIZE),
    )
    found.look(int(records[0].decided_us[0]))
    found.require_read()
    return found


def test_figures_are_those_of_the_records(
    tmp_path: Path, repository: Path, records: Records
) -> None:
    """Of the first window: of all its lists, the degraded ones among them."""
    found = watched(tmp_path, repository, records)
    (stream,) = found.streams.values()
    window = stream.windows[0]
    assert window.lists is not None
    assert window.rows == SIZE
    lists = [decode_ranking(one) for one in records.details[: window.mix.rows]]
    shown = [[int(at) for at in one.ranked.items if at >= 0] for one in lists]
    flat = [item for one in shown for item in one]
    assert window.lists.lists == len(lists) == window.mix.rows
    assert window.lists.coverage == len(set(flat)) / 60
    explored = sum(int(one.ranked.explored.sum()) for one in lists)
    assert explored > 0
    assert window.lists.explored == explored / len(flat)
    fallback = [bool((one.ranked.sources == 3).all()) for one in lists]
    cold = [
        not lost and all(action < 0 for action in one.given.history_actions)
        for lost, one in zip(fallback, lists, strict=True)
    ]
    assert window.lists.fallback == sum(fallback) / len(lists)
    assert window.lists.without_history == sum(cold) / len(lists)
    assert 0.1 < window.lists.without_history < 0.2  # one request of seven
    assert window.lists.short == 0
    # Exact shares of the events with more popular items, of each item.
    shares = [Fraction(float(one)) for one in catalogue_of().popularity]
    order = sorted(range(60), key=lambda item: (shares[item], item), reverse=True)
    tenth, above = {}, Fraction(0)
    for item in order:
        tenth[item] = int((above + shares[item] / 2) / sum(shares) * 10)
        above += shares[item]
    counts = [sum(tenth[item] == one for item in flat) for one in range(10)]
    assert window.lists.tenths == pytest.approx([n / len(flat) for n in counts])


def test_the_first_window_is_the_baseline_of_the_others(
    tmp_path: Path, repository: Path, records: Records
) -> None:
    """Unchanged lists hold; the rows of the baseline are compared with nothing."""
    found = watched(tmp_path, repository, records)
    (stream,) = found.streams.values()
    first, second = stream.windows
    assert first.verdicts == []
    assert [one.name for one in second.verdicts] == COLUMNS
    assert {one.state for one in second.verdicts} <= {"holds", "unsure"}
    degraded = int((records.degraded != 0).sum())
    assert stream.fates() == {
        "compared": len(records) - degraded - SIZE,
        "degraded": degraded,
        "withheld": 0,
        "unknown": 0,
        "baseline": SIZE,
    }
    assert stream.reference is not None
    column = stream.reference.columns[COLUMNS.index("history_events")]
    assert column.marks is not None
    lists = [
        decode_ranking(one)
        for one, bits in zip(records.details, records.degraded, strict=True)
        if not bits
    ][:SIZE]
    events = [sum(at >= 0 for at in one.given.history_actions) for one in lists]
    for value, (low, high), (least, most) in zip(
        column.marks.values, column.marks.below, column.marks.upto, strict=True
    ):
        assert low == high == sum(one < value for one in events) / SIZE
        assert least == most == sum(one <= value for one in events) / SIZE


def without_history(records: Records) -> Records:
    """Let four of five users be new ones."""
    details = []
    for row, raw in enumerate(records.details):
        record = decode_ranking(raw)
        if row % 5:
            none = np.full_like(record.given.history_items, -1)
            given = msgspec.structs.replace(
                record.given,
                history_items=none,
                history_actions=none.astype(np.int8),
            )
            record = msgspec.structs.replace(record, given=given)
        details.append(encode_ranking(record))
    return msgspec.structs.replace(records, details=details)


def test_new_users_are_drift(
    tmp_path: Path, repository: Path, records: Records
) -> None:
    """Of the columns of users alone; the metrics and the page say so."""
    later = without_history(part(records, 600, 3 * SIZE))
    found = watched(tmp_path, repository, part(records, 0, 600), later)
    (stream,) = found.streams.values()
    assert {one.name for one in stream.windows[-1].drifted} == {
        "history_events",
        "history_age_h",
    }
    samples = {
        (name, *(labels.get(one, "") for one in ("kind", "name", "tenth"))): value
        for name, labels, value in samples_of(found)
        if labels.get("window", "decisions") == "decisions"
    }
    newest = stream.windows[-1].lists
    assert newest is not None
    assert samples["drift", "user", "history_events", ""] == 1
    assert samples["drift", "items", "popularity", ""] == 0
    assert samples["list_share", "without_history", "", ""] > 0.4
    assert samples["coverage", "", "", ""] == newest.coverage
    assert samples["explored_share", "", "", ""] == newest.explored
    shares = [samples["shown_share", "", "", str(one)] for one in range(1, 11)]
    assert sum(shares) == pytest.approx(1)
    assert np.isnan(samples["confidence", "", "", ""])
    rows = {row.name: set(row.labels) for row in PAGES["monitor"][1]}
    metrics = MonitorMetrics([found])
    metrics.refresh()
    exported = {
        sample.name: set(sample.labels)
        for family in metrics.collect()
        for sample in family.samples
    }
    assert set(exported) >= LIST_METRICS
    assert exported == {name: rows[name] for name in exported}
    page = monitor_page([found])
    assert "<h1>Drift in shop</h1>" in page
    assert "first window" in page
    assert "no probability" not in page
    assert not re.search(r"\bnan\b", page)
    texts = [one for one in monitor_tables([found]) if isinstance(one, str)]
    assert f"{newest.coverage:.2%} of the catalogue shown" in texts[-1]
    (report,) = monitor_report([found])
    assert report["releases"][0]["newest_lists"] == newest


def test_a_damaged_or_foreign_list_is_unknown_alone(
    release: OpenedRelease, records: Records
) -> None:
    """A damaged record, one of another catalogue, and none at all."""
    one = decode_ranking(records.details[0])
    foreign = msgspec.structs.replace(one, catalogue_hash=one.catalogue_hash + 1)
    table = pl.DataFrame(
        {
            "details": [records.details[0], b"\x93", encode_ranking(foreign), None],
            "score": [0.5, 0.5, 0.5, 0.5],
            "feature_events_1h": [1.0] * 4,
            "feature_events_30d": [1.0] * 4,
        }
    )
    reader = ListReader(catalogue_of(), release.spec)
    values, lists, fits = reader.read(table)
    assert fits.tolist() == [True, False, False, False]
    assert (lists["count"] > 0).tolist() == fits.tolist()
    assert np.isnan(values[1:, 2:5]).all()


def test_an_unreadable_catalogue_is_a_reason(
    tmp_path: Path, repository: Path, records: Records
) -> None:
    """The release is counted, and not judged; `records` are of the same release."""
    damaged = tmp_path / "models"
    write_ranked_shop(damaged)
    (damaged / "shop_candidates/1/catalogue.npz").write_bytes(b"nothing")
    sealed = Sealed(tmp_path, product="shop", repository=damaged)
    sealed.seal(part(records, 0, 10))
    found = ProductMonitor(sealed.folder, repository=None, options=MonitorOptions())
    found.look(int(records.decided_us[0]))
    found.require_read()
    (stream,) = found.streams.values()
    assert stream.problem.startswith("its catalogue.npz is damaged")
    assert stream.fates()["unknown"] + stream.fates()["degraded"] == 10
