"""Repeated passes over a sealed journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from tests.support.audit.random_records import REPOSITORY
from tests.support.monitor.sealed_journals import (
    ARTIFACT,
    DAY_US,
    FEATURES,
    LOOKED_US,
    Sealed,
    decisions,
    shifted,
    vectors,
)
from tollgate.audit.chain.links import LinkContent
from tollgate.audit.releases.archived_release import NAME
from tollgate.audit.worker.retention import retain
from tollgate.errors import InputError
from tollgate.features.windows.entity_entries import MISSING
from tollgate.monitor.journal_monitor import (
    RELEASES,
    Journals,
    MonitorOptions,
    ProductMonitor,
)
from tollgate.schema import ARTIFACT_FILE, Degraded

OPTIONS = MonitorOptions(window=1_000)


def monitor(sealed: Sealed, *, options: MonitorOptions = OPTIONS) -> ProductMonitor:
    """Start to monitor a journal."""
    return ProductMonitor(sealed.folder, repository=REPOSITORY, options=options)


def drifted(found: ProductMonitor, release: str = "fraud-1") -> list[list[str]]:
    """Return the drifted columns of each window."""
    windows = found.streams[release].windows
    return [sorted(one.name for one in window.drifted) for window in windows]


def test_growing_journal_gives_the_result_of_one_look(tmp_path: Path) -> None:
    """Each segment is read once; windows span segments and looks."""
    sealed = Sealed(tmp_path)
    growing = None
    for first in range(0, 4_200, 700):
        part = shifted if first >= 2_100 else decisions
        sealed.seal(part(700, first=first))
        growing = growing or monitor(sealed)
        growing.look(LOOKED_US)
    once = monitor(sealed)
    once.look(LOOKED_US)
    assert growing is not None
    assert drifted(growing) == drifted(once) == [[], [], ["amount"], ["amount"]]
    own = [one.streams["fraud-1"] for one in (growing, once)]
    windows = [[w.verdicts for w in stream.windows] for stream in own]
    assert windows[0] == windows[1]
    assert [stream.mix.rows for stream in own] == [4_200, 4_200]
    assert once.drifted


def test_each_release_is_compared_with_its_own_training(tmp_path: Path) -> None:
    """The same vectors are drift for one model, and training data for the other."""
    sealed = Sealed(tmp_path)
    record = msgspec.json.decode(ARTIFACT.read_bytes())
    amount = record["training"]["features"]["amount"]
    amount["quantiles"] = [one + 150 for one in amount["quantiles"]]
    files = {ARTIFACT_FILE: msgspec.json.encode(record)}
    sealed.chain.add(
        LinkContent(kind="release", files=files, facts={NAME: "fraud-2"}),
    )
    features = vectors(2_000, seed=8)
    features[:, FEATURES.index("amount")] += 150
    for release, writer in (("fraud-1", "a" * 16), ("fraud-2", "b" * 16)):
        sealed.seal(decisions(2_000, features=features, release=release, writer=writer))
    found = monitor(sealed)
    found.look(LOOKED_US)
    assert drifted(found, "fraud-1") == [["amount"], ["amount"]]
    assert drifted(found, "fraud-2") == [[], []]


def test_rows_left_out_are_counted_by_cause(tmp_path: Path) -> None:
    """Degraded, without consent, of an unknown release: none is drift."""
    sealed = Sealed(tmp_path, consent="channel")
    features = vectors(1_500, seed=1)
    features[500:1_000] = 0
    bits = np.zeros(1_500, np.uint32)
    bits[500:1_000] = Degraded.STORE_UNAVAILABLE | Degraded.LOOKUPS_UNREAD
    bits[1_000:] = Degraded.COLD_START
    said = np.ones(1_500, np.int64)
    said[1_400:] = MISSING
    yes = {"channel": said}
    sealed.seal(decisions(1_500, features=features, degraded=bits, fields=yes))
    found = monitor(sealed)
    found.look(LOOKED_US)
    # The field is not declared, so nobody's consent is known: nothing is compared.
    assert found.streams["fraud-1"].fates() == {
        "compared": 0,
        "degraded": 0,
        "withheld": 1_500,
        "unknown": 0,
    }
    open_ = Sealed(tmp_path / "open")
    open_.seal(decisions(1_500, features=features, degraded=bits))
    open_.seal(decisions(100, first=1_500, release="gone-7"))
    found = monitor(open_)
    found.look(LOOKED_US)
    assert found.streams["fraud-1"].fates()["degraded"] == 500
    assert found.streams["fraud-1"].fates()["compared"] == 1_000
    assert drifted(found) == [[]]
    assert found.streams["gone-7"].fates()["unknown"] == 100
    assert "neither in the journal nor" in found.streams["gone-7"].problem


def test_vectors_of_other_features_are_not_compared(tmp_path: Path) -> None:
    """Features without names have no training distribution."""
    sealed = Sealed(tmp_path, repository=None)
    sealed.seal(decisions(1_200))
    found = monitor(sealed)
    found.look(LOOKED_US)
    stream = found.streams["fraud-1"]
    assert stream.fates()["unknown"] == 1_200
    assert (stream.mix.foreign, stream.judged["decisions"]) == (1_200, 0)


def test_removed_segments_are_no_error(tmp_path: Path) -> None:
    """Also if they are removed between two looks."""
    sealed = Sealed(tmp_path)
    sealed.seal(decisions(1_000), shifted(1_000, first=1_000))
    before = monitor(sealed)
    before.look(LOOKED_US)
    newest = sealed.chain.alive("segment")[-1]
    retain(sealed.chain, before_us=newest.until_us)
    before.look(LOOKED_US)
    after = monitor(sealed)
    after.look(LOOKED_US)
    assert drifted(before) == [[], ["amount"]]
    assert drifted(after) == [["amount"]]


def test_old_segments_are_not_read(tmp_path: Path) -> None:
    """Segments that end before the given time are left out."""
    sealed = Sealed(tmp_path)
    sealed.seal(shifted(1_000, first=0), decisions(1_000, first=1_000))
    newest = sealed.chain.alive("segment")[-1]
    options = msgspec.structs.replace(OPTIONS, since_us=newest.until_us)
    found = monitor(sealed, options=options)
    found.look(LOOKED_US)
    assert drifted(found) == [[]]


def test_damaged_journal_gives_one_line_with_the_file(tmp_path: Path) -> None:
    """A segment that is no Parquet file; a link that does not follow."""
    sealed = Sealed(tmp_path)
    sealed.seal(decisions(600))
    (segment,) = sealed.folder.glob("*.segment.parquet")
    whole = segment.read_bytes()
    segment.write_bytes(whole[: len(whole) // 2])
    found = monitor(sealed)
    found.look(LOOKED_US)
    with pytest.raises(InputError, match=r"cannot be monitored: .*segment\.parquet"):
        found.require_read()
    segment.write_bytes(whole)
    found = monitor(sealed)
    found.look(LOOKED_US)
    sealed.seal(decisions(600, first=600), decisions(600, first=1_200))
    last = sorted(sealed.folder.glob("*.json"))[-1]
    text = last.read_text()
    previous = sealed.chain.links[-1].previous
    last.write_text(text.replace(previous, "0" * 64))
    with pytest.raises(InputError, match="does not follow the one before"):
        found.look(LOOKED_US)
    assert found.streams["fraud-1"].mix.rows == 1_200  # what came before it
    with pytest.raises(InputError, match="holds no journal"):
        ProductMonitor(tmp_path, repository=None, options=OPTIONS)


def test_day_of_decisions_is_judged_once_it_is_over(tmp_path: Path) -> None:
    """By the clock of the server that decided."""
    sealed = Sealed(tmp_path)
    day = decisions(800)
    sealed.seal(day, *(_later(part, days=1) for part in [shifted(800, first=800)]))
    found = monitor(sealed)
    at_us = int(day.decided_us[0]) // DAY_US * DAY_US
    found.look(at_us + DAY_US + 600_000_000)
    days = found.streams["fraud-1"].days
    assert [[one.name for one in window.drifted] for window in days] == [[]]
    found.look(at_us + 2 * DAY_US + 600_000_000)
    assert [[one.name for one in window.drifted] for window in days] == [[], ["amount"]]


def _later(records: object, *, days: int) -> object:
    return msgspec.structs.replace(
        records, decided_us=records.decided_us + days * DAY_US
    )


def cut(segment: Path) -> None:
    """Truncate a file."""
    segment.write_bytes(segment.read_bytes()[:4])


def other(segment: Path) -> None:
    """Insert an invalid decision."""
    pl.read_parquet(segment).with_columns(decision=pl.lit("hm")).write_parquet(segment)


@pytest.mark.parametrize("spoil", [cut, other, Path.unlink])
def test_unreadable_segment_is_read_at_a_later_look(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    """Later segments are read meanwhile; in the end every decision counts once."""
    sealed = Sealed(tmp_path)
    sealed.seal(*(decisions(600, first=first) for first in (0, 600, 1_200)))
    damaged = sorted(sealed.folder.glob("*.segment.parquet"))[1]
    whole = damaged.read_bytes()
    spoil(damaged)
    found = monitor(sealed)
    for _ in range(2):
        found.look(LOOKED_US)
        assert [damaged.name in one for one in found.unread.values()] == [True]
        assert found.streams["fraud-1"].mix.rows == 1_200
    sealed.seal(decisions(600, first=1_800))
    found.look(LOOKED_US)
    assert found.streams["fraud-1"].mix.rows == 1_800
    damaged.write_bytes(whole)
    for _ in range(2):
        found.look(LOOKED_US)
        assert found.unread == {}
        assert found.streams["fraud-1"].mix.rows == 2_400


def test_missing_journal_is_reported(tmp_path: Path) -> None:
    """A failed look does not change the time of the last one; the next continues."""
    sealed = Sealed(tmp_path)
    sealed.seal(decisions(600))
    found = monitor(sealed)
    found.look(LOOKED_US)
    away = sealed.folder.rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"cannot be monitored: .*link \d is gone"):
        found.look(LOOKED_US + 1)
    assert found.looked_us == LOOKED_US
    away.rename(sealed.folder)
    sealed.seal(decisions(600, first=600))
    found.look(LOOKED_US + 2)
    assert found.streams["fraud-1"].mix.rows == 1_200


def test_memory_holds_the_newest_releases_only(tmp_path: Path) -> None:
    """For any number of releases, and no links that were read."""
    sealed = Sealed(tmp_path, repository=None)
    found = None
    for number in range(RELEASES + 3):
        writer = f"{number:016x}"
        day = decisions(1, release=f"fraud-{number}", writer=writer)
        sealed.seal(_later(day, days=number))
        found = found or monitor(sealed)
        found.look(LOOKED_US)
    assert found is not None
    named = [f"fraud-{number}" for number in range(3, RELEASES + 3)]
    assert list(found.streams) == named
    assert list(found.deciding) == named[-1:]
    assert (found._chain.pending, found._chain.releases) == ({}, [])


def test_drift_of_a_dropped_release_still_counts(tmp_path: Path) -> None:
    """The exit status covers all windows that were read."""
    sealed = Sealed(tmp_path)
    sealed.seal(shifted(1_000, first=0))
    for number in range(RELEASES):
        writer = f"{number:016x}"
        day = decisions(1, release=f"other-{number}", writer=writer)
        sealed.seal(_later(day, days=1 + number))
    found = monitor(sealed)
    found.look(LOOKED_US)
    assert "fraud-1" not in found.streams
    assert found.drifted


def test_later_journal_is_opened_once_it_exists(tmp_path: Path) -> None:
    """From all journals of a folder, or by name; each once."""
    home = tmp_path / "journal"
    given = {"home": home, "repository": None, "options": OPTIONS}
    every, named = Journals((), **given), Journals([home / "fraud"], **given)
    for journals in (every, named):
        with pytest.raises(InputError, match="holds no journal"):
            journals.open()
        assert journals.monitors == []
    Sealed(tmp_path).seal(decisions(1))
    for _ in range(2):
        Sealed(tmp_path, product="shop", repository=None)
        for journals in (every, named):
            journals.open()
    assert [one.folder.name for one in every.monitors] == ["fraud", "shop"]
    assert [one.folder.name for one in named.monitors] == ["fraud"]
