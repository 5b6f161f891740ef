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
        (b"TGJR\x02" + bytes(40), "has version 2, this Tollgate reads 1"),
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


def test_stream_has_the_products_name() -> None:
    """One key per product, so one slot of a cluster."""
    assert stream_key("fraud") == b"tollgate:fraud:journal"
