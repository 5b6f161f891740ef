"""A chunk has the same bytes whether NumPy or the compiled loop packs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate import compiled
from tollgate.journal import journal_rows
from tollgate.journal.decision_record import MAX_CHUNK_ROWS, decode_chunk
from tollgate.journal.journal_rows import (
    MAX_DETAILS_BYTES,
    Chunk,
    Heading,
    Rows,
    decode_rows,
    encode_rows,
    pack,
    runs,
)
from tollgate.journal.stored_decision_commands import StoreCommands
from tollgate.schema import MAX_ID_BYTES, context_dtype

NOW_US = 1_700_000_000_000_000
WRITER = "00ff10203040aabb"
EDGES = [0, 1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1]
CODES = [b"", b"SCORE_REVIEW", b"SCORE_DECLINE|LARGE", b"L" * 260, b"M" * 400]


@st.composite
def headings(draw: st.DrawFn) -> Heading:
    """Draw a product with up to two entities and two fields."""
    return Heading(
        product="toy",
        release=draw(st.sampled_from(["toy-1", "größer", "r" * 40])),
        spec_hash=draw(st.sampled_from([0, 77, 2**64 - 1])),
        entities=("customer", "terminal")[: draw(st.integers(0, 2))],
        fields=("distance", "channel")[: draw(st.integers(0, 2))],
        details=draw(st.booleans()),
    )


def rows_of(
    heading: Heading, rows: int, rng: np.random.Generator, *, features: int = 3
) -> Rows:
    """Draw rows: any bytes in the context, except for the lengths of ids."""
    layout = context_dtype(heading.entities, heading.fields)
    raw = rng.integers(0, 256, rows * layout.itemsize, np.uint8).tobytes()
    context = np.frombuffer(bytearray(raw), layout)
    for name in ["transaction", *heading.entities]:
        lengths = rng.choice([0, 1, 7, MAX_ID_BYTES], rows)
        context[f"{name}_id_length"] = lengths
    for name in ("event_time_us", "cents", *(f"field_{one}" for one in heading.fields)):
        if rng.random() < 0.6:
            near = rng.choice(EDGES) * rng.choice([-1, 1])
            context[name] = near + rng.integers(0, rng.choice(EDGES[1:7]), rows)
    if rng.random() < 0.7:
        context["arrival_us"] = NOW_US - rng.integers(0, 10_000, rows)
        context["features_us"] = rng.integers(0, 3_000, rows)
    codes = np.empty(rows, np.object_)
    codes[:] = [CODES[at] for at in rng.integers(0, len(CODES), rows)]

    def floats(columns: int) -> Any:
        bits = rng.integers(0, 1 << 32, (rows, columns), np.uint32)
        return np.where(rng.random(bits.shape) < 0.2, 0x7FC00000, bits).view(np.float32)

    return Rows(
        decided_us=NOW_US + int(rng.choice([-600_000_000, -599_999_001, -1, 0, 5])),
        context=context.tobytes(),
        features=floats(features).astype(np.float32),
        probabilities=rng.random((rows, 2)).astype(np.float32),
        score=rng.choice([0.0, 0.25, 1.0, np.nan], rows).astype(np.float32),
        degraded=rng.choice([0, 1, 2**32 - 1], rows).astype(np.uint32),
        decision=rng.integers(0, 3, rows, np.uint8),
        reason_codes=codes,
        rules=rng.choice(np.array([0, 1, 2**63, 2**64 - 1], np.uint64), rows),
        began_us=NOW_US + int(rng.choice([-5_000_000_000_000, 0, 10**6])),
        decision_us=int(rng.choice([0, 200, 2**32 + 3])),
        details=details_of(rows, rng) if heading.details else None,
    )


def details_of(rows: int, rng: np.random.Generator) -> list[bytes] | None:
    """Draw details of any length; sometimes a batch has none."""
    if rng.random() < 0.2:
        return None
    return [rng.bytes(int(size)) for size in rng.choice([0, 1, 300, 5_000], rows)]


def packed(
    batches: list[Rows], heading: Heading, *, first: int, module: Any
) -> Chunk | Exception:
    """Pack batches with or without the compiled loop, at a fixed time."""
    run = []
    for rows in batches:
        run.append((first + sum(len(one) for _, one in run), rows))
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(time_ns=lambda: NOW_US * 1000)
        patch.setattr(journal_rows, "time", clock)
        patch.setattr(compiled, "decisions", module)
        commands = StoreCommands(window_s=600)
        try:
            return pack(run, heading, writer=WRITER, extra_commands=commands)
        except Exception as exc:  # noqa: BLE001 - compared with the other one's
            return exc


@given(heading=headings(), seed=st.integers(0, 2**32), sizes=st.lists(
    st.sampled_from([1, 2, 5, 31]), min_size=1, max_size=4))  # fmt: skip
@settings(max_examples=150, deadline=None, derandomize=True)
def test_compiled_loop_packs_the_bytes_of_numpy(
    heading: Heading, seed: int, sizes: list[int]
) -> None:
    """One or several batches, extremes of every column, commands for retries too."""
    rng = np.random.default_rng(seed)
    batches = [rows_of(heading, rows, rng) for rows in sizes]
    first = int(rng.integers(0, 2**62))
    by_numpy = packed(batches, heading, first=first, module=None)
    assert isinstance(by_numpy, Chunk)
    assert len(decode_chunk(by_numpy.raw)) == by_numpy.rows == sum(sizes)
    again = packed(batches, heading, first=first, module=compiled.decisions)
    assert isinstance(again, Chunk)
    if compiled.decisions is not None:
        packer = journal_rows._packer(heading, WRITER)
        assert packer.pack(batches, first) is not None
    assert msgspec.structs.astuple(again) == msgspec.structs.astuple(by_numpy)


def test_each_row_has_its_details() -> None:
    """A batch without any has empty ones; a product without any writes version 1."""
    heading = Heading("toy", "toy-1", 77, ("customer",), ("distance",), details=True)
    rng = np.random.default_rng(3)
    three = msgspec.structs.replace(
        rows_of(heading, 3, rng), details=[b"a", b"", b"c" * 900]
    )
    two = msgspec.structs.replace(rows_of(heading, 2, rng), details=None)
    chunk = packed([three, two], heading, first=0, module=compiled.decisions)
    assert isinstance(chunk, Chunk)
    assert chunk.raw[4] == 2
    assert decode_chunk(chunk.raw).details == [b"a", b"", b"c" * 900, b"", b""]
    chunk = packed([three, two], HEADING, first=0, module=compiled.decisions)
    assert isinstance(chunk, Chunk)
    assert chunk.raw[4] == 1
    assert decode_chunk(chunk.raw).details == []
    for module in (None, compiled.decisions):
        short = msgspec.structs.replace(three, details=[b"a"])
        error = packed([short], heading, first=0, module=module)
        assert str(error) == "a batch: has details of 1 of its 3 rows"


def test_a_run_ends_before_its_chunk_is_too_large() -> None:
    """By the bytes of floats and details; a frame of the spool holds 1 MiB."""
    rng = np.random.default_rng(4)
    batch = rows_of(HEADING, 32, rng, features=15)
    many = [(32 * at, batch) for at in range(40)]
    assert [len(run) for run in runs(many)] == [16, 16, 8]
    full = msgspec.structs.replace(batch, details=[bytes(MAX_DETAILS_BYTES - 60)] * 32)
    assert [len(run) for run in runs([(32 * at, full) for at in range(4)])] == [1] * 4
    usual = msgspec.structs.replace(batch, details=[bytes(3_000)] * 32)
    long = runs([(32 * at, usual) for at in range(40)])
    assert [len(run) for run in long] == [5] * 8
    wide = rows_of(HEADING, 32, rng, features=1_022)
    assert [len(run) for run in runs([(32 * at, wide) for at in range(9)])] == [4, 4, 1]


def test_rows_of_the_previous_version_can_be_decoded() -> None:
    """Seven values; rows without details are encoded as such, others with an eighth."""
    rows = rows_of(HEADING, 3, np.random.default_rng(6))
    arrays = [rows.features, rows.probabilities, rows.score, rows.degraded]
    arrays += [rows.decision, rows.rules]
    seven = [
        *(9, rows.decided_us, rows.context, [one.tobytes() for one in arrays]),
        *(rows.reason_codes.tolist(), rows.began_us, rows.decision_us),
    ]
    seven_encoded = msgspec.msgpack.encode(seven)
    assert encode_rows(9, rows) == seven_encoded
    first, found = decode_rows(seven_encoded)
    assert (first, found.details) == (9, None)
    assert encode_rows(9, found) == seven_encoded
    rich = msgspec.structs.replace(rows, details=[b"a", b"", b"ccc"])
    assert encode_rows(9, rich) == msgspec.msgpack.encode([*seven, [b"a", b"", b"ccc"]])
    assert decode_rows(encode_rows(9, rich))[1].details == [b"a", b"", b"ccc"]


HEADING = Heading("toy", "toy-1", 77, ("customer",), ("distance",))


def changed(**changes: Any) -> list[Rows]:
    """Make two batches, of which the second is unusual."""
    rng = np.random.default_rng(5)
    usual, other = rows_of(HEADING, 4, rng), rows_of(HEADING, 3, rng)
    return [usual, msgspec.structs.replace(other, **changes)]


def longer_id() -> bytes:
    """Make contexts with an id that is longer than its slot."""
    layout = context_dtype(HEADING.entities, HEADING.fields)
    context = np.zeros(3, layout)
    context["customer_id_length"] = MAX_ID_BYTES + 9
    return context.tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"context": longer_id()},
        {"context": b"short"},
        {"context": b""},
        {"features": np.zeros((3, 3))},
        {"features": np.zeros((3, 4), np.float32)},
        {"features": np.zeros((3, 6), np.float32)[:, ::2]},
        {"probabilities": np.zeros((2, 2), np.float32)},
        {"probabilities": np.zeros(3, np.float32)},
        {"score": np.zeros(3, np.float32)[::-1]},
        {"score": np.zeros(2, np.float32)},
        {"degraded": np.zeros(3, np.int64)},
        {"decision": np.zeros(3, np.int64)},
        {"rules": np.zeros(3, np.float64)},
        {"reason_codes": np.array(["text"] * 3, np.object_)},
        {"reason_codes": np.array([b"A"] * 2, np.object_)},
        {"decided_us": 2**70},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_unusual_rows_are_left_to_numpy(changes: dict[str, Any]) -> None:
    """Same bytes, or the same error; no memory outside of an array is read."""
    batches = changed(**changes)
    by_numpy = packed(batches, HEADING, first=0, module=None)
    again = packed(batches, HEADING, first=0, module=compiled.decisions)
    if isinstance(by_numpy, Chunk):
        assert msgspec.structs.astuple(again) == msgspec.structs.astuple(by_numpy)
    else:
        assert (type(again), str(again)) == (type(by_numpy), str(by_numpy))


@pytest.mark.parametrize("rows", [0, MAX_CHUNK_ROWS, MAX_CHUNK_ROWS + 1])
def test_a_chunk_has_the_same_limits(rows: int) -> None:
    """None, the most, and one too many."""
    batches = [rows_of(HEADING, rows, np.random.default_rng(7))]
    by_numpy = packed(batches, HEADING, first=0, module=None)
    again = packed(batches, HEADING, first=0, module=compiled.decisions)
    if rows == MAX_CHUNK_ROWS:
        assert msgspec.structs.astuple(again) == msgspec.structs.astuple(by_numpy)
    else:
        assert (type(again), str(again)) == (type(by_numpy), str(by_numpy))
