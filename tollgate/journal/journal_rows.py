"""Convert rows from the decision step to records, and pack them into chunks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate import compiled
from tollgate.errors import JournalError
from tollgate.journal.decision_record import (
    MAX_CHUNK_ROWS,
    DecidedRows,
    Records,
    encode_chunk,
    encode_names,
    sealed,
)
from tollgate.schema import MAX_ID_BYTES, TRANSACTION_ID, context_dtype
from tollgate.store.redis.redis_store import Command

Array = npt.NDArray[Any]


class Heading(msgspec.Struct, frozen=True):
    """Values that all records of a writer share; `details`: whether they have some."""

    product: str
    release: str
    spec_hash: int
    entities: tuple[str, ...]
    fields: tuple[str, ...]
    details: bool = False


class Rows(msgspec.Struct, frozen=True, eq=False):
    """
    N decisions of one batch, as the decision step holds them.

    No attribute may refer to memory of Triton, which is freed when the batch is
    answered.

    Attributes:
        decided_us: Wall-clock time of the decision, µs.
        context: N records of tollgate.schema.context_dtype, as bytes: copying them as
            an array costs twenty times as much.
        features: float32 [N, F].
        probabilities: float32 [N, K].
        score: float32 [N].
        degraded: uint32 [N].
        decision: uint8 [N].
        reason_codes: Bytes objects; object [N].
        rules: uint64 [N].
        began_us: CLOCK_MONOTONIC when the decision step took the batch, µs.
        decision_us: Duration of the decision step, µs.
        details: Details of each row, where the product records some.
    """

    decided_us: int
    context: bytes
    features: Array
    probabilities: Array
    score: Array
    degraded: Array
    decision: Array
    reason_codes: Array
    rules: Array
    began_us: int
    decision_us: int
    details: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.score)


Numbered = tuple[int, Rows]  # sequence number of the first row, rows


def encode_rows(first: int, rows: Rows) -> bytes:
    """Encode rows of one batch and the number of the first, for `decode_rows`."""
    arrays = (rows.features, rows.probabilities, rows.score, rows.degraded)
    encoded = (
        first,
        rows.decided_us,
        rows.context,
        [one.tobytes() for one in (*arrays, rows.decision, rows.rules)],
        rows.reason_codes.tolist(),
        rows.began_us,
        rows.decision_us,
    )
    # Without details an earlier version can decode the rows.
    return _ENCODER.encode(
        encoded if rows.details is None else (*encoded, rows.details)
    )


def decode_rows(raw: bytes) -> Numbered:
    """
    Decode the rows that `encode_rows` encoded.

    Raises:
        msgspec.MsgspecError, ValueError: The bytes are none.
    """
    found = _DECODER.decode(raw)
    features, probabilities, score, degraded, decision, rules = found.arrays
    count = len(score) // 4
    reason_codes = np.empty(count, np.object_)
    reason_codes[:] = found.reason_codes
    return found.first, Rows(
        decided_us=found.decided_us,
        context=found.context,
        features=np.frombuffer(features, np.float32).reshape(count, -1),
        probabilities=np.frombuffer(probabilities, np.float32).reshape(count, -1),
        score=np.frombuffer(score, np.float32),
        degraded=np.frombuffer(degraded, np.uint32),
        decision=np.frombuffer(decision, np.uint8),
        reason_codes=reason_codes,
        rules=np.frombuffer(rules, np.uint64),
        began_us=found.began_us,
        decision_us=found.decision_us,
        details=found.details,
    )


class _EncodedRows(NamedTuple):
    """Rows as `encode_rows` writes them: an array of these values, in this order."""

    first: int
    decided_us: int
    context: bytes
    arrays: tuple[bytes, ...]
    reason_codes: list[bytes]
    began_us: int
    decision_us: int
    details: list[bytes] | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_EncodedRows)


def to_records(
    batches: Sequence[Rows], heading: Heading, *, writer: str, first_sequence: int
) -> Records:
    """Convert batches with consecutive numbers, in that order, into records."""
    context = np.frombuffer(
        b"".join([one.context for one in batches]),
        _layout(heading.entities, heading.fields),
    )
    sizes = [len(one) for one in batches]
    began_us = np.repeat([one.began_us for one in batches], sizes)
    features_us = context["features_us"].astype(np.uint32)
    waited_us = began_us - context["arrival_us"] - features_us
    return Records(
        writer=writer,
        first_sequence=first_sequence,
        product=heading.product,
        release=heading.release,
        spec_hash=heading.spec_hash,
        entities=heading.entities,
        decided_us=np.repeat([one.decided_us for one in batches], sizes),
        transaction_id=_ids(context, TRANSACTION_ID),
        entity_id=[_ids(context, f"{name}_id") for name in heading.entities],
        event_time_us=_column(context, "event_time_us", np.int64),
        cents=_column(context, "cents", np.int64),
        fields={
            name: _column(context, f"field_{name}", np.int64) for name in heading.fields
        },
        fingerprint=_column(context, "fingerprint", np.uint64),
        features=_joined([one.features for one in batches]),
        probabilities=_joined([one.probabilities for one in batches]),
        score=_joined([one.score for one in batches]),
        degraded=_joined([one.degraded for one in batches]),
        age_ms=_column(context, "age_ms", np.uint32),
        applied=_column(context, "applied", np.uint8),
        list_hits=_column(context, "list_hits", np.uint32),
        decision=_joined([one.decision for one in batches]),
        reason_codes=_joined([one.reason_codes for one in batches]).tolist(),
        rules=_joined([one.rules for one in batches]),
        features_us=features_us,
        model_us=np.clip(waited_us, 0, 0xFFFFFFFF).astype(np.uint32),
        decision_us=np.repeat([one.decision_us for one in batches], sizes).astype(
            np.uint32
        ),
        details=_details(batches, heading),
    )


def _details(batches: Sequence[Rows], heading: Heading) -> list[bytes]:
    """Return the details of all rows; empty for a product that records none."""
    found: list[bytes] = []
    for one in batches if heading.details else ():
        own = [b""] * len(one) if one.details is None else one.details
        if len(own) != len(one):
            problem = f"has details of {len(own)} of its {len(one)} rows"
            raise JournalError("a batch", problem)
        found += own
    return found


@functools.cache
def _layout(entities: tuple[str, ...], fields: tuple[str, ...]) -> np.dtype[np.void]:
    return context_dtype(entities, fields)


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _column(context: Array, name: str, kind: Any) -> Array:
    # A copy: the columns of a packed record are not aligned.
    column: Array = context[name].astype(kind)
    return column


def _ids(context: Array, name: str) -> list[bytes]:
    slots = context[name]
    width = slots.dtype.itemsize
    joined = slots.tobytes()
    lengths = context[f"{name}_length"].tolist()
    return [
        joined[row * width : row * width + length] for row, length in enumerate(lengths)
    ]


CHUNK_ROWS = 512
_MOST_BYTES = 512 << 10  # of floats and details per chunk; a segment's frame holds 1 MB
# Details of one record: then a batch of MAX_BATCH_ROWS fits into a segment's frame.
MAX_DETAILS_BYTES = 16 << 10

# Builds the commands to send with records, from the decisions and the clock in µs.
CommandBuilder = Callable[[DecidedRows, int], Sequence[Command]]


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """A chunk to be written; `decided_us` is that of its oldest decision."""

    first: int
    rows: int
    decided_us: int
    raw: bytes
    extra_commands: Sequence[Command]


def runs(taken: Sequence[Numbered]) -> list[list[Numbered]]:
    """Split batches into runs of one chunk each; a gap in the numbers ends a run."""
    found: list[list[Numbered]] = []
    begin = end = size = 0
    for first, rows in taken:
        own = rows.features.nbytes + rows.probabilities.nbytes
        own += sum(map(len, rows.details or ()))
        many = first + len(rows) - begin > CHUNK_ROWS or size + own > _MOST_BYTES
        if not found or first != end or many:
            found.append([])
            begin, size = first, 0
        found[-1].append((first, rows))
        end = first + len(rows)
        size += own
    return found


def pack(
    run: Sequence[Numbered],
    heading: Heading,
    *,
    writer: str,
    extra_commands: CommandBuilder,
) -> Chunk:
    """Pack one run into a chunk."""
    first, batches = run[0][0], [rows for _, rows in run]
    packed = _pack_compiled(batches, heading, writer=writer, first_sequence=first)
    if packed is None:
        records = to_records(batches, heading, writer=writer, first_sequence=first)
        packed = encode_chunk(records), records
    raw, rows = packed
    return Chunk(
        first=first,
        rows=len(rows),
        decided_us=batches[0].decided_us,
        raw=raw,
        extra_commands=extra_commands(rows, time.time_ns() // 1000),
    )


def _pack_compiled(
    batches: Sequence[Rows], heading: Heading, *, writer: str, first_sequence: int
) -> tuple[bytes, DecidedRows] | None:
    """Pack batches into the same bytes as `encode_chunk`; None if it cannot."""
    if compiled.decisions is None:
        return None
    packed = _packer(heading, writer).pack(batches, first_sequence)
    if packed is None:
        return None
    body, ids, fingerprints = packed
    sizes = [len(one) for one in batches]
    rows = DecidedRows(
        product=heading.product,
        release=heading.release,
        decided_us=np.repeat([one.decided_us for one in batches], sizes),
        transaction_id=ids,
        fingerprint=np.frombuffer(fingerprints, np.uint64),
        score=_joined([one.score for one in batches]),
        degraded=_joined([one.degraded for one in batches]),
        decision=_joined([one.decision for one in batches]),
        reason_codes=_joined([one.reason_codes for one in batches]).tolist(),
    )
    return sealed(body, _details(batches, heading)), rows


@functools.lru_cache(maxsize=8)
def _packer(heading: Heading, writer: str) -> Any:
    layout = _layout(heading.entities, heading.fields)
    offsets = {name: at[1] for name, at in (layout.fields or {}).items()}
    ids = [TRANSACTION_ID, *(f"{name}_id" for name in heading.entities)]
    return compiled.decisions.ChunkPacker(
        writer=bytes.fromhex(writer),
        names=encode_names(
            heading.product, heading.release, heading.entities, heading.fields
        ),
        spec_hash=heading.spec_hash,
        offsets=offsets,
        ids=np.array([(offsets[f"{name}_length"], offsets[name]) for name in ids]),
        fields=np.array(
            [offsets[f"field_{name}"] for name in heading.fields], np.int64
        ),
        row_bytes=layout.itemsize,
        id_bytes=MAX_ID_BYTES,
        most_rows=MAX_CHUNK_ROWS,
    )
