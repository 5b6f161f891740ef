"""Explanations of single decisions, sealed or not."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY, made
from tollgate.audit.releases.journal_replay import facts_of
from tollgate.audit.releases.record_rows import read_table
from tollgate.audit.review.explanation import (
    NO_CONSENT,
    ExplainedRecord,
    explain_record,
)
from tollgate.audit.review.pending import find_pending, pending_table
from tollgate.audit.worker.reasons import ReasonSealer, sealed_reasons
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.schema import Degraded

Open = Callable[..., Any]


def explain(
    journal: Any, row: int, *, repository: Path | None = REPOSITORY
) -> ExplainedRecord:
    """Explain a record of a journal's first segment."""
    link = journal.chain.alive("segment")[0]
    table = read_table(journal.folder, link)
    return explain_record(
        table[row : row + 1],
        place="here",
        product="fraud",
        archived=journal.releases.get(table["release"][row]),
        repository=repository,
    )


def test_decline_is_explained(open_journal: Open) -> None:
    """Thresholds that applied, rules that matched, contributions that add up."""
    journal = open_journal()
    records = decided(40, degraded={2: int(Degraded.COLD_START)})
    journal.sealer.seal([records])
    policy = opened().policy
    segments = set()
    for row in range(40):
        found = explain(journal, row)
        assert found.threshold is not None
        segments.add(found.threshold.segment)
        score = records.score[row]
        level = int(score >= np.float32(found.threshold.review)) + int(
            score >= np.float32(found.threshold.decline)
        )
        # Without rules the thresholds alone decide.
        if not records.rules[row]:
            assert ("approve", "review", "decline")[level] == found.decision
        held = [
            one.name
            for bit, one in enumerate(policy.rules)
            if records.rules[row] >> np.uint64(bit) & np.uint64(1)
        ]
        assert [one.name for one in found.rules] == held
        assert 1 / (1 + math.exp(-found.margin)) == pytest.approx(score, abs=1e-6)
        amounts = [abs(one.amount) for one in found.contributions]
        assert amounts == sorted(amounts, reverse=True)
        assert len(amounts) == 15
        assert bool(found.reasons) == (found.decision != "approve")
    assert segments == {"other", "new_entity", "high_value"}


def test_computed_reasons_equal_sealed_reasons(open_journal: Open) -> None:
    """Same codes, texts and amounts."""
    journal = open_journal()
    records = decided(40)
    journal.sealer.seal([records])
    ReasonSealer(journal.chain, journal.releases, repository=None).seal_new()
    (segment,) = journal.chain.alive("segment")
    for row in np.flatnonzero(records.decision > 0).tolist():
        sealed, _ = sealed_reasons(
            *(journal.folder, journal.chain.links, segment),
            writer=records.writer,
            sequence=row,
        )
        computed = explain(journal, row).reasons
        assert [(one.code, one.text, one.feature) for one in computed] == [
            (one.code, one.text, one.feature) for one in sealed
        ]
        for mine, theirs in zip(computed, sealed, strict=True):
            if theirs.contribution is not None:
                assert theirs.contribution == np.float32(mine.contribution)


def test_record_without_consent_is_not_explained(
    open_journal: Open, tmp_path: Path
) -> None:
    """The explanation names the missing consent and has no threshold."""
    journal = open_journal(consent="channel")
    journal.sealer.seal([decided(3)])
    found = explain(journal, 1)
    assert found.unexplained == NO_CONSENT
    assert found.threshold is None
    assert found.codes or found.decision == "approve"


def test_answer_of_another_model_is_not_explained(open_journal: Open) -> None:
    """Without the model's probabilities there are no contributions."""
    journal = open_journal()
    journal.sealer.seal([made(3)])
    found = explain(journal, 0)
    assert "not those of the release's model" in found.unexplained
    assert found.threshold is not None
    assert found.contributions == []


def test_unknown_release_is_reported(open_journal: Open) -> None:
    """The explanation says where the release is missing."""
    journal = open_journal()
    journal.sealer.seal([made(3, release="old")])
    found = explain(journal, 0)
    assert "release old: is neither in the journal nor" in found.unexplained


def test_model_without_explanation_is_reported(
    open_journal: Open, tmp_path: Path
) -> None:
    """Rules and thresholds are there, contributions are not."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy)
    (copy / "fraud_model" / "1" / "explain.npz").unlink()
    release = read_release(copy, product="fraud")
    hashes = {
        name: digest
        for name, digest in release.hashes.items()
        if not name.endswith("explain.npz")
    }
    write_release(copy, msgspec.structs.replace(release, hashes=hashes))
    journal = open_journal(repository=copy)
    journal.sealer.seal([decided(3)])
    found = explain(journal, 0, repository=copy)
    assert found.unexplained == "release fraud-1: has no explain.npz"
    assert found.threshold is not None


def test_pending_decision_is_found(
    store_url: str, redis_client: redis.Redis, spec: Any
) -> None:
    """By its id or its number, in any chunk; a damaged chunk is skipped."""
    for number in range(70):
        raw = encode_chunk(decided(2, first=2 * number))
        redis_client.xadd(stream_key("fraud"), {CHUNK_FIELD: raw})
    redis_client.xadd(stream_key("fraud"), {CHUNK_FIELD: b"none"})
    redis_client.xadd(stream_key("fraud"), {b"e": b"end"})
    records = decided(2, first=6)
    names = (records.transaction_id[1].decode(), f"{records.writer}:7")
    for wanted in names:
        found = find_pending(store_url, product="fraud", wanted=wanted)
        assert found is not None
        assert (len(found), found.first_sequence) == (1, 7)
        np.testing.assert_array_equal(found.features[0], records.features[1])
    assert find_pending(store_url, product="fraud", wanted="never") is None
    assert find_pending(store_url, product="none", wanted=names[0]) is None
    table = pending_table(found, spec=spec, releases=None)
    facts = facts_of(table, spec)
    np.testing.assert_array_equal(facts.features[0], records.features[1])
    assert records.entity_id[0][1].decode() not in str(table.rows())


def test_pending_decision_needs_consent(open_journal: Open, spec: Any) -> None:
    """A row whose inputs may not be stored is not explained from the stream either."""
    journal = open_journal(consent="channel")
    table = pending_table(decided(1), spec=spec, releases=journal.releases)
    found = explain_record(
        table, place="stream", product="fraud", archived=None, repository=REPOSITORY
    )
    assert found.unexplained == NO_CONSENT
