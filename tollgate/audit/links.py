"""
The chain: numbered links, each with the hash of the one before.

A link is a small JSON file that names what lies beside it (a segment of records, a
notice, what was removed) by SHA-256, and the records in it by a Merkle root. The hash
of a link is that of its file's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import JournalError

FORMAT = 1
NOTHING = "0" * 64  # what the first link has for a hash of the one before
NEW = ".new"  # folder of what is being written
PART = ".part"
LINK_SUFFIX = ".json"
LEAVES_SUFFIX = ".leaves"

Kind = Literal[
    "begin",
    "segment",
    "release",
    "ends",
    "flags",
    "reasons",
    "labels",
    "tombstone",
]
TABLES = ("segment", "flags", "reasons", "labels")  # kinds with records


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file beside a link."""

    name: str
    bytes: int
    sha256: str


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sequence numbers of a writer, first and last included."""

    writer: str
    first: int
    last: int


class WriterEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One behind the last number that a writer gave out, and whether it was killed."""

    writer: str
    sequence: int
    killed: bool


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One link.

    Attributes:
        format: Of this file.
        chain: Which chain; 32 hexadecimal digits, drawn when it begins.
        product: Whose decisions.
        number: From 1 on.
        kind: What it holds.
        previous: SHA-256 of the link before.
        sealed: When, RFC 3339 in UTC.
        files: What lies beside it.
        rows: Records in its table.
        root: Merkle root of their digests; empty without a table.
        columns: Name and type of the table's columns, in order.
        writers: Whose records they are, in the order of the table.
        gaps: Numbers that were skipped before these, as known when it was sealed.
        ends: What writers came to that are gone.
        until_us: Newest time in it, µs since the epoch; retention goes by it.
        covers: Links that it is about: of flags and of a tombstone.
        facts: What else a person wants to know.
    """

    format: int = FORMAT
    chain: str
    product: str
    number: int
    kind: Kind
    previous: str
    sealed: str
    files: tuple[File, ...] = ()
    rows: int = 0
    root: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    writers: tuple[Numbers, ...] = ()
    gaps: tuple[Numbers, ...] = ()
    ends: tuple[WriterEnd, ...] = ()
    until_us: int = 0
    covers: tuple[int, ...] = ()
    facts: dict[str, str] = {}

    @property
    def table(self) -> str:
        """Name of the Parquet file; empty without one."""
        return self.files[0].name if self.kind in TABLES and self.files else ""


def link_name(number: int) -> str:
    """Name the file of a link."""
    return f"{number:08d}{LINK_SUFFIX}"


def file_name(number: int, rest: str) -> str:
    """Name a file beside a link: `segment.parquet`, `leaves`, …"""
    return f"{number:08d}.{rest}"


def hidden_path(folder: Path, name: str) -> Path:
    """Tell where a file is before its link is there; no reader of Parquet finds it."""
    return folder / NEW / (name + PART)


def encode_link(link: Link) -> bytes:
    """Write a link as a person can read it."""
    return msgspec.json.format(msgspec.json.encode(link), indent=1) + b"\n"


def link_hash(content: bytes) -> str:
    """Compute the hash of a link's file."""
    return hashlib.sha256(content).hexdigest()


def decode_link(name: object, content: bytes) -> Link:
    """
    Read a link.

    Raises:
        JournalError: It is none.
    """
    try:
        link = msgspec.json.decode(content, type=Link)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise JournalError(name, f"is no link: {exc}") from exc
    if link.format != FORMAT:
        problem = f"has format {link.format}, this Tollgate reads {FORMAT}"
        raise JournalError(name, problem)
    for file in link.files:
        # Retention removes what links name: nothing else may be reached by a name.
        if not file.name.startswith(f"{link.number:08d}.") or "/" in file.name:
            raise JournalError(name, f"names {file.name!r}, which is not its own")
    return link


def link_paths(folder: Path) -> list[Path]:
    """List the files of links, in order."""
    return sorted(folder.glob("[0-9]" * 8 + LINK_SUFFIX))


def read_links(folder: Path) -> Iterator[tuple[Link, str]]:
    """
    Read all links, each with its hash; nothing is proven.

    Raises:
        JournalError: One cannot be read.
    """
    for path in link_paths(folder):
        content = read_file(path)
        yield decode_link(path, content), link_hash(content)


def links_after(folder: Path, number: int) -> Iterator[tuple[Link, str]]:
    """
    Read the links that follow one, up to where there is no next; without a listing.

    Raises:
        JournalError: One cannot be read.
    """
    while (path := folder / link_name(number + 1)).exists():
        content = read_file(path)
        yield decode_link(path, content), link_hash(content)
        number += 1


def removed_links(links: list[Link]) -> set[int]:
    """Name the links whose files retention removed."""
    return {
        number for link in links if link.kind == "tombstone" for number in link.covers
    }


def path_of(folder: Path, name: str) -> Path:
    """Find a file of a link, also one that a killed worker did not rename any more."""
    final = folder / name
    hidden = hidden_path(folder, name)
    return hidden if not final.exists() and hidden.exists() else final


def read_file(path: Path) -> bytes:
    """
    Read a file of the journal.

    Raises:
        JournalError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as exc:
        raise JournalError(path, f"cannot be read: {exc.strerror}") from exc
