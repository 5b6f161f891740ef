"""The pipe between a step and whoever sends its spans."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollgate.tracing.spans import WRITE_BYTES, Span, SpanWriter, read_spans


def a_span(number: int, **attributes: str) -> Span:
    """Make a span."""
    return Span("a" * 32, f"{number:016x}", "", "x", 1, 2, attributes=attributes)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A pipe that is open: its path, and the end to read from."""
    path = tmp_path / "spans"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, end
    os.close(end)


def test_spans_come_out_as_they_went_in(pipe: tuple[Path, int]) -> None:
    """Of two steps, and with a line that is not whole yet kept for later."""
    path, end = pipe
    writers = SpanWriter(path), SpanWriter(path)
    spans = [a_span(number, id=f"t-{number}") for number in range(40)]
    for number, span in enumerate(spans):
        writers[number % 2].write([span])
    lines = os.read(end, 1 << 16)
    found, rest = read_spans(lines[:-10])
    found_later, _ = read_spans(rest + lines[-10:])
    assert [*found, *found_later] == spans
    for writer in writers:
        writer.close()


def test_a_full_pipe_costs_no_time(pipe: tuple[Path, int]) -> None:
    """What it does not take is dropped; what it took is whole."""
    path, end = pipe
    writer = SpanWriter(path)
    for number in range(5_000):
        writer.write([a_span(number), a_span(number)])
    found, rest = read_spans(os.read(end, 1 << 20))
    assert 0 < len(found) < 5_000
    assert rest == b""
    assert found == [a_span(number // 2) for number in range(len(found))]
    writer.close()


def test_a_span_too_large_is_left_out_alone(pipe: tuple[Path, int]) -> None:
    """It could be mixed with another step's."""
    path, end = pipe
    writer = SpanWriter(path)
    large = a_span(2, text="x" * WRITE_BYTES)
    writer.write([a_span(1), large, a_span(3)])
    assert read_spans(os.read(end, 1 << 16))[0] == [a_span(1), a_span(3)]
    writer.close()


def test_a_line_that_is_no_span_is_left_out() -> None:
    """It does not keep others from being sent."""
    assert read_spans(b'["x"]\nnothing\n') == ([], b"")


def test_nobody_listens(tmp_path: Path) -> None:
    """A pipe that nobody has open cannot be written to; that is told at once."""
    os.mkfifo(tmp_path / "spans")
    with pytest.raises(OSError, match="No such device"):
        SpanWriter(tmp_path / "spans")
