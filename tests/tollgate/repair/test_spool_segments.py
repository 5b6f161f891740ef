"""Segments keep what was written whole, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.repair.spool_segments import (
    SegmentFile,
    SegmentHeader,
    frame,
    locked,
    read_segment,
)

HEADER = SegmentHeader(product="fraud", state="0" * 16, spec="version: 1\n", first=5)
EVENTS = [b'{"event": "one"}', b"", b"three\n" * 50]


def written(path: Path, events: list[bytes] = EVENTS) -> bytes:
    """Write a segment with events numbered from 5; its bytes."""
    segment = SegmentFile(path, HEADER)
    segment.write([frame(5 + at, event) for at, event in enumerate(events)])
    segment.close()
    return path.read_bytes()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Header and events come back as they were, and the file is its owner's alone."""
    path = tmp_path / "a.spool"
    read = read_segment(path, written(path))
    assert (read.header, read.events) == (HEADER, EVENTS)
    assert (read.missing, read.torn_bytes) == (0, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["a.spool"]


def test_a_torn_tail_is_left_out_wherever_it_is_torn(tmp_path: Path) -> None:
    """Cut at any byte, a segment holds exactly the events that are whole."""
    path = tmp_path / "a.spool"
    content = written(path)
    ends = [len(content) - sum(16 + len(one) for one in EVENTS[at:]) for at in range(4)]
    for size in range(ends[0], len(content) + 1):
        read = read_segment(path, content[:size])
        whole = sum(end <= size for end in ends) - 1
        assert read.events == EVENTS[:whole]
        assert read.torn_bytes == size - ends[whole]
    for size in range(ends[0]):
        with pytest.raises(InputError, match="its head is damaged"):
            read_segment(path, content[:size])


def test_a_flipped_bit_ends_a_segment(tmp_path: Path) -> None:
    """Nothing is read from the frame with the damage on, whichever byte it hits."""
    path = tmp_path / "a.spool"
    content = written(path)
    begin = len(content) - sum(16 + len(one) for one in EVENTS[1:])
    for at in range(begin, len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        events = read_segment(path, bytes(damaged)).events
        assert events == EVENTS[: len(events)]
        assert 1 <= len(events) < 3


def test_a_jump_in_the_numbers_is_counted(tmp_path: Path) -> None:
    """Numbers without an event, at the beginning too, are events that were lost."""
    path = tmp_path / "a.spool"
    segment = SegmentFile(path, HEADER)
    segment.write([frame(7, b"first"), frame(8, b"second"), frame(12, b"third")])
    segment.close()
    read = read_segment(path, path.read_bytes())
    assert (len(read.events), read.missing) == (3, 2 + 3)


def test_a_segment_that_is_written_is_nobody_elses(tmp_path: Path) -> None:
    """Its lock is free only when its writer has closed it."""
    path = tmp_path / "a.spool"
    segment = SegmentFile(path, HEADER)
    with locked(path) as fd:
        assert fd is None
    segment.close()
    with locked(path) as fd:
        assert fd is not None
    with locked(tmp_path / "absent.spool") as fd:
        assert fd is None
