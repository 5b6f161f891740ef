"""Records of rows that a rule decided before the model: no score, and no fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY
from tests.support.policy.early_rules import CODE, release_early_rule
from tollgate.audit.releases.journal_replay import replay
from tollgate.audit.releases.labelled_decisions import accuracy_by_release
from tollgate.audit.releases.record_rows import read_table
from tollgate.audit.review.explanation import ExplainedRecord, explain_record
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.reasons import ReasonSealer
from tollgate.challenger.decision_counts import count_arm, count_pairs
from tollgate.challenger.shadow_scoring import Scorer
from tollgate.journal.decision_record import Records, decode_chunk, encode_chunk

Open = Callable[..., Any]
EARLY = (1, 4, 7, 11)
ROWS = 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Release the rule."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert release_early_rule(copy).name == "fraud-2"
    return copy


@pytest.fixture
def records(repository: Path) -> Records:
    """Decide rows, four of them before the model, and send them through a chunk."""
    release = opened(repository, release="fraud-2")
    made = decided(ROWS, release=release, listed=EARLY)
    return decode_chunk(encode_chunk(made))


def seal(open_journal: Open, repository: Path, records: Records) -> Any:
    """Seal records in a journal."""
    journal = open_journal(repository=repository)
    journal.sealer.seal([records])
    return journal


def explain(journal: Any, repository: Path, row: int) -> ExplainedRecord:
    """Explain one of them."""
    (link,) = journal.chain.alive("segment")
    table = read_table(journal.folder, link)
    return explain_record(
        table[row : row + 1],
        place="here",
        product="fraud",
        archived=journal.releases.get("fraud-2"),
        repository=repository,
    )


def test_records_have_neither_score_nor_probabilities(records: Records) -> None:
    """They are declined by the rule's code alone, and no bit says that a model failed.

    Other tests here rest on that.
    """
    early = np.isin(np.arange(ROWS), EARLY)
    assert np.isnan(records.score).tolist() == early.tolist()
    assert np.isnan(records.probabilities).all(axis=1).tolist() == early.tolist()
    assert {records.reason_codes[row] for row in EARLY} == {CODE.encode()}
    assert (records.decision[early] == 2).all()
    assert not records.degraded[early].any()


def test_replay_finds_them_equal(
    open_journal: Open, repository: Path, records: Records
) -> None:
    """A record with probabilities that the rule does not allow differs."""
    journal = seal(open_journal, repository, records)
    found = replay(journal.chain, journal.releases, repository=repository)
    (part,) = found.parts
    assert (part.rows, part.same, part.differing) == (ROWS, ROWS, 0)


def test_replay_finds_wrong_ones(
    open_journal: Open, repository: Path, records: Records
) -> None:
    """Probabilities where there should be none, and none where there should be some."""
    chances = records.probabilities.copy()
    chances[EARLY[0]] = chances[0]
    chances[0] = np.nan
    wrong = msgspec.structs.replace(records, probabilities=chances)
    journal = seal(open_journal, repository, wrong)
    found = replay(journal.chain, journal.releases, repository=repository)
    assert found.parts[0].aspects == {"probabilities": 2}
    flagged = flag_new(journal.chain, journal.releases)[0].facts
    assert flagged["probabilities"] == "2"


def test_late_checks_accept_them(
    open_journal: Open, repository: Path, records: Records
) -> None:
    """Neither the check of probabilities nor that of scores flags one."""
    journal = seal(open_journal, repository, records)
    (link,) = flag_new(journal.chain, journal.releases)
    assert not {"probabilities", "score", "rules"} & link.facts.keys()


def test_their_explanation_is_the_rule(
    open_journal: Open, repository: Path, records: Records
) -> None:
    """No thresholds applied and no feature contributed; other rows have both."""
    journal = seal(open_journal, repository, records)
    found = explain(journal, repository, EARLY[1])
    assert (found.score, found.threshold, found.unexplained) == (None, None, "")
    assert found.contributions == []
    assert [one.name for one in found.rules] == ["stolen_card"]
    assert [(one.code, one.feature) for one in found.reasons] == [(CODE, "")]
    usual = explain(journal, repository, 0)
    assert usual.threshold is not None
    assert len(usual.contributions) == 15


def test_their_sealed_reason_is_the_code(
    open_journal: Open, repository: Path, records: Records
) -> None:
    """All reviews and declines are explained."""
    journal = seal(open_journal, repository, records)
    sealer = ReasonSealer(journal.chain, journal.releases, repository=repository)
    (link,) = sealer.seal_new()
    assert link.facts == {"decisions": str(np.count_nonzero(records.decision))}
    table = read_table(journal.folder, link)
    for row in EARLY:
        own = table.filter(table["sequence"] == row)
        assert own.select("place", "code", "feature").rows() == [(1, CODE, "")]


def test_accuracy_counts_them_as_decisions(
    open_journal: Open, repository: Path, records: Records
) -> None:
    """They have no score to rank, and are declines all the same."""
    journal = seal(open_journal, repository, records)
    (found,) = accuracy_by_release(journal.chain, legitimate_before_us=2**60)
    assert found.decisions == found.labelled == ROWS


def test_a_shadow_counts_scores_and_errors_apart(
    repository: Path, records: Records
) -> None:
    """A release without the rule scores them; one with it does not: no error."""
    early = np.isin(np.arange(ROWS), EARLY)
    with_rule = opened(repository, release="fraud-2")
    for other, scored in ((with_rule, ROWS - len(EARLY)), (opened(), ROWS)):
        rows = Scorer(with_rule, other).score(records)
        arms = [count_arm(one, records.cents) for one in (rows.recorded, rows.other)]
        assert [arm.scored for arm in arms] == [ROWS - len(EARLY), scored]
        assert [arm.errors for arm in arms] == [0, 0]
        assert arms[1].score_sum > 0
        pairs = count_pairs(rows.recorded, rows.other, records.cents)
        assert (pairs.rows, pairs.scored) == (ROWS, ROWS - len(EARLY))
        assert abs(pairs.shift_sum) < 1e-4
        np.testing.assert_array_equal(rows.recorded.decision, rows.other.decision)
    assert not np.isnan(rows.other.score[early]).any()
