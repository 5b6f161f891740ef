"""The journal's other readers take the records of a product that ranks items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.audit.ranked_records import ranked, write_ranked_shop
from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.labelled_decisions import accuracy_by_release, dataset
from tollgate.audit.releases.record_rows import EVENT, MOMENT, read_table
from tollgate.audit.worker.label_journal import REVISION
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.pseudonyms import TRANSACTION, Subjects
from tollgate.audit.worker.reasons import NOT_EXPLAINED, ReasonSealer
from tollgate.audit.worker.sealing import Sealer
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.journal.decision_record import Records
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor

ROWS = 60


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name the repository of a small shop."""
    return tmp_path_factory.mktemp("shop") / "models"


@pytest.fixture(scope="module")
def records(repository: Path) -> Records:
    """Make records of its lists, of three outcomes."""
    return ranked(ROWS, by=write_ranked_shop(repository))


@pytest.fixture(scope="module")
def journal(
    records: Records, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Chain:
    """Seal them, with the work that follows."""
    home = tmp_path_factory.mktemp("journal")
    chain = Chain(home / "journal", product="shop")
    releases = ReleaseArchive(chain, repository=repository)
    Sealer(chain, subjects=Subjects(home / "journal.keys"), releases=releases).seal(
        [records]
    )
    flag_new(chain, releases)
    ReasonSealer(chain, releases, repository=repository).seal_new()
    return chain


def test_records_have_the_words_of_the_product(
    journal: Chain, records: Records
) -> None:
    """Levels of the policy's own outcomes."""
    (link,) = journal.alive("segment")
    table = read_table(journal.folder, link)
    words = ("personal", "weak", "fallback")
    assert table["decision"].to_list() == [words[one] for one in records.decision]
    assert set(table["decision"]) >= {"personal", "fallback"}


def test_late_checks_find_nothing(journal: Chain) -> None:
    """A list's score is no probability."""
    (link,) = journal.alive("flags")
    assert link.facts == {}


def test_reasons_say_why_there_are_none(journal: Chain) -> None:
    """The model of items has no contributions of the request's features."""
    (link,) = journal.alive("reasons")
    assert link.facts["decisions"] == "0"
    assert NOT_EXPLAINED in link.facts


def test_labels_and_dataset_take_them(journal: Chain, records: Records) -> None:
    """One row per list, without its details; accuracy by the words of the product."""
    (link,) = journal.alive("segment")
    names = read_table(journal.folder, link)[TRANSACTION]
    labels = pl.DataFrame(
        {
            TRANSACTION: names,
            LABEL: pl.Series(np.arange(ROWS) % 2, dtype=pl.UInt8),
            LABEL_TIME: pl.Series(records.decided_us + 10).cast(MOMENT),
            REVISION: pl.Series(np.zeros(ROWS), dtype=pl.Int64),
        }
    )
    until_us = int(records.decided_us.max()) + 100
    found = dataset(journal, as_of_us=until_us, more_labels=labels)
    assert len(found.table) == ROWS
    assert "details" not in found.table.columns
    (accuracy,) = accuracy_by_release(journal)
    assert accuracy.decisions == ROWS
    assert accuracy.outcomes == ("personal", "weak", "fallback")


def test_the_monitor_judges_them(journal: Chain, repository: Path) -> None:
    """A pass over the journal ends, and counts every list."""
    found = ProductMonitor(
        journal.folder, repository=repository, options=MonitorOptions(window=20)
    )
    (link,) = journal.alive("segment")
    table = read_table(journal.folder, link)
    now_us = int(table[EVENT].dt.epoch("us").max()) + 1_000_000  # type: ignore[arg-type]
    found.look(now_us)
    found.require_read()
    found.judge(now_us)
    (stream,) = found.streams.values()
    assert stream.outcomes.words == ("personal", "weak", "fallback")
