"""
Encode and decode records of decisions as compact, columnar chunks.

A chunk consists of a seal, a header, the names and the columns. An integer
column, such as the lengths of ids, is stored as its smallest value and the differences
to it, in as many bytes as the largest difference needs; in none if all values are
equal. Floats and fingerprints are stored as they are, ids and codes one after the
other. A chunk of version 2 also has the details of its records, at its end; one of
version 1 has none. docs/journal.md has the layout byte by byte.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import JournalError
from tollgate.schema import TRANSACTION

# Pack integer columns into few bytes, and read bytes that may be damaged.

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

# Width codes of a column: 0 for no bytes, then 1, 2, 4 and 8 bytes.
_KINDS = tuple(np.dtype(name) for name in ("<u1", "<u1", "<u2", "<u4", "<u8"))
_LIMITS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFFFF], np.uint64)  # maxima of codes 0 to 3


class Reader:
    """Read a chunk's content from the front; raise a JournalError if it ends early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, size: int) -> bytes:
        """Read a number of bytes."""
        end = self._at + size
        if end > len(self._content):
            missing = end - len(self._content)
            raise JournalError("a chunk", f"lacks {missing:,} bytes of its columns")
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def texts(self, lengths: I64) -> list[bytes]:
        """Read one text per length; int64 [N]."""
        if int(lengths.min()) < 0 or int(lengths.max()) > len(self._content):
            raise JournalError("a chunk", "a length in it is none")
        edges = [0, *lengths.cumsum().tolist()]
        joined = self.take(edges[-1])
        return [joined[start:stop] for start, stop in itertools.pairwise(edges)]

    def end(self) -> None:
        """Check that no bytes are left."""
        left = len(self._content) - self._at
        if left:
            raise JournalError("a chunk", f"has {left:,} bytes too many")


def pack_numbers(numbers: I64) -> bytes:
    """
    Pack integer columns; [M, N].

    First comes one byte per column with two width codes: of its smallest value (high
    half), and of the differences to it (low half). Then follow the smallest values in
    zigzag encoding, then the columns, both ordered by width.
    """
    low = numbers.min(axis=1)
    # Differences wrap around, so that uint64 values viewed as int64 survive.
    above = numbers.view(np.uint64) - low.view(np.uint64)[:, None]
    codes = np.searchsorted(_LIMITS, above.max(axis=1))
    zigzag = ((low << 1) ^ (low >> 63)).view(np.uint64)
    low_codes = np.searchsorted(_LIMITS, zigzag)
    parts = [(low_codes << 4 | codes).astype(np.uint8).tobytes()]
    for values, by in ((zigzag, low_codes), (above, codes)):
        parts += [
            values[by == code].astype(_KINDS[code]).tobytes()
            for code in sorted(set(by.tolist()) - {0})
        ]
    return b"".join(parts)


def unpack_numbers(reader: Reader, *, columns: int, rows: int) -> I64:
    """Unpack integer columns; [M, N]."""
    both = np.frombuffer(reader.take(columns), np.uint8).astype(np.int64)
    low_codes, codes = both >> 4, both & 15
    if int(low_codes.max()) >= len(_KINDS) or int(codes.max()) >= len(_KINDS):
        raise JournalError("a chunk", "a width in it is none")
    zigzag = _by_width(reader, low_codes, per_column=1)[:, 0]
    low = (zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))
    above = _by_width(reader, codes, per_column=rows)
    wrapped: U64 = above + low[:, None]
    return wrapped.view(np.int64)


def _by_width(reader: Reader, codes: I64, *, per_column: int) -> U64:
    values = np.zeros((len(codes), per_column), np.uint64)
    for code in sorted(set(codes.tolist()) - {0}):
        chosen = np.flatnonzero(codes == code)
        kind = _KINDS[code]
        raw = reader.take(kind.itemsize * per_column * len(chosen))
        values[chosen] = np.frombuffer(raw, kind).reshape(len(chosen), per_column)
    return values


# Seal and check the envelope of a chunk: magic, version, length and CRC-32.

MAGIC = b"TGJR"
VERSION, DETAILS_VERSION = 1, 2  # of chunks without and with details
MAX_CHUNK_BYTES = 16 << 20

_SEAL = struct.Struct("<4sBII")  # magic, version, total length, CRC of the body


def sealed(body: bytes, details: Sequence[bytes] = ()) -> bytes:
    """
    Prepend the seal to the body of a chunk, and append the details of its records.

    Args:
        body: A body without details.
        details: Details of each record; empty for none.

    Raises:
        JournalError: The chunk would be larger than MAX_CHUNK_BYTES.
    """
    version = VERSION
    if details:
        version = DETAILS_VERSION
        lengths = np.array([list(map(len, details))], np.int64)
        body = b"".join((body, pack_numbers(lengths), *details))
    size = _SEAL.size + len(body)
    if size > MAX_CHUNK_BYTES:
        problem = f"would have {size:,} bytes; the limit is {MAX_CHUNK_BYTES:,}"
        raise JournalError("a chunk", problem)
    return _SEAL.pack(MAGIC, version, size, zlib.crc32(body)) + body


def unsealed(raw: bytes) -> tuple[int, bytes]:
    """
    Check the seal and the checksum of a chunk; return its version and its body.

    Raises:
        JournalError: The bytes are no chunk, are damaged, or have an unknown version.
    """
    if raw[: len(MAGIC)] != MAGIC or len(raw) < _SEAL.size:
        start = raw[: len(MAGIC)]
        raise JournalError("a chunk", f"begins with {start!r}, not {MAGIC!r}: foreign")
    _, version, size, crc = _SEAL.unpack_from(raw)
    if version not in (VERSION, DETAILS_VERSION):
        known = f"{VERSION} and {DETAILS_VERSION}"
        problem = f"has version {version}, this Tollgate reads {known}"
        raise JournalError("a chunk", problem)
    if size != len(raw) or size > MAX_CHUNK_BYTES:
        raise JournalError("a chunk", f"has {len(raw):,} bytes, and claims {size:,}")
    body = raw[_SEAL.size :]
    found = zlib.crc32(body)
    if found != crc:
        raise JournalError("a chunk", f"its checksum is {found:08x}, not {crc:08x}")
    return version, body


MAX_CHUNK_ROWS = 4_096

U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

_HEAD = struct.Struct("<8sQQIHHH")  # writer, first, spec, rows, F, K, length of names

# Integer columns of every chunk, in this order; then each declared field, then lengths.
_NUMBERS: tuple[tuple[str, Any], ...] = (
    ("decided_us", np.int64),
    ("event_time_us", np.int64),
    ("cents", np.int64),
    ("degraded", np.uint32),
    ("age_ms", np.uint32),
    ("applied", np.uint8),
    ("list_hits", np.uint32),
    ("decision", np.uint8),
    ("rules", np.uint64),
    ("features_us", np.uint32),
    ("model_us", np.uint32),
    ("decision_us", np.uint32),
)


class DecidedRows(msgspec.Struct, frozen=True, eq=False):
    """
    N decisions of one release, as columns.

    Attributes:
        release: Release that decided.
        decided_us: Wall-clock time of the decision, µs; int64 [N].
        transaction_id: N ids as sent.
        fingerprint: Of all inputs of the row; uint64 [N].
        score: float32 [N]; NaN where the model gave none.
        degraded: Degraded bits; uint32 [N].
        decision: Decision; uint8 [N].
        reason_codes: N texts of codes, joined by `|`.
    """

    product: str
    release: str
    decided_us: I64
    transaction_id: list[bytes]
    fingerprint: U64
    score: F32
    degraded: U32
    decision: U8
    reason_codes: list[bytes]

    def __len__(self) -> int:
        return len(self.transaction_id)


class Records(DecidedRows, frozen=True, eq=False):
    """
    N decisions of one writer, as columns, with consecutive sequence numbers.

    Attributes:
        writer: Id of the writer; 16 hexadecimal digits, drawn by each process.
        first_sequence: Sequence number of the first record; a writer counts from 0. A
            dropped record has a number, too, so a gap reveals it.
        entities: Names of the product's entities, in the order of its spec.
        entity_id: Per entity, N ids as sent.
        event_time_us: Time of the purchase, µs; int64 [N].
        cents: Amount of the purchase; int64 [N].
        fields: Declared fields by name, scaled or hashed, MISSING where not sent (see
            tollgate/features/fields.py); int64 [N] each.
        features: Vector that was scored; float32 [N, F].
        probabilities: Output of the model; float32 [N, K].
        age_ms: Age of the oldest last known value used; 0 if from the store; uint32
            [N].
        applied: Applied, of the event in the store; uint8 [N].
        list_hits: Bit i: an id is on the policy's i-th list; uint32 [N].
        rules: Bit i: the policy's i-th rule matched; uint64 [N].
        features_us: Duration of the feature step, µs; uint32 [N].
        model_us: Time from the end of the feature step to the decision step, µs; uint32
            [N].
        decision_us: Duration of the decision step, µs; uint32 [N].
        details: What else the product records of each row, in a form of its own, such
            as tollgate/ranking/ranking_record.py; N byte strings, or none at all.
    """

    writer: str
    first_sequence: int
    spec_hash: int
    entities: tuple[str, ...]
    entity_id: list[list[bytes]]
    event_time_us: I64
    cents: I64
    fields: dict[str, I64]
    features: F32
    probabilities: F32
    age_ms: U32
    applied: U8
    list_hits: U32
    rules: U64
    features_us: U32
    model_us: U32
    decision_us: U32
    details: list[bytes] = []

    @property
    def owner(self) -> tuple[str, list[bytes]]:
        """Return the rows' owner: the first entity and its ids, or transactions."""
        if self.entities:
            return self.entities[0], self.entity_id[0]
        return TRANSACTION, self.transaction_id


class _Names(msgspec.Struct, frozen=True, array_like=True):
    product: str
    release: str
    entities: tuple[str, ...]
    fields: tuple[str, ...]


def encode_names(
    product: str, release: str, entities: tuple[str, ...], fields: Iterable[str]
) -> bytes:
    """Encode the names of a chunk."""
    return msgspec.msgpack.encode(_Names(product, release, entities, tuple(fields)))


def encode_chunk(records: Records) -> bytes:
    """
    Encode records as a chunk.

    Raises:
        JournalError: There are no records, too many, or columns of different lengths,
            or the chunk would be too large.
    """
    rows = len(records)
    if not 0 < rows <= MAX_CHUNK_ROWS:
        raise JournalError(
            "a chunk", f"has 1 to {MAX_CHUNK_ROWS:,} records, not {rows:,}"
        )
    names = encode_names(
        records.product, records.release, records.entities, records.fields
    )
    texts = [records.transaction_id, *records.entity_id, records.reason_codes]
    try:
        numbers = np.array(
            [
                *(
                    getattr(records, name).view(_signed(kind))
                    for name, kind in _NUMBERS
                ),
                *records.fields.values(),
                *(list(map(len, column)) for column in texts),
            ],
            np.int64,
        )
        floats = np.hstack(
            (records.features, records.probabilities, records.score[:, None]),
            dtype=np.float32,
            casting="no",
        )
    except (ValueError, TypeError) as exc:
        raise JournalError("a chunk", f"its columns do not fit: {exc}") from exc
    whole = numbers.shape[1:] == (rows,) and len(records.fingerprint) == rows
    if not whole or len(records.details) not in (0, rows):
        raise JournalError("a chunk", "its columns differ in length")
    body = b"".join(
        (
            _HEAD.pack(
                bytes.fromhex(records.writer),
                records.first_sequence,
                records.spec_hash,
                rows,
                records.features.shape[1],
                records.probabilities.shape[1],
                len(names),
            ),
            names,
            pack_numbers(numbers),
            records.fingerprint.astype("<u8", copy=False).tobytes(),
            floats.tobytes(),
            *itertools.chain.from_iterable(texts),
        )
    )
    return sealed(body, records.details)


def _signed(kind: Any) -> Any:
    # np.array would convert uint64 and int64 to float64.
    return np.int64 if kind is np.uint64 else kind


def decode_chunk(raw: bytes) -> Records:
    """
    Decode a chunk.

    Raises:
        JournalError: The bytes are no chunk, are damaged, or have an unknown version.
    """
    version, body = unsealed(raw)
    try:
        return _records_of(Reader(body), with_details=version == DETAILS_VERSION)
    except JournalError:
        raise
    except Exception as exc:  # numpy raises various errors for invalid bytes
        problem = f"cannot be read: {type(exc).__name__}"
        raise JournalError("a chunk", problem) from exc


def _records_of(reader: Reader, *, with_details: bool) -> Records:
    writer, first, spec, rows, features, outputs, size = _HEAD.unpack(
        reader.take(_HEAD.size)
    )
    if not 0 < rows <= MAX_CHUNK_ROWS:
        raise JournalError("a chunk", f"claims {rows:,} records")
    try:
        names = msgspec.msgpack.decode(reader.take(size), type=_Names)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise JournalError("a chunk", f"its names cannot be read: {exc}") from exc
    fixed, declared = len(_NUMBERS), len(names.fields)
    columns = fixed + declared + len(names.entities) + 2
    numbers = unpack_numbers(reader, columns=columns, rows=rows)
    fingerprint = np.frombuffer(reader.take(8 * rows), "<u8").astype(np.uint64)
    width = features + outputs + 1
    floats = np.frombuffer(reader.take(4 * width * rows), "<f4").reshape(rows, width)
    texts = [reader.texts(lengths) for lengths in numbers[fixed + declared :]]
    details: list[bytes] = []
    if with_details:
        (lengths,) = unpack_numbers(reader, columns=1, rows=rows)
        details = reader.texts(lengths)
    reader.end()
    plain = {
        name: numbers[at].view(kind) if kind is np.uint64 else numbers[at].astype(kind)
        for at, (name, kind) in enumerate(_NUMBERS)
    }
    return Records(
        writer=writer.hex(),
        first_sequence=first,
        product=names.product,
        release=names.release,
        spec_hash=spec,
        entities=names.entities,
        transaction_id=texts[0],
        entity_id=texts[1:-1],
        reason_codes=texts[-1],
        fields=dict(zip(names.fields, numbers[fixed:], strict=False)),
        fingerprint=fingerprint,
        features=floats[:, :features].astype(np.float32),
        probabilities=floats[:, features:-1].astype(np.float32),
        score=floats[:, -1].astype(np.float32),
        details=details,
        **plain,
    )
