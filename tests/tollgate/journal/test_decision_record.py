"""A chunk gives back what was put in, bit for bit, or says what is wrong with it."""

from __future__ import annotations

import contextlib
import struct
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.errors import JournalError
from tollgate.journal.decision_record import (
    MAX_CHUNK_ROWS,
    Records,
    decode_chunk,
    encode_chunk,
)
from tollgate.journal.stream_entries import stream_key

NOW_US = 1_700_000_000_000_000


def records(rows: int, *, seed: int = 0, features: int = 15) -> Records:
    """Make up records as the fraud product has them."""
    rng = np.random.default_rng(seed)
    fraud = rng.random(rows).astype(np.float32)
    return Records(
        writer="00ff10203040aabb",
        first_sequence=1 << 40,
        product="fraud",
        release="fraud-1",
        spec_hash=0xC36F8242C6FA0068,
        entities=("customer", "terminal"),
        decided_us=NOW_US + rng.integers(0, 10_000, rows),
        transaction_id=[b"%032x" % number for number in range(rows)],
        entity_id=[
            [b"%d" % number for number in rng.integers(0, 100_000, rows)],
            ["käufer".encode()] * rows,
        ],
        event_time_us=NOW_US - rng.integers(0, 3_600_000_000, rows),
        cents=rng.integers(0, 100_000, rows),
        fields={"channel": rng.integers(-(1 << 63), 1 << 62, rows)},
        fingerprint=rng.integers(0, 1 << 63, rows, np.uint64) * 2 + 1,
        features=rng.normal(size=(rows, features)).astype(np.float32),
        probabilities=np.stack([1 - fraud, fraud], axis=1),
        score=fraud,
        degraded=rng.integers(0, 1 << 10, rows, np.uint32),
        age_ms=np.zeros(rows, np.uint32),
        applied=np.ones(rows, np.uint8),
        list_hits=np.zeros(rows, np.uint32),
        decision=rng.integers(0, 3, rows, np.uint8),
        reason_codes=[b"SCORE_DECLINE|LARGE_AMOUNT"] * (rows // 8)
        + [b""] * (rows - rows // 8),
        rules=np.left_shift(np.uint64(1), rng.integers(0, 64, rows).astype(np.uint64)),
        features_us=rng.integers(300, 2_000, rows, np.uint32),
        model_us=rng.integers(5_000, 6_000, rows, np.uint32),
        decision_us=rng.integers(100, 200, rows, np.uint32),
    )


def require_same(one: Records, two: Records) -> None:
    """Compare every column, floats by their bits, with types."""
    for name in Records.__struct_fields__:
        left, right = getattr(one, name), getattr(two, name)
        if isinstance(left, dict):
            assert list(left) == list(right)
            pairs = [(left[key], right[key]) for key in left]
        else:
            pairs = [(left, right)]
        for mine, other in pairs:
            assert type(mine) is type(other), name
            if isinstance(mine, np.ndarray):
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
                assert mine.tobytes() == other.tobytes(), name
            else:
                assert mine == other, name


@pytest.mark.parametrize("rows", [1, 2, 16, 32, 1_000, MAX_CHUNK_ROWS])
def test_records_come_back_bit_for_bit(rows: int) -> None:
    """Types, NaN payloads, bit 63 and ids that are no ASCII included."""
    made = records(rows, seed=rows)
    made.score[0] = np.uint32(0x7FC12345).view(np.float32)
    made.features[0, 3] = -0.0
    made.rules[-1] = (1 << 64) - 1
    require_same(made, decode_chunk(encode_chunk(made)))


EXTREMES = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from([0, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, -(2**63)]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EXTREMES, min_size=1, max_size=40), st.data())
def test_any_whole_numbers_come_back(values: list[int], data: st.DataObject) -> None:
    """Whatever a column holds, from edge to edge of its type, is what comes back."""
    rows = len(values)
    shuffled = np.array(data.draw(st.permutations(values)), np.int64)
    made = msgspec.structs.replace(
        records(rows),
        decided_us=np.array(values, np.int64),
        cents=shuffled,
        fields={"one": shuffled[::-1], "two": np.full(rows, shuffled[0])},
        rules=shuffled.view(np.uint64),
        degraded=shuffled.astype(np.uint32),
        decision=shuffled.astype(np.uint8),
        transaction_id=[b"x" * (value % 129) for value in values],
    )
    require_same(made, decode_chunk(encode_chunk(made)))


def test_a_record_of_the_fraud_product_is_small() -> None:
    """Ids of 32 bytes and all: under 250 bytes alone, under 160 in company."""
    plain = [
        msgspec.structs.replace(
            records(rows),
            first_sequence=123_456,
            fields={},
            entity_id=[[b"4711"] * rows, [b"1234"] * rows],
            rules=np.zeros(rows, np.uint64),
        )
        for rows in (1, 16)
    ]
    sizes = [len(encode_chunk(one)) / len(one) for one in plain]
    assert sizes[0] < 250
    assert sizes[1] < 160


def test_any_flipped_bit_is_found() -> None:
    """No chunk with one bit changed is read, wherever the bit is."""
    raw = encode_chunk(records(3))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(JournalError, match=r"^a chunk: "):
            decode_chunk(bytes(damaged))


def test_a_cut_chunk_is_found() -> None:
    """However much of its end is missing, or follows it."""
    raw = encode_chunk(records(3))
    for size in range(len(raw)):
        with pytest.raises(JournalError, match=r"foreign|claims"):
            decode_chunk(raw[:size])
    with pytest.raises(JournalError, match=r"has \d+ bytes, and claims"):
        decode_chunk(raw + b"x")


def sealed(body: bytes) -> bytes:
    """Seal a body as the layout says, so that only its inside is wrong."""
    return struct.pack("<4sBII", b"TGJR", 1, 13 + len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("seed", range(300))
def test_nonsense_under_a_sound_seal_is_an_error_of_the_journal(seed: int) -> None:
    """A forged body raises JournalError or gives some records; nothing else."""
    rng = np.random.default_rng(seed)
    body = bytearray(encode_chunk(records(3))[13:])
    for at in rng.integers(0, 160, 3).tolist():
        body[at] = int(rng.integers(0, 256))
    with contextlib.suppress(JournalError):
        assert 0 < len(decode_chunk(sealed(bytes(body)))) <= MAX_CHUNK_ROWS


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "begins with b''"),
        (b"PAR1" * 10, "begins with b'PAR1', not b'TGJR': foreign"),
        (b"TGJR\x03" + bytes(40), "has version 3, this Tollgate reads 1 and 2"),
    ],
)
def test_what_is_no_chunk_is_named(raw: bytes, words: str) -> None:
    """Another file, another version: the message says which."""
    with pytest.raises(JournalError, match=words):
        decode_chunk(raw)


def test_what_does_not_fit_is_not_packed() -> None:
    """No rows, too many, or columns of different length are refused."""
    with pytest.raises(JournalError, match="not 0"):
        encode_chunk(records(0))
    with pytest.raises(JournalError, match="not 4,097"):
        encode_chunk(records(MAX_CHUNK_ROWS + 1))
    made = records(5)
    for name in ("cents", "score", "fingerprint", "reason_codes", "transaction_id"):
        short = msgspec.structs.replace(made, **{name: getattr(made, name)[:4]})
        with pytest.raises(JournalError, match="columns"):
            encode_chunk(short)


def two_records(details: list[bytes]) -> Records:
    """Make the two records of STORED."""
    return Records(
        writer="00ff10203040aabb",
        first_sequence=7,
        product="toy",
        release="toy-1",
        spec_hash=77,
        entities=("customer",),
        decided_us=np.array([1000, 1001]),
        transaction_id=[b"a", b"bc"],
        entity_id=[[b"k1", b"k2"]],
        event_time_us=np.array([-3, 900]),
        cents=np.array([5, 70000]),
        fields={"distance": np.array([1, 1])},
        fingerprint=np.array([1 << 63, 9], np.uint64),
        features=np.array([[0.5, -0.0], [2.0, 3.0]], np.float32),
        probabilities=np.array([[0.25, 0.75], [1.0, 0.0]], np.float32),
        score=np.array([0.75, 0.0], np.float32),
        degraded=np.array([0, 4], np.uint32),
        age_ms=np.zeros(2, np.uint32),
        applied=np.ones(2, np.uint8),
        list_hits=np.zeros(2, np.uint32),
        decision=np.array([2, 0], np.uint8),
        reason_codes=[b"LARGE", b""],
        rules=np.array([1 << 63, 0], np.uint64),
        features_us=np.array([300, 300], np.uint32),
        model_us=np.array([40, 50], np.uint32),
        decision_us=np.array([9, 9], np.uint32),
        details=details,
    )


# Written by the version that knew no details.
STORED = bytes.fromhex(
    "54474a5201de000000b75dda8000ff10203040aabb07000000000000004d00000000000000020000"
    "00020002001f0094a3746f79a5746f792d3191a8637573746f6d657291a864697374616e63652112"
    "1301001000014420111010111001050a025012020204d0075802ffffffffffffffff000100040200"
    "000a0001050000008703000000006b11010000000000000000000000000000000080000000000000"
    "008009000000000000000000003f000000800000803e0000403f0000403f00000040000040400000"
    "803f00000000000000006162636b316b324c41524745"
)


def test_a_chunk_without_details_keeps_its_bytes() -> None:
    """Version 1, as earlier versions wrote it and read it."""
    assert encode_chunk(two_records([])) == STORED
    require_same(decode_chunk(STORED), two_records([]))


def test_details_follow_the_chunk_of_an_earlier_version() -> None:
    """Packed by hand: its body, a width, the shortest length, the rest; the texts."""
    details = [b"\x00" * 300, b"xyz"]
    lengths = struct.pack("<BBHH", 0x12, 3 << 1, 297, 0)  # zigzag of 3; above 3
    body = STORED[13:] + lengths + b"".join(details)
    by_hand = struct.pack("<4sBII", b"TGJR", 2, 13 + len(body), zlib.crc32(body)) + body
    assert encode_chunk(two_records(details)) == by_hand
    require_same(decode_chunk(by_hand), two_records(details))


@pytest.mark.parametrize("rows", [1, 2, 16, 512])
def test_details_come_back_byte_by_byte(rows: int) -> None:
    """Of any length, none included, each with its own row."""
    rng = np.random.default_rng(rows)
    details = [rng.bytes(int(size)) for size in rng.integers(0, 4_000, rows)]
    for own in (details, [b""] * rows):
        made = msgspec.structs.replace(records(rows, seed=rows), details=own)
        require_same(made, decode_chunk(encode_chunk(made)))


def test_details_of_some_records_only_are_refused() -> None:
    """One for each record, or none at all; no chunk that no reader would take."""
    with pytest.raises(JournalError, match="columns"):
        encode_chunk(two_records([b"one"]))
    large = msgspec.structs.replace(records(32), details=[bytes(600_000)] * 32)
    with pytest.raises(JournalError, match=r"would have 19,2\d\d,\d\d\d bytes"):
        encode_chunk(large)


def test_damage_in_details_is_found() -> None:
    """A flipped bit or a missing end; a forged body is an error of the journal."""
    raw = encode_chunk(two_records([b"some details", b"more"]))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(JournalError, match=r"^a chunk: "):
            decode_chunk(bytes(damaged))
        with pytest.raises(JournalError, match=r"foreign|claims"):
            decode_chunk(raw[:at])
    for at in range(len(STORED), len(raw)):
        for value in range(256):
            body = raw[13:at] + bytes([value]) + raw[at + 1 :]
            forged = struct.pack("<4sBII", b"TGJR", 2, len(raw), zlib.crc32(body))
            with contextlib.suppress(JournalError):
                assert len(decode_chunk(forged + body).details) == 2


def test_stream_has_the_products_name() -> None:
    """One key per product, so one slot of a cluster."""
    assert stream_key("fraud") == b"tollgate:fraud:journal"
