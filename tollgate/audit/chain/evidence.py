"""Prove that one record is unchanged since it was sealed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl

from tollgate.audit.chain import merkle
from tollgate.audit.chain.anchor import AnchorMark
from tollgate.audit.chain.digests import digests
from tollgate.audit.chain.links import (
    LEAVES_SUFFIX,
    Link,
    file_name,
    path_of,
    read_file,
)
from tollgate.errors import JournalError


class Evidence(msgspec.Struct, frozen=True):
    """
    Proof that a record was sealed as it is.

    Attributes:
        digest: Digest of the record, computed from the table.
        path: Steps from the record to the root: side and digest of each sibling.
        root: Merkle root in the link.
        link_hash: Hash of the link that holds the root.
        later: Number of links after that one.
        head: Last link of the chain.
        problems: Contradictions; empty if the record is unchanged since it was sealed.
        anchored: Number of links from this one on that an anchor has.
    """

    digest: bytes
    path: list[tuple[str, bytes]]
    root: str
    link_hash: str
    later: int
    head: AnchorMark
    problems: list[str]
    anchored: int


def prove(
    folder: Path,
    chain: Sequence[tuple[Link, str]],
    link: Link,
    *,
    table: pl.DataFrame,
    row: int,
    marks: Sequence[AnchorMark],
) -> Evidence:
    """
    Prove one record: its digest, the path to the root, and the links up to the head.

    Args:
        folder: Folder of the journal.
        chain: All links of the journal, each with its hash.
        link: Link of the record's segment.
        table: Table of that segment.
        row: Row of the record in the table.
        marks: Links recorded in anchors.

    Raises:
        JournalError: A file cannot be read.
    """
    size = merkle.DIGEST_BYTES
    name = file_name(link.number, LEAVES_SUFFIX[1:])
    raw = read_file(path_of(folder, name))
    leaves = [raw[at : at + size] for at in range(0, len(raw), size)]
    try:
        (digest,) = digests(table[row : row + 1])
    except JournalError as exc:
        raise JournalError(folder / link.table, exc.problem) from exc
    steps = merkle.path(leaves, min(row, len(leaves) - 1))
    problems = []
    if merkle.climb(digest, steps).hex() != link.root:
        problems.append("the record is not as it was sealed: its Merkle root differs")
    own = chain[link.number - 1][1]
    for (_, before), (after, _) in zip(
        chain[link.number - 1 :], chain[link.number :], strict=False
    ):
        if after.previous != before:
            problems.append(f"link {after.number} does not follow the one before")
    last, head = chain[-1]
    hashes = {one.number: found for one, found in chain}
    known = [mark for mark in marks if mark.number >= link.number]
    problems += [
        f"the anchor has another hash for link {mark.number}"
        for mark in known
        if hashes.get(mark.number) != mark.hash
    ]
    return Evidence(
        digest=digest,
        path=steps,
        root=link.root,
        link_hash=own,
        later=len(chain) - link.number,
        head=AnchorMark(last.chain, last.number, head),
        problems=problems,
        anchored=len(known),
    )
