"""
The chain: numbered links, each with the hash of the one before.

A link is a small JSON file. It names the files that belong to it (for example a segment
of records, or the files of a release) by SHA-256, and the records in a table by a
Merkle root. The hash of a link is the SHA-256 of its file's bytes. Times are RFC 3339
text, UTC.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from tollgate.audit.chain.digests import columns_of
from tollgate.audit.chain.merkle import root
from tollgate.errors import InputError, JournalError, os_errors


def now_us() -> int:
    """Read the wall clock, µs since the epoch."""
    return time.time_ns() // 1000


def utc_text(time_us: int) -> str:
    """Format µs since the epoch as RFC 3339, UTC."""
    moment = datetime.fromtimestamp(time_us / 1e6, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_us(text: str) -> int:
    """Parse the output of `utc_text` to µs since the epoch."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    return int(moment.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000


FORMAT = 1
NOTHING = "0" * 64  # `previous` of the first link
NEW = ".new"  # folder of files that are being written
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
TABLES = ("segment", "flags", "reasons", "labels")  # kinds of links that hold records


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that belongs to a link."""

    name: str
    bytes: int
    sha256: str


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of sequence numbers of a writer; first and last are included."""

    writer: str
    first: int
    last: int


class WriterEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End of a writer: its last sequence number plus one, and whether it was killed."""

    writer: str
    sequence: int
    killed: bool


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One link of the chain.

    Attributes:
        chain: Id of the chain; 32 hexadecimal digits, drawn when the chain is created.
        number: Number of the link, from 1 on.
        kind: Kind of its content.
        previous: SHA-256 of the previous link.
        sealed: Time of sealing, RFC 3339 in UTC.
        files: Files that belong to the link.
        rows: Number of records in its table.
        root: Merkle root of the records' digests; empty without a table.
        columns: Name and type of the table's columns, in order.
        writers: Writers of the records and their sequence numbers, in table order.
        gaps: Sequence numbers missing before these, as known when the link was sealed.
        ends: Ends of writers that have stopped.
        until_us: Newest time in the table, µs since the epoch; retention uses it.
        covers: Numbers of the links that flags, reasons or a tombstone refer to.
        facts: Further facts for human readers.
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
        """Return the name of the Parquet file; empty without one."""
        return self.files[0].name if self.kind in TABLES and self.files else ""


def link_name(number: int) -> str:
    """Return the file name of a link."""
    return f"{number:08d}{LINK_SUFFIX}"


def file_name(number: int, rest: str) -> str:
    """Return the name of a file of a link, such as `segment.parquet` or `leaves`."""
    return f"{number:08d}.{rest}"


def hidden_path(folder: Path, name: str) -> Path:
    """Return a file's path until its link exists; readers of Parquet skip it."""
    return folder / NEW / (name + PART)


def encode_link(link: Link) -> bytes:
    """Encode a link as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(link), indent=1) + b"\n"


def link_hash(content: bytes) -> str:
    """Compute the hash of a link's file."""
    return hashlib.sha256(content).hexdigest()


def decode_link(name: object, content: bytes) -> Link:
    """
    Decode a link.

    Raises:
        JournalError: The content is not a link of this format.
    """
    try:
        link = msgspec.json.decode(content, type=Link)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise JournalError(name, f"is not a link: {exc}") from exc
    if link.format != FORMAT:
        problem = f"has format {link.format}, this Tollgate reads {FORMAT}"
        raise JournalError(name, problem)
    for file in link.files:
        # Retention removes the files that links name, so a name must not reach another
        # file.
        if not file.name.startswith(f"{link.number:08d}.") or "/" in file.name:
            raise JournalError(name, f"names {file.name!r}, which is not its own")
    return link


def link_paths(folder: Path) -> list[Path]:
    """List the files of links, in order."""
    return sorted(folder.glob("[0-9]" * 8 + LINK_SUFFIX))


def no_journal(folder: Path) -> InputError:
    """Return the error for a folder without a journal; name those below it."""
    found = sorted({path.parent.name for path in folder.glob(f"*/{link_name(1)}")})
    if found:
        return InputError(folder, f"holds no journal itself; give {_one_of(found)}")
    return InputError(folder, "holds no journal; `tollgate journal run` makes one")


def _one_of(names: list[str]) -> str:
    return f"its folder {names[0]}" if len(names) == 1 else "one of " + ", ".join(names)


def read_links(folder: Path) -> Iterator[tuple[Link, str]]:
    """
    Read all links, each with its hash, without verification.

    Raises:
        JournalError: A link cannot be read.
    """
    for path in link_paths(folder):
        content = read_file(path)
        yield decode_link(path, content), link_hash(content)


def links_after(folder: Path, number: int) -> Iterator[tuple[Link, str]]:
    """
    Read the links after a number until one is missing, without listing the folder.

    Raises:
        JournalError: A link cannot be read.
    """
    while (path := folder / link_name(number + 1)).exists():
        content = read_file(path)
        yield decode_link(path, content), link_hash(content)
        number += 1


def removed_links(links: list[Link]) -> set[int]:
    """Return the numbers of the links whose files retention removed."""
    return {
        number for link in links if link.kind == "tombstone" for number in link.covers
    }


def path_of(folder: Path, name: str) -> Path:
    """Return the path of a link's file, hidden if a killed worker did not rename it."""
    final = folder / name
    hidden = hidden_path(folder, name)
    return hidden if not final.exists() and hidden.exists() else final


def read_file(path: Path) -> bytes:
    """
    Read a file of the journal.

    Raises:
        JournalError: The file cannot be read.
    """
    with os_errors(JournalError, path, "cannot be read"):
        return path.read_bytes()


class LinkContent(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Content of a link that is to be added.

    Attributes:
        table: Records of the link; None for a link without a table.
        files: Content of other files, by the part of their name after the link number.
        writers, gaps, ends, until_us, covers, facts: Same as in `Link`.
    """

    kind: Kind
    table: pl.DataFrame | None = None
    files: Mapping[str, bytes] = {}
    writers: Sequence[Numbers] = ()
    gaps: Sequence[Numbers] = ()
    ends: Sequence[WriterEnd] = ()
    until_us: int = 0
    covers: Sequence[int] = ()
    facts: Mapping[str, str] = {}

    def link(
        self,
        number: int,
        *,
        chain: str,
        product: str,
        previous: str,
        files: Sequence[File],
        leaves: Sequence[bytes],
    ) -> Link:
        """Return the link of this content, sealed at the current time."""
        table = self.table
        return Link(
            chain=chain,
            product=product,
            number=number,
            kind=self.kind,
            previous=previous,
            sealed=utc_text(now_us()),
            files=tuple(files),
            rows=0 if table is None else len(table),
            root="" if table is None else root(leaves).hex(),
            columns=() if table is None else columns_of(table),
            writers=tuple(self.writers),
            gaps=tuple(self.gaps),
            ends=tuple(self.ends),
            until_us=self.until_us,
            covers=tuple(self.covers),
            facts=dict(self.facts),
        )
