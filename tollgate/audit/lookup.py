"""Find one decision again, by its transaction or by its number, with its proof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tollgate.audit import merkle
from tollgate.audit.anchor import Mark
from tollgate.audit.digests import digests
from tollgate.audit.links import (
    LEAVES_SUFFIX,
    Link,
    file_name,
    path_of,
    read_file,
    read_links,
    removed_links,
)
from tollgate.audit.reasons import SealedReason, sealed_reasons
from tollgate.audit.rows import SEQUENCE, SUBJECT, WRITER
from tollgate.audit.subjects import TRANSACTION, Subjects, pseudonym
from tollgate.audit.tables import read_table
from tollgate.audit.waiting import NUMBERED
from tollgate.errors import InputError, JournalError


class Evidence(msgspec.Struct, frozen=True):
    """
    What proves that a record was sealed.

    Attributes:
        digest: Of the record, computed anew.
        path: From it to the root; side and digest.
        root: That the link has.
        link_hash: Of the link that names it.
        later: Links behind that one.
        head: Where the chain ends.
        problems: What does not fit; none if the record is as it was sealed.
        anchored: How many of these links an anchor knows.
    """

    digest: bytes
    path: list[tuple[str, bytes]]
    root: str
    link_hash: str
    later: int
    head: Mark
    problems: list[str]
    anchored: int


class Sealed(msgspec.Struct, frozen=True):
    """
    A record with all that the journal knows of it.

    Attributes:
        link, row: Its segment, and where it stands there.
        values: Its columns.
        flags: What late checks found.
        reasons, unexplained: As `sealed_reasons` returns them.
        evidence: What proves it.
    """

    link: Link
    row: int
    values: dict[str, Any]
    flags: list[tuple[str, str]]
    reasons: list[SealedReason]
    unexplained: str
    evidence: Evidence


def find(
    folder: Path,
    wanted: str,
    *,
    subjects: Subjects | None,
    customer: str | None = None,
    marks: Sequence[Mark] = (),
) -> Sealed:
    """
    Find a decision; the newest, if a transaction was decided more than once.

    Args:
        folder: The journal.
        wanted: Transaction id, or WRITER:NUMBER as `verify` names records.
        subjects: Keys of the journal; needed for a transaction id.
        customer: Id of whose purchase it was; without it every key is tried.
        marks: What anchors know.

    Raises:
        InputError: It is not there, or its person was erased or never consented.
        JournalError: The journal cannot be read.
    """
    chain = list(read_links(folder))
    if not chain:
        raise InputError(folder, "holds no journal")
    links = [link for link, _ in chain]
    removed = removed_links(links)
    alive = [
        link
        for link in reversed(links)
        if link.kind == "segment" and link.number not in removed
    ]
    numbered = NUMBERED.fullmatch(wanted)
    if numbered:
        link, row = _by_number(folder, alive, numbered[1], int(numbered[2]))
    elif subjects is None:
        raise InputError(wanted, "cannot be looked for without the subjects' keys")
    else:
        link, row = _by_transaction(
            folder, alive, wanted, subjects=subjects, customer=customer
        )
    table = read_table(folder, link)
    values = table.row(row, named=True)
    reasons, unexplained = sealed_reasons(
        folder, links, link, writer=values[WRITER], sequence=values[SEQUENCE]
    )
    return Sealed(
        link=link,
        row=row,
        values=values,
        flags=_flags(folder, links, link, values=values),
        reasons=reasons,
        unexplained=unexplained,
        evidence=_evidence(folder, chain, link, table=table, row=row, marks=marks),
    )


def _by_number(
    folder: Path, alive: Sequence[Link], writer: str, number: int
) -> tuple[Link, int]:
    for link in alive:
        for one in link.writers:
            if one.writer == writer and one.first <= number <= one.last:
                table = read_table(folder, link, columns=[WRITER, SEQUENCE])
                rows = table.with_row_index("row").filter(
                    (pl.col(WRITER) == writer) & (pl.col(SEQUENCE) == number)
                )
                if len(rows):
                    return link, int(rows["row"][0])
    raise InputError(f"{writer}:{number}", "is no record of this journal")


def _by_transaction(
    folder: Path,
    alive: Sequence[Link],
    wanted: str,
    *,
    subjects: Subjects,
    customer: str | None,
) -> tuple[Link, int]:
    """Look for every pseudonym that the id can have, in the newest segments first."""
    names: dict[str, list[str]] = {}
    for link in alive:
        owner = next(
            (
                name[len(SUBJECT) :]
                for name, _ in link.columns
                if name.startswith(SUBJECT)
            ),
            "",
        )
        if owner not in names:
            names[owner] = _pseudonyms(wanted, owner, subjects, customer=customer)
        column = read_table(folder, link, columns=[TRANSACTION])[TRANSACTION]
        rows = column.is_in(names[owner]).fill_null(False).arg_true()
        if len(rows):
            return link, int(rows[-1])
    problem = (
        "is no transaction of this journal that can be found: it is not there, was "
        "removed, its person was erased, or did not consent"
    )
    raise InputError(wanted, problem)


def _pseudonyms(
    wanted: str, owner: str, subjects: Subjects, *, customer: str | None
) -> list[str]:
    if customer is None:
        keys = list(subjects.all_keys(owner))
    else:
        keys = list(subjects.known(owner, [customer.encode()]).values())
    return [pseudonym(key, TRANSACTION, wanted.encode()) for key in keys]


def _flags(
    folder: Path, links: Sequence[Link], link: Link, *, values: dict[str, Any]
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in links:
        if one.kind == "flags" and link.number in one.covers and one.table:
            table = read_table(folder, one).filter(
                (pl.col(WRITER) == values[WRITER])
                & (pl.col(SEQUENCE) == values[SEQUENCE])
            )
            found += table.select("check", "detail").rows()
    return found


def _evidence(
    folder: Path,
    chain: Sequence[tuple[Link, str]],
    link: Link,
    *,
    table: pl.DataFrame,
    row: int,
    marks: Sequence[Mark],
) -> Evidence:
    """Prove one record: its digest, the path to the root, the links up to the head."""
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
        f"the anchor knows link {mark.number} otherwise"
        for mark in known
        if hashes.get(mark.number) != mark.hash
    ]
    return Evidence(
        digest=digest,
        path=steps,
        root=link.root,
        link_hash=own,
        later=len(chain) - link.number,
        head=Mark(last.chain, last.number, head),
        problems=problems,
        anchored=len(known),
    )
