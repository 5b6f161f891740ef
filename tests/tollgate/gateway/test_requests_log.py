"""A file that nginx appends to: each line is read once, and the file stays small."""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.gateway.gateway_metrics import RequestsLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file, not there yet."""
    return tmp_path / "requests.log"


@pytest.fixture
def writer(path: Path) -> Iterator[FileIO]:
    """nginx: opened once, appends."""
    with path.open("ab", buffering=0) as file:
        yield file


def test_each_line_is_read_once(path: Path, writer: FileIO) -> None:
    """Not those from before the first look; half a line when it is whole."""
    writer.write(b"of an earlier process\n")
    log = RequestsLog(path)
    assert log.read() == b""
    writer.write(b"one\ntwo\nhal")
    assert log.read() == b"one\ntwo\n"
    assert log.read() == b""
    writer.write(b"f\nthree\n")
    assert log.read() == b"half\nthree\n"
    log.close()


def test_a_file_that_comes_later_is_read_from_its_beginning(path: Path) -> None:
    """nginx may start after who counts."""
    log = RequestsLog(path)
    assert log.read() == b""
    path.write_bytes(b"one\n")
    assert log.read() == b"one\n"
    log.close()


def test_what_was_read_is_cut_off_and_nothing_is_lost(
    path: Path, writer: FileIO
) -> None:
    """Five times 3 MiB are read to the last line; what stays is less than 4 MiB."""
    log = RequestsLog(path)
    line, read = b"x" * 99 + b"\n", 0
    for _ in range(5):
        writer.write(line * 30_000)
        read += log.read().count(line)
        assert path.stat().st_size < 4 << 20
    assert read == 150_000
    log.close()


def test_half_a_line_keeps_the_file_from_being_cut(path: Path, writer: FileIO) -> None:
    """Its other half would be the file's beginning, and a line that is none."""
    log = RequestsLog(path)
    writer.write(b"x" * 99 + b"\n")
    writer.write((b"y" * 99 + b"\n") * 50_000 + b"hal")
    read = log.read() + log.read()
    assert read.count(b"\n") == 50_001
    assert path.stat().st_size > 4 << 20
    writer.write(b"f\n")
    assert log.read() == b"half\n"
    assert path.stat().st_size == 0
    log.close()


def test_a_long_backlog_is_read_part_by_part(path: Path, writer: FileIO) -> None:
    """A look takes 4 MiB at most, so that it takes little memory; none is lost."""
    log = RequestsLog(path)
    line = b"x" * 99 + b"\n"
    writer.write(line * 120_000)
    read = [log.read().count(line) for _ in range(4)]
    assert read[0] < 42_000
    assert sum(read) == 120_000
    assert path.stat().st_size == 0
    log.close()


def test_a_file_that_somebody_else_cuts_or_replaces_is_followed(
    path: Path, writer: FileIO
) -> None:
    """By logrotate, say, in one of its two ways."""
    log = RequestsLog(path)
    writer.write(b"before\nha")
    assert log.read() == b"before\n"
    writer.truncate(0)
    writer.write(b"cut\n")
    assert log.read() == b"cut\n"
    path.rename(path.with_suffix(".1"))
    path.write_bytes(b"new\n")
    writer.write(b"old\nha")
    assert [log.read() for _ in range(4)] == [b"old\n", b"", b"new\n", b""]
    log.close()


def test_bytes_without_an_end_are_dropped(path: Path, writer: FileIO) -> None:
    """What is no log does not fill the memory; the next line is read again."""
    log = RequestsLog(path)
    for _ in range(3):
        writer.write(b"\0" * 1_000_000)
        assert log.read() == b""
    writer.write(b"\nline\n")
    assert len(log.read()) <= (64 << 10) + 6
    log.close()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """By its path."""
    with pytest.raises(InputError, match="cannot be opened for reading and cutting"):
        RequestsLog(tmp_path)
