"""Batches are told while somebody looks, and only then; nobody ever waits."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tollgate.tracing import BATCHES_VARIABLE
from tollgate.tracing.batches import LOOK_US, BatchSpan, BatchSpanWriter, open_batches

SECRET = "t-4711"


class Asked:
    """A request as a step sees it: here, its name alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def request_id(self) -> str:
        """What its caller called it."""
        if self._name == "broken":
            raise RuntimeError(SECRET)
        return self._name


class Clock:
    """A clock that is set by hand, µs."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        """Read it."""
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    """One for a test."""
    return Clock()


@pytest.fixture
def writer(tmp_path: Path, clock: Clock) -> Iterator[BatchSpanWriter]:
    """A step's end of a pipe that nobody has made yet."""
    one = BatchSpanWriter(str(tmp_path / "batches"), step="shop_model", clock=clock)
    yield one
    one.close()


def reader(path: Path) -> int:
    """Make the pipe, and open it as one who looks does."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def attributes(end: int) -> list[BatchSpan]:
    """Read what is there."""
    try:
        lines = os.read(end, 1 << 20)
    except BlockingIOError:
        return []
    return msgspec.json.Decoder(BatchSpan).decode_lines(lines)


def test_a_step_looks_for_a_pipe_a_few_times_a_second(
    writer: BatchSpanWriter, clock: Clock, tmp_path: Path
) -> None:
    """What is not there is found later on, and not before the next look."""
    assert not writer.is_enabled()
    end = reader(tmp_path / "batches")
    clock.now_us += LOOK_US - 1
    assert not writer.is_enabled()
    clock.now_us += 1
    assert writer.is_enabled()
    began_us, clock.now_us = clock.now_us, clock.now_us + 700
    writer.write([Asked("7"), Asked("")], rows=3, began_us=began_us)
    (span,) = attributes(end)
    assert span == BatchSpan(
        step="shop_model",
        process=os.getpid(),
        number=0,
        start_us=began_us,
        end_us=began_us + 700,
        rows=3,
        requests=("7", ""),
    )
    os.close(end)


def test_who_looked_and_went_costs_nothing(
    writer: BatchSpanWriter, clock: Clock, tmp_path: Path
) -> None:
    """A killed reader leaves a pipe that nobody reads: it is let go of, then ignored.

    Whoever looks next, through a pipe of his own, is told from number 0 on.
    """
    end = reader(tmp_path / "batches")
    assert writer.is_enabled()
    writer.write([], rows=0, began_us=0)
    os.close(end)
    writer.write([], rows=0, began_us=0)
    assert not writer.is_enabled()
    clock.now_us += LOOK_US
    assert not writer.is_enabled()
    (tmp_path / "batches").unlink()
    end = reader(tmp_path / "batches")
    clock.now_us += LOOK_US
    assert writer.is_enabled()
    writer.write([], rows=1, began_us=0)
    assert [(one.number, one.rows) for one in attributes(end)] == [(0, 1)]
    os.close(end)


def test_the_next_one_who_looks_misses_nothing(
    writer: BatchSpanWriter, tmp_path: Path
) -> None:
    """That the one before has gone shows when a batch is told: it is told anew."""
    end = reader(tmp_path / "batches")
    assert writer.is_enabled()
    writer.write([], rows=1, began_us=0)
    os.close(end)
    (tmp_path / "batches").unlink()
    end = reader(tmp_path / "batches")
    for rows in (2, 3):
        writer.write([], rows=rows, began_us=0)
    assert [(one.number, one.rows) for one in attributes(end)] == [(0, 2), (1, 3)]
    os.close(end)


def test_what_does_not_fit_is_dropped_and_shows(
    writer: BatchSpanWriter, tmp_path: Path
) -> None:
    """Numbers are missing where they are read; no line is cut."""
    end = reader(tmp_path / "batches")
    assert writer.is_enabled()
    for _ in range(2_000):
        writer.write([Asked("x" * 90)], rows=1, began_us=0)
    first = attributes(end)
    writer.write([], rows=1, began_us=0)
    (last,) = attributes(end)
    assert [one.number for one in first] == list(range(len(first)))
    assert 0 < len(first) < 2_000
    assert last.number == 2_000
    os.close(end)


def test_names_that_fill_a_line_are_left_out(
    writer: BatchSpanWriter, tmp_path: Path
) -> None:
    """A caller's long names do not keep the times from being told."""
    end = reader(tmp_path / "batches")
    assert writer.is_enabled()
    writer.write([Asked("x" * 200)] * 32, rows=32, began_us=5)
    (span,) = attributes(end)
    assert (span.rows, span.start_us, span.requests) == (32, 5, ())
    os.close(end)


def test_a_look_never_costs_an_answer(
    writer: BatchSpanWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong is said once, without its words."""
    end = reader(tmp_path / "batches")
    assert writer.is_enabled()
    with caplog.at_level(logging.ERROR):
        writer.write([Asked("broken")], rows=1, began_us=0)
        writer.write([Asked("broken")], rows=1, began_us=0)
    assert attributes(end) == []
    (line,) = [one.message for one in caplog.records]
    assert "the span of a batch was not written" in line
    assert SECRET not in line
    os.close(end)


def test_a_file_is_no_pipe(writer: BatchSpanWriter, tmp_path: Path) -> None:
    """Nothing is written into what happens to have the name."""
    (tmp_path / "batches").write_text("mine")
    assert not writer.is_enabled()
    assert (tmp_path / "batches").read_text() == "mine"


def test_a_step_without_a_pipe_traces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton of one's own names none."""
    monkeypatch.delenv(BATCHES_VARIABLE, raising=False)
    assert open_batches("shop_model") is None
