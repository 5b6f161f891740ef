"""Records have the words of the release that decided them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY
from tests.support.policy.own_outcomes import DEFAULT, OWN, with_own_outcomes
from tests.support.server.next_release import next_release
from tollgate.audit.releases.archived_release import recorded_outcomes
from tollgate.audit.releases.journal_replay import replay
from tollgate.audit.releases.labelled_decisions import accuracy_by_release
from tollgate.audit.releases.record_rows import EVENT, MOMENT, read_table
from tollgate.audit.worker.label_journal import REVISION
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.audit.worker.reasons import ReasonSealer
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.monitor.accuracy import COLUMNS
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor

Open = Callable[..., Any]
ROWS = 120


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Add a policy with other outcomes as version 2."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(copy / "fraud_decision/1", copy / "fraud_decision/2")
    path = copy / "fraud_decision/2/policy.yaml"
    path.write_text(with_own_outcomes(path.read_text()))
    return copy


@pytest.fixture
def journal(open_journal: Open, repository: Path) -> Any:
    """Seal decisions of fraud-1, then of fraud-2 with the other outcomes."""
    made = open_journal(repository=repository)
    made.sealer.seal([decided(ROWS, release=opened(repository))])
    assert next_release(repository, fraud_decision=2).name == "fraud-2"
    by = opened(repository, release="fraud-2")
    made.sealer.seal([decided(ROWS, release=by, first=ROWS)])
    return made


def sealed(journal: Any) -> pl.DataFrame:
    """Read all records."""
    links = journal.chain.alive("segment")
    return pl.concat([read_table(journal.folder, link) for link in links])


def test_each_release_has_its_words(journal: Any) -> None:
    """In the records, and in the archive that gives them their meaning."""
    table = sealed(journal)
    for release, words in (("fraud-1", DEFAULT), ("fraud-2", OWN)):
        own = table.filter(pl.col("release") == release)
        assert set(own["decision"]) == {*words}
        assert journal.releases.outcomes(release).words == words
    found = recorded_outcomes(journal.folder)
    assert {name: one.words for name, one in found.items()} == {
        "fraud-1": DEFAULT,
        "fraud-2": OWN,
    }


def test_an_unknown_release_has_the_words_of_the_one_before(
    journal: Any, open_journal: Open, repository: Path
) -> None:
    """Its policy is neither in the journal nor in the repository."""
    assert journal.releases.outcomes("fraud-9").words == OWN
    again = open_journal(repository=None)
    assert again.releases.outcomes("fraud-9").words == OWN


def test_replay_compares_levels(journal: Any, repository: Path) -> None:
    """Each release reproduces its records; another's words are no difference."""
    found = replay(journal.chain, journal.releases, repository=repository)
    assert [(one.rows, one.same) for one in found.parts] == [(ROWS, ROWS)] * 2
    through = replay(
        journal.chain, journal.releases, repository=repository, through="fraud-2"
    )
    first, second = through.parts
    own = sealed(journal).filter(pl.col("release") == "fraud-1")
    named = int(own["reason_codes"].str.contains("SCORE_").sum())
    assert first.aspects == {"codes": named}
    assert second.same == ROWS


def test_a_severer_decision_has_reasons(journal: Any, repository: Path) -> None:
    """As many as are not the mildest of their release."""
    sealer = ReasonSealer(journal.chain, journal.releases, repository=repository)
    severe = ~pl.col("decision").is_in([DEFAULT[0], OWN[0]])
    links = sealer.seal_new()
    tables = [read_table(journal.folder, link) for link in links if link.table]
    explained = sum(one["sequence"].n_unique() for one in tables)
    assert explained == int(sealed(journal).select(severe.sum()).item())


def test_accuracy_and_monitor_read_the_words(journal: Any, repository: Path) -> None:
    """Counted by hand: flagged are the rows above the mildest word of their release."""
    table = sealed(journal)
    took_us = 1_000_000
    labels = table.select(
        TRANSACTION,
        pl.Series(LABEL, np.arange(len(table)) % 3 == 0, dtype=pl.Boolean).cast(
            pl.UInt8
        ),
        (pl.col(EVENT).dt.epoch("us") + took_us).cast(MOMENT).alias(LABEL_TIME),
        pl.lit(0, pl.Int64).alias(REVISION),
    )
    now_us = int(table[EVENT].dt.epoch("us").max()) + 10 * took_us  # type: ignore[arg-type]
    found = ProductMonitor(
        journal.folder,
        repository=None,
        options=MonitorOptions(window=500, lag_us=2 * took_us),
    )
    found.look(now_us)
    found.require_read()
    found.judge(now_us, more=labels)
    assert found.accuracy is not None
    joined = table.select(*COLUMNS).join(labels, on=TRANSACTION)
    for release, words in (("fraud-1", DEFAULT), ("fraud-2", OWN)):
        own = joined.filter(pl.col("release") == release)
        counts = Counter(zip(own["decision"], own[LABEL], strict=True))
        known = found.accuracy.total(release).known.tolist()
        assert known == [[counts[word, label] for label in (0, 1)] for word in words]
        assert found.streams[release].outcomes.words == words
    accuracies = accuracy_by_release(journal.chain, legitimate_before_us=2**60)
    assert [one.outcomes for one in accuracies] == [DEFAULT, OWN]
    assert [one.flagged for one in accuracies] == [0.0, 0.0]  # flagged, none a fraud
