"""Segments: their columns, and the data that they leave out."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.support.audit.random_records import (
    FEATURES,
    REPOSITORY,
    details_of,
    made,
)
from tollgate.audit.chain.digests import digests
from tollgate.audit.chain.verification import verify
from tollgate.audit.worker.pseudonyms import pseudonym
from tollgate.features.fields import hash_words
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.journal.decision_record import Records

Open = Callable[..., Any]

STEPS = ["table", "written", "linked", "finished"]


class KilledError(BaseException):
    """Simulates SIGKILL: no more code runs, but locks are released."""


def sealed(journal: Any) -> pl.DataFrame:
    """Read all segments."""
    return pl.concat(
        [
            pl.read_parquet(path)
            for path in sorted(journal.folder.glob("*.segment.parquet"))
        ],
        how="diagonal",
    )


def keys_of(journal: Any) -> set[tuple[str, int]]:
    """Return the keys of all sealed records; each must occur once."""
    rows = list(sealed(journal).select("writer", "sequence").iter_rows())
    assert len(set(rows)) == len(rows)
    return set(rows)


def test_segment_has_every_column_of_a_record(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """Features by name and to the bit, probabilities, bits, times; and no id."""
    journal = open_journal()
    records = made(40)
    journal.sealer.seal([records])
    table = sealed(journal)
    names = [f"feature_{name}" for name in spec.feature_names]
    assert len(names) == FEATURES
    found = table.select(names).to_numpy()
    assert found.dtype == np.float32
    assert found.tobytes() == records.features.tobytes()
    for name in ("score", "degraded", "age_ms", "applied", "rules", "features_us"):
        assert table[name].to_numpy().tolist() == getattr(records, name).tolist(), name
    assert table["probability_1"].to_list() == records.probabilities[:, 1].tolist()
    assert table["decided_at"].to_physical().to_list() == records.decided_us.tolist()
    assert table["amount_cents"].to_list() == records.cents.tolist()
    assert set(table["decision"]) <= {"approve", "review", "decline"}
    assert table["reason_codes"][0].encode() == records.reason_codes[0]
    content = b"".join(path.read_bytes() for path in journal.folder.glob("0*"))
    assert b"card-" not in content
    assert b"shop-" not in content


def test_details_are_sealed_byte_by_byte(open_journal: Open) -> None:
    """With their own records; a journal has records with and without, and verifies."""
    journal = open_journal()
    journal.sealer.seal([made(30), made(40, first=30, details=True)])
    journal.sealer.seal([made(5, first=70, details=True)])
    links = journal.chain.alive("segment")
    assert ["details" in dict(link.columns) for link in links] == [False, True, True]
    assert [dict(link.columns).get("details") for link in links][1:] == ["bytes"] * 2
    table = sealed(journal).sort("sequence")
    assert table["details"].to_list() == [
        None if number < 30 else details_of(number) for number in range(75)
    ]
    assert verify(journal.folder).findings == []
    assert journal.sealer.doubled == 0
    journal.sealer.seal([made(40, first=30, details=True)])
    assert journal.sealer.doubled == 40


def test_a_changed_byte_of_details_is_found(open_journal: Open) -> None:
    """The record is named; a details column that is missing is found, too."""
    journal = open_journal()
    journal.sealer.seal([made(20, details=True)])
    (path,) = journal.folder.glob("*.segment.parquet")
    table = pl.read_parquet(path)
    details = table["details"].to_list()
    details[12] = details[12][:-1] + bytes([details[12][-1] ^ 1])
    table.with_columns(pl.Series("details", details, dtype=pl.Binary)).write_parquet(
        path
    )
    found = verify(journal.folder)
    named = [str(one) for one in found.findings]
    assert any("record 12 of writer" in one and "was changed" in one for one in named)
    table.drop("details").write_parquet(path)
    assert verify(journal.folder).findings


def test_details_need_consent(open_journal: Open, spec: FeatureSpec) -> None:
    """They hold a user's history: without consent the record has none."""
    journal = open_journal(consent="channel")
    journal.sealer.seal([made(6, details=True)])
    table = sealed(journal)
    assert table["consent"].to_list() == [False] * 6
    assert table["details"].to_list() == [None] * 6
    assert verify(journal.folder).findings == []


def test_digest_of_details_is_as_described() -> None:
    """Computed with hashlib alone: layout, widths, then each text after its length."""
    frame = pl.DataFrame(
        {
            "n": pl.Series([7, None], dtype=pl.Int64),
            "t": pl.Series(["ü", None], dtype=pl.String),
            "d": pl.Series([b"\xff\x00", None], dtype=pl.Binary),
        }
    )
    layout = hashlib.sha256(b"n int64\nt text\nd bytes").digest()
    rows = [
        struct.pack("<Bq", 1, 7)
        + struct.pack("<I", 2)
        + "ü".encode()
        + struct.pack("<I", 2)
        + b"\xff\x00",
        struct.pack("<Bq", 0, 0) + b"\xff\xff\xff\xff" * 2,
    ]
    assert digests(frame) == [
        hashlib.sha256(b"\x00" + layout + row).digest() for row in rows
    ]


def test_person_can_be_found_until_erased(open_journal: Open) -> None:
    """The key gives the pseudonym of all the person's records."""
    journal = open_journal()
    records = made(200)
    journal.sealer.seal([records])
    one = records.entity_id[0][0]
    key = journal.subjects.known("customer", [one])[one]
    mine = sealed(journal).filter(
        pl.col("subject_customer") == pseudonym(key, "customer", one)
    )
    assert len(mine) == records.entity_id[0].count(one)
    first = pseudonym(key, "transaction", records.transaction_id[0])
    assert first in mine["transaction"].to_list()
    journal.subjects.erase("customer", one, day="2026-01-01")
    assert journal.subjects.known("customer", [one]) == {}
    assert verify(journal.folder, marks=journal.marks()).findings == []
    journal.sealer.seal([made(200, first=200)])
    new = journal.subjects.known("customer", [one])[one]
    assert pseudonym(new, "customer", one) not in mine["subject_customer"].to_list()


def test_repeated_records_are_left_out(open_journal: Open) -> None:
    """Whole chunks and parts of them, in one batch, later, and in a new process."""
    journal = open_journal()
    journal.sealer.seal([made(10), made(10), made(10, first=5)])
    journal.sealer.seal([made(30, first=2), made(5, first=4)])
    assert open_journal().sealer.seal([made(32)]) == []
    writer = made(1).writer
    assert keys_of(journal) == {(writer, number) for number in range(32)}


def test_skipped_numbers_are_recorded_and_counted(open_journal: Open) -> None:
    """A link records a gap; once the gap is filled, it is no loss any more."""
    journal = open_journal()
    (link,) = journal.sealer.seal([made(10), made(10, first=30)])
    assert [(one.first, one.last) for one in link.gaps] == [(10, 29)]
    (link,) = journal.sealer.seal([made(10, first=40)])
    assert link.gaps == ()
    assert verify(journal.folder).missing == {made(1).writer: 20}
    (link,) = journal.sealer.seal([made(5, first=10)])
    assert verify(journal.folder).missing == {made(1).writer: 15}
    journal.sealer.seal([made(15, first=15)])
    assert verify(journal.folder).missing == {}


@pytest.mark.parametrize("step", STEPS)
def test_kill_at_any_step_loses_and_doubles_nothing(
    open_journal: Open, step: str
) -> None:
    """The next worker seals the batch again; each record is there once."""
    open_journal().sealer.seal([made(20)])

    def kill(reached: str) -> None:
        if reached == step:
            raise KilledError

    with pytest.raises(KilledError):
        open_journal(on_step=kill).sealer.seal([made(20), made(20, first=20)])
    journal = open_journal()
    assert verify(journal.folder, marks=journal.marks()).findings == []
    journal.sealer.seal([made(20), made(20, first=20)])
    assert len(keys_of(journal)) == 40
    assert verify(journal.folder, marks=journal.marks()).findings == []


def test_features_of_an_unknown_spec_are_numbered(open_journal: Open) -> None:
    """Without a repository, or with another spec, only the names are lost."""
    journal = open_journal(repository=None)
    journal.sealer.seal([made(3, spec_hash=7)])
    names = [name for name in sealed(journal).columns if name.startswith("feature_")]
    assert names == [f"feature_{at}" for at in range(FEATURES)]


def test_other_features_go_into_another_segment(open_journal: Open) -> None:
    """A batch across a release makes two segments, each with its columns."""
    journal = open_journal()
    links = journal.sealer.seal([made(3), made(3, first=3, spec_hash=7)])
    assert [link.rows for link in links] == [3, 3]
    assert links[0].columns != links[1].columns


# Consent ------------------------------------------------------------------------------

PERSONAL = ("transaction", "subject_", "event_time", "amount_", "list_hits", "field_")
LEARNED = ("feature_", "probability_", "score", "fingerprint")


def repository_with(folder: Path, field: str) -> tuple[Path, int]:
    """Copy the repository, with a declared field that its policy uses for consent."""
    repository = folder / "model_repository"
    shutil.copytree(REPOSITORY, repository)
    features = repository / "fraud_features" / "1" / "features.yaml"
    kind = "category: keep" if "category" in field else "field: keep, default: 0"
    text = features.read_text().replace(
        "\nfeatures:\n", f"\nfeatures:\n  - {{name: keep, {kind}}}\n"
    )
    features.write_text(f"{text}\nfields:\n  - {field}\n")
    policy = repository / "fraud_decision" / "1" / "policy.yaml"
    policy.write_text(f"{policy.read_text()}\njournal: {{consent: keep}}\n")
    return repository, load_spec(features).spec_hash


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            "{name: keep, type: category, vocabulary: ['yes', 'no']}",
            hash_words([b"yes", b"no", b"", b"true"]),
        ),
        (
            "{name: keep, type: number, range: [0, 1]}",
            np.array([1, 0, MISSING, 1]),
        ),
    ],
    ids=["category", "number"],
)
def test_without_consent_only_the_decision_remains(
    open_journal: Open, tmp_path: Path, field: str, said: np.ndarray
) -> None:
    """No id, no purchase, no feature, no score, and no key of the person."""
    repository, spec_hash = repository_with(tmp_path, field)
    journal = open_journal(repository=repository)
    records = made(4, fields={"keep": said}, spec_hash=spec_hash)
    journal.sealer.seal([records])
    table = sealed(journal)
    assert table["consent"].to_list() == [True, False, False, True]
    for name in table.columns:
        empty = table[name].is_null().to_list()
        personal = name.startswith((*PERSONAL, *LEARNED))
        assert empty == ([False, True, True, False] if personal else [False] * 4), name
    without = {records.entity_id[0][1], records.entity_id[0][2]}
    without -= {records.entity_id[0][0], records.entity_id[0][3]}
    assert without
    assert journal.subjects.known("customer", list(without)) == {}
    assert verify(journal.folder, marks=journal.marks()).findings == []


def test_unreadable_consent_means_no_consent(open_journal: Open) -> None:
    """The field was not sent, or the meaning of its values is unknown."""
    journal = open_journal(repository=None, consent="keep")
    journal.sealer.seal([made(3), made(3, first=3, fields={"keep": np.ones(3, int)})])
    assert not sealed(journal)["consent"].any()


def test_slice_retains_rows_and_their_numbers() -> None:
    """A slice of a chunk equals a chunk of those rows."""
    from tollgate.audit.worker.sealing import slice_records

    whole = made(10)
    part = slice_records(whole, slice(3, 7))
    assert isinstance(part, Records)
    assert part.first_sequence == 3
    assert part.transaction_id == whole.transaction_id[3:7]
    assert part.entity_id[1] == whole.entity_id[1][3:7]
    assert part.features.tolist() == whole.features[3:7].tolist()
    assert part.fields["channel"].tolist() == whole.fields["channel"][3:7].tolist()
