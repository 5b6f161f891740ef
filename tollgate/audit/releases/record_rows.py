"""Convert decisions into a table without any plain id."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.links import Link, path_of
from tollgate.audit.worker.pseudonyms import TRANSACTION, Subjects, pseudonym
from tollgate.errors import JournalError
from tollgate.journal.decision_record import Records
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import Outcomes

WRITER, SEQUENCE = "writer", "sequence"
FEATURE, FIELD, PROBABILITY, SUBJECT = "feature_", "field_", "probability_", "subject_"
DECIDED, EVENT = "decided_at", "event_time"
DETAILS = "details"  # only in segments of records that have them
MOMENT = pl.Datetime("us", "UTC")
NO_LEVEL = 255  # in place of a level, for a word that is no decision of the product

Bool = npt.NDArray[np.bool_]
SubjectKeys = Mapping[str, Mapping[bytes, bytes]]

# Stored with or without consent.
_PLAIN = ("degraded", "age_ms", "applied", "rules")
_STEPS = ("features_us", "model_us", "decision_us")


def keys_of(
    batch: Sequence[tuple[Records, Bool]], *, subjects: Subjects
) -> dict[str, dict[bytes, bytes]]:
    """
    Return the keys of all subjects with consent in some records; create missing ones.

    Raises:
        JournalError: The keys cannot be read or written.
    """
    wanted: dict[str, set[bytes]] = {}
    for records, consent in batch:
        consented = np.flatnonzero(consent).tolist()
        for entity, ids in subjects_of(records).items():
            wanted.setdefault(entity, set()).update(ids[row] for row in consented)
    return {name: subjects.keys(name, list(ids)) for name, ids in wanted.items()}


def subjects_of(records: Records) -> dict[str, list[bytes]]:
    """Return the subject ids of each row, by entity, the owner's entity included."""
    entities = zip(records.entities, records.entity_id, strict=True)
    return dict([records.owner, *entities])


def table_of(
    records: Records,
    *,
    feature_names: Sequence[str],
    consent: Bool,
    keys: SubjectKeys,
    outcomes: Outcomes,
) -> pl.DataFrame:
    """
    Convert records into a table.

    Rows without consent hold only the decision, its reasons and times.

    Args:
        consent: Rows that may be stored with personal data; bool [N].
        keys: Keys of the subjects, by entity and id.
        outcomes: Words of the release's decisions.
    """
    rows = len(records)
    first = records.first_sequence
    decided = pl.Series(records.decision).cast(pl.UInt32)
    columns: dict[str, pl.Series] = {
        WRITER: _constant(records.writer, rows),
        SEQUENCE: pl.Series(np.arange(first, first + rows, dtype=np.int64)),
        DECIDED: _moments(records.decided_us),
        "release": _constant(records.release, rows),
        "spec": _constant(spec_hash_text(records.spec_hash), rows),
        "decision": pl.Series(outcomes.words).gather(decided),
        "reason_codes": _text(records.reason_codes),
        **{name: pl.Series(getattr(records, name)) for name in (*_PLAIN, *_STEPS)},
        "consent": pl.Series(consent),
    }
    personal = _personal(records, feature_names, consent=consent, keys=keys)
    columns |= {
        name: column.set(pl.Series(~consent), None) if not consent.all() else column
        for name, column in personal.items()
    }
    return pl.DataFrame(columns)


def _personal(
    records: Records,
    feature_names: Sequence[str],
    *,
    consent: Bool,
    keys: SubjectKeys,
) -> dict[str, pl.Series]:
    """Return the columns with personal data, such as subjects, features and details."""
    columns = _names(records, consent=consent, keys=keys)
    columns[EVENT] = _moments(records.event_time_us)
    columns["amount_cents"] = pl.Series(records.cents)
    columns["list_hits"] = pl.Series(records.list_hits)
    for name, values in records.fields.items():
        columns[FIELD + name] = pl.Series(values)
    for at, name in enumerate(feature_names):
        columns[FEATURE + name] = pl.Series(records.features[:, at])
    for at in range(records.probabilities.shape[1]):
        columns[f"{PROBABILITY}{at}"] = pl.Series(records.probabilities[:, at])
    columns["score"] = pl.Series(records.score)
    if records.details:
        columns[DETAILS] = pl.Series(records.details, dtype=pl.Binary)
    return columns


def _names(
    records: Records, *, consent: Bool, keys: SubjectKeys
) -> dict[str, pl.Series]:
    """Compute pseudonyms of rows with consent; a transaction uses its owner's key."""
    consented = np.flatnonzero(consent).tolist()
    columns: dict[str, pl.Series] = {}
    for entity, ids in zip(records.entities, records.entity_id, strict=True):
        distinct = {ids[row] for row in consented}
        named = {one: pseudonym(keys[entity][one], entity, one) for one in distinct}
        columns[SUBJECT + entity] = pl.Series(
            [named.get(one, "") for one in ids], dtype=pl.String
        )
    name, owners = records.owner
    owner = keys[name]
    transactions = [""] * len(records)
    fingerprints = np.zeros(len(records), np.uint64)
    for row in consented:
        key = owner[owners[row]]
        transactions[row] = pseudonym(key, TRANSACTION, records.transaction_id[row])
        # The plain fingerprint is made of ids and amount, so it would identify a
        # subject to anyone who tries all values.
        fingerprints[row] = _keyed(key, int(records.fingerprint[row]))
    return {
        TRANSACTION: pl.Series(transactions, dtype=pl.String),
        "fingerprint": pl.Series(fingerprints),
        **columns,
    }


def _keyed(key: bytes, fingerprint: int) -> int:
    digest = hmac.digest(key, fingerprint.to_bytes(8, "little"), "sha256")
    return int.from_bytes(digest[:8], "little")


def _constant(text: str, rows: int) -> pl.Series:
    return pl.repeat(text, rows, dtype=pl.String, eager=True)


def _text(values: Sequence[bytes]) -> pl.Series:
    return pl.Series([one.decode(errors="replace") for one in values], dtype=pl.String)


def _moments(time_us: npt.NDArray[np.int64]) -> pl.Series:
    moments: pl.Series = pl.Series(time_us).cast(MOMENT)
    return moments


def levels_of(words: pl.Series, outcomes: Outcomes) -> npt.NDArray[np.uint8]:
    """Convert recorded words of decisions to levels; NO_LEVEL for others; uint8 [N]."""
    levels = outcomes.levels
    found = words.replace_strict(
        list(levels), list(levels.values()), default=NO_LEVEL, return_dtype=pl.UInt8
    )
    return np.asarray(found.to_numpy(), np.uint8)


# Read tables of the journal without verification.


def read_table(
    folder: Path, link: Link, *, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """
    Read the records of a link.

    Raises:
        JournalError: The file cannot be read.
    """
    path = path_of(folder, link.table)
    try:
        return pl.read_parquet(path, columns=None if columns is None else list(columns))
    except OSError as exc:
        raise JournalError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except pl.exceptions.PolarsError as exc:
        problem = f"cannot be read: {str(exc).splitlines()[0]}"
        raise JournalError(path, problem) from exc
