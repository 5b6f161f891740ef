"""Find decisions that are in the Redis stream and not sealed yet."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.record_rows import subjects_of, table_of
from tollgate.audit.worker.sealing import slice_records
from tollgate.errors import JournalError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.schema import DEFAULT_OUTCOMES, Outcomes
from tollgate.store.redis.cluster_client import open_any_client
from tollgate.store.redis.redis_store import redis_errors

NUMBERED = re.compile(r"([0-9a-f]{16})[:/ ]([0-9]{1,19})")  # as `verify` names records

_ANSWER_S = 10.0
_AT_ONCE = 64  # entries per read


def find_pending(url: str, *, product: str, wanted: str) -> Records | None:
    """
    Find a decision in a product's stream, newest entry first; None if it is not there.

    Args:
        wanted: Transaction id, or WRITER:NUMBER.

    Raises:
        InputError: The address is invalid, or a TLS file cannot be used.
        StoreError: Redis did not respond.
    """
    client: Any = open_any_client(url, timeout_s=_ANSWER_S)
    last = "+"
    with (
        contextlib.closing(client),
        redis_errors("the journal's stream cannot be read"),
    ):
        while True:
            entries = client.xrevrange(
                stream_key(product), max=last, min="-", count=_AT_ONCE
            )
            for _, fields in entries:
                found = _in_chunk(fields.get(CHUNK_FIELD, b""), wanted)
                if found is not None:
                    return found
            if len(entries) < _AT_ONCE:
                return None
            last = f"({entries[-1][0].decode()}"


def _in_chunk(raw: bytes, wanted: str) -> Records | None:
    if not raw:
        return None
    try:
        records = decode_chunk(raw)
    except JournalError:  # the worker makes it a dead letter
        return None
    row = _row_of(records, wanted)
    return None if row is None else slice_records(records, slice(row, row + 1))


def _row_of(records: Records, wanted: str) -> int | None:
    numbered = NUMBERED.fullmatch(wanted)
    if numbered:
        row = int(numbered[2]) - records.first_sequence
        there = records.writer == numbered[1] and 0 <= row < len(records)
        return row if there else None
    ids: Sequence[bytes] = records.transaction_id
    one = wanted.encode()
    return len(ids) - 1 - ids[::-1].index(one) if one in ids else None


def pending_table(
    records: Records,
    *,
    spec: FeatureSpec | None,
    releases: ReleaseArchive | None,
    outcomes: Outcomes = DEFAULT_OUTCOMES,
) -> pl.DataFrame:
    """
    Return a record as a segment's table, with pseudonyms under an empty key.

    Without consent the row holds as little as a sealed one. If no journal is known, the
    row is complete.

    Args:
        outcomes: Words of the release's decisions, if no journal is known.
    """
    width = records.features.shape[1]
    names = [str(at) for at in range(width)]
    if spec is not None and len(spec.feature_names) == width:
        names = list(spec.feature_names)
    keys = {
        entity: dict.fromkeys(ids, b"") for entity, ids in subjects_of(records).items()
    }
    consent = np.ones(len(records), np.bool_)
    if releases is not None:
        consent = releases.consent(records)
        outcomes = releases.outcomes(records.release)
    return table_of(
        records, feature_names=names, consent=consent, keys=keys, outcomes=outcomes
    )
