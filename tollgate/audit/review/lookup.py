"""Find one sealed decision by transaction or by record number, with its proof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tollgate.audit.chain.anchor import AnchorMark
from tollgate.audit.chain.links import (
    Link,
    no_journal,
    read_links,
    removed_links,
)
from tollgate.audit.chain.verification import Evidence, prove
from tollgate.audit.releases.record_rows import SEQUENCE, SUBJECT, WRITER, read_table
from tollgate.audit.review.pending import NUMBERED
from tollgate.audit.worker.late_checks import sealed_flags
from tollgate.audit.worker.pseudonyms import TRANSACTION, Subjects, pseudonym
from tollgate.audit.worker.reasons import SealedReason, sealed_reasons
from tollgate.errors import InputError


class SealedRecord(msgspec.Struct, frozen=True):
    """
    A sealed record, with everything that the journal holds about it.

    Attributes:
        link, row: Link of its segment, and its row in the table.
        values: Its columns.
        flags: Findings of late checks: check and detail.
        reasons, unexplained: Results of `sealed_reasons`.
        evidence: Proof that the record is unchanged.
    """

    link: Link
    row: int
    values: dict[str, Any]
    flags: list[tuple[str, str]]
    reasons: list[SealedReason]
    unexplained: str
    evidence: Evidence


def find_record(
    folder: Path,
    wanted: str,
    *,
    subjects: Subjects | None,
    customer: str | None = None,
    marks: Sequence[AnchorMark] = (),
) -> SealedRecord:
    """
    Find a decision; the newest one if a transaction was decided several times.

    Args:
        wanted: Transaction id, or WRITER:NUMBER as `verify` names records.
        subjects: Keys of the journal's subjects; required for a transaction id.
        customer: Id of the customer of the purchase; without it every key is tried.

    Raises:
        InputError: The decision is not there, or its person was erased or gave no
            consent.
        JournalError: The journal cannot be read.
    """
    chain = list(read_links(folder))
    if not chain:
        raise no_journal(folder)
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
        raise InputError(wanted, "cannot be found without the subjects' keys")
    else:
        link, row = _by_transaction(
            folder, alive, wanted, subjects=subjects, customer=customer
        )
    table = read_table(folder, link)
    values = table.row(row, named=True)
    reasons, unexplained = sealed_reasons(
        folder, links, link, writer=values[WRITER], sequence=values[SEQUENCE]
    )
    return SealedRecord(
        link=link,
        row=row,
        values=values,
        flags=sealed_flags(folder, links, link, values=values),
        reasons=reasons,
        unexplained=unexplained,
        evidence=prove(folder, chain, link, table=table, row=row, marks=marks),
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
    raise InputError(f"{writer}:{number}", "is not a record of this journal")


def _by_transaction(
    folder: Path,
    alive: Sequence[Link],
    wanted: str,
    *,
    subjects: Subjects,
    customer: str | None,
) -> tuple[Link, int]:
    """Search for all pseudonyms that the id can have, newest segment first."""
    names: dict[str, list[str]] = {}
    for link in alive:
        owner = next(
            (
                name[len(SUBJECT) :]
                for name, _ in link.columns
                if name.startswith(SUBJECT)
            ),
            TRANSACTION,
        )
        if owner not in names:
            names[owner] = _pseudonyms(wanted, owner, subjects, customer=customer)
        column = read_table(folder, link, columns=[TRANSACTION])[TRANSACTION]
        rows = column.is_in(names[owner]).fill_null(False).arg_true()
        if len(rows):
            return link, int(rows[-1])
    problem = (
        "cannot be found in this journal: the transaction is not there, was removed, "
        "its person was erased, or did not consent"
    )
    raise InputError(wanted, problem)


def _pseudonyms(
    wanted: str, owner: str, subjects: Subjects, *, customer: str | None
) -> list[str]:
    if owner == TRANSACTION:
        keys = list(subjects.known(owner, [wanted.encode()]).values())
    elif customer is None:
        keys = list(subjects.all_keys(owner))
    else:
        keys = list(subjects.known(owner, [customer.encode()]).values())
    return [pseudonym(key, TRANSACTION, wanted.encode()) for key in keys]
