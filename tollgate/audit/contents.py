"""Verify the files of a link, and each of its records by digest."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl

from tollgate.audit import merkle
from tollgate.audit.compare import RecordKeys, compare_rows
from tollgate.audit.digests import columns_of, digests
from tollgate.audit.links import (
    LEAVES_SUFFIX,
    File,
    Link,
    file_name,
    link_hash,
    path_of,
)
from tollgate.errors import JournalError


class Discrepancy(msgspec.Struct, frozen=True):
    """A difference from the sealed state: its location and a description."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def prove_content(folder: Path, link: Link, *, removed: bool) -> list[Discrepancy]:
    """Verify the files of one link, and the records of its table."""
    if removed:
        return [
            Discrepancy(one.name, "was put back: retention removed it")
            for one in link.files
            if path_of(folder, one.name).exists()
        ]
    findings: list[Discrepancy] = []
    for one in link.files:
        findings += _prove_file(folder, one)
    if link.table:
        findings += _prove_table(folder, link)
    return findings


def _prove_file(folder: Path, file: File) -> list[Discrepancy]:
    try:
        content = path_of(folder, file.name).read_bytes()
    except FileNotFoundError:
        return [Discrepancy(file.name, "was removed")]
    except OSError as exc:
        return [Discrepancy(file.name, f"cannot be read: {exc.strerror}")]
    if len(content) != file.bytes or link_hash(content) != file.sha256:
        return [Discrepancy(file.name, "was changed: its SHA-256 is another")]
    return []


def _prove_table(folder: Path, link: Link) -> list[Discrepancy]:
    """Verify the stored digests by the Merkle root, then each record by its digest."""
    name = file_name(link.number, LEAVES_SUFFIX[1:])
    try:
        raw = path_of(folder, name).read_bytes()
    except OSError as exc:
        return [Discrepancy(name, f"was removed, or cannot be read: {exc.strerror}")]
    size = merkle.DIGEST_BYTES
    leaves = [raw[at : at + size] for at in range(0, len(raw), size)]
    findings: list[Discrepancy] = []
    if len(leaves) != link.rows or merkle.root(leaves).hex() != link.root:
        findings.append(Discrepancy(name, "was changed: its Merkle root is another"))
    try:
        content = path_of(folder, link.table).read_bytes()
        table = pl.read_parquet(io.BytesIO(content))
        if columns_of(table) != link.columns:
            problem = _changed_columns(columns_of(table), link.columns)
            return [*findings, Discrepancy(link.table, problem)]
        own = digests(table)
    except FileNotFoundError:
        return findings  # _prove_file reports it
    except (OSError, pl.exceptions.PolarsError, JournalError) as exc:
        problem = f"no record of it can be read: {str(exc).splitlines()[0]}"
        return [*findings, Discrepancy(link.table, problem)]
    except pl.exceptions.PanicException:
        return [*findings, Discrepancy(link.table, "no record of it can be read")]
    for row, problem in compare_rows(table, own, leaves, keys=RecordKeys(link)):
        findings.append(Discrepancy(f"{link.table}: {row}", problem))
    return findings


def _changed_columns(
    found: Sequence[tuple[str, str]], sealed: Sequence[tuple[str, str]]
) -> str:
    lost = Counter(sealed) - Counter(found)
    new = Counter(found) - Counter(sealed)
    if not lost and not new:
        return "its columns were reordered"
    parts = [f"{name} ({kind}) was removed" for name, kind in lost]
    parts += [f"{name} ({kind}) was added" for name, kind in new]
    return "its columns were changed: " + ", ".join(parts)
