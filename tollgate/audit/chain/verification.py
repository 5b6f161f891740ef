"""
Verify a journal: every link, every file, every record; prove a single record.

Each link is verified by the hash in its successor, the last one by the anchor. A link
holds the hashes of its files and the Merkle root of its records' digests. The digests
identify each record that was changed.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl

from tollgate.audit.chain import merkle
from tollgate.audit.chain.anchor import AnchorMark, read_anchor
from tollgate.audit.chain.chain import LOCK
from tollgate.audit.chain.digests import columns_of, digests
from tollgate.audit.chain.links import (
    LEAVES_SUFFIX,
    NEW,
    NOTHING,
    PART,
    File,
    Link,
    decode_link,
    file_name,
    link_hash,
    link_name,
    link_paths,
    no_journal,
    path_of,
    read_file,
    removed_links,
)
from tollgate.audit.chain.segment_files import lock
from tollgate.audit.releases.record_rows import SEQUENCE, WRITER
from tollgate.audit.worker.audit_worker import WORKER_LOCK
from tollgate.audit.worker.sealing import missing_in
from tollgate.errors import InputError, JournalError

# Find records of a table that were changed, removed, added or moved after sealing.

MOST_NAMED = 20  # per kind of change; the rest are counted

_Key = tuple[str, int]


class RecordKeys:
    """
    Identities of a link's records: writer and sequence number in a segment, row number
    in other tables.
    """

    def __init__(self, link: Link) -> None:
        self._by_number = link.kind == "segment"
        self._rows = link.rows
        self._writers = link.writers

    def sealed(self) -> list[_Key]:
        """List the identities of the records as sealed, in order."""
        if not self._by_number:
            return [("", row) for row in range(self._rows)]
        return [
            (one.writer, number)
            for one in self._writers
            for number in range(one.first, one.last + 1)
        ]

    def found(self, table: pl.DataFrame) -> list[_Key]:
        """List the identities of the records in a file's table, in order."""
        if not self._by_number:
            return [("", row) for row in range(len(table))]
        return list(
            zip(table[WRITER].to_list(), table[SEQUENCE].to_list(), strict=True)
        )

    def named(self, key: _Key) -> str:
        """Return the name of a record for messages."""
        writer, number = key
        return f"record {number} of writer {writer}" if writer else f"row {number}"


def compare_rows(
    table: pl.DataFrame,
    found: Sequence[bytes],
    sealed: Sequence[bytes],
    *,
    keys: RecordKeys,
) -> Iterator[tuple[str, str]]:
    """
    Find the records that were changed, removed, added or moved.

    Args:
        sealed: Digests of the rows as they were sealed.

    Yields:
        Name of a record, and its change; above MOST_NAMED of one kind, a count of the
            rest.
    """
    if list(found) == list(sealed):
        return
    counts = dict.fromkeys(("was changed", "was removed", "was added", "was moved"), 0)
    for key, problem in _differences(
        keys.found(table), found, sealed_keys=keys.sealed(), sealed=sealed
    ):
        kind = " ".join(problem.split()[:2]).rstrip(":")
        counts[kind] += 1
        if counts[kind] <= MOST_NAMED:
            yield keys.named(key), problem
    for kind, number in counts.items():
        if number > MOST_NAMED:
            yield f"{number - MOST_NAMED} more", kind.replace("was", "were")


def _differences(
    found_keys: Sequence[_Key],
    found: Sequence[bytes],
    *,
    sealed_keys: Sequence[_Key],
    sealed: Sequence[bytes],
) -> Iterator[tuple[_Key, str]]:
    left = Counter(sealed)
    extra: dict[_Key, list[int]] = defaultdict(list)
    for row, (key, digest) in enumerate(zip(found_keys, found, strict=True)):
        if left[digest]:
            left[digest] -= 1
        else:
            extra[key].append(row)
    exact = not extra and not +left
    for key, digest in zip(sealed_keys, sealed, strict=False):
        if not left[digest]:
            continue
        left[digest] -= 1
        if extra.get(key):
            extra[key].pop()
            yield key, "was changed"
        else:
            yield key, "was removed"
    copies = Counter(found_keys)
    for key, rows in extra.items():
        for row in rows:
            again = ": it is there twice" if copies[key] > 1 else ""
            yield key, f"was added: row {row} of the file{again}"
    if exact:
        yield from _moves(found_keys, found, sealed)


def _moves(
    found_keys: Sequence[_Key], found: Sequence[bytes], sealed: Sequence[bytes]
) -> Iterator[tuple[_Key, str]]:
    place = {digest: row for row, digest in enumerate(sealed)}
    for row, digest in enumerate(found):
        if place[digest] != row:
            yield found_keys[row], f"was moved: from row {place[digest]} to row {row}"


# Verify the files of a link, and each of its records by digest.


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


class VerificationResult(msgspec.Struct, frozen=True):
    """
    Result of the verification of a journal.

    Attributes:
        findings: Differences from the sealed state; empty if there are none.
        links: Number of links read.
        records: Number of decisions in the segments that are there.
        removed: Number of decisions that retention removed.
        missing: By writer, the number of records that were numbered and never arrived.
        head: Last link of the chain; None without any link.
        anchored: Number of marks that were compared.
    """

    findings: list[Discrepancy]
    links: int
    records: int
    removed: int
    missing: dict[str, int]
    head: AnchorMark | None
    anchored: int


def verify(
    folder: Path,
    *,
    anchor: Path | None = None,
    marks: Sequence[AnchorMark] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerificationResult:
    """
    Verify everything in a journal's folder.

    Args:
        anchor: Its anchor file. Without any mark, links cut off at the end and a chain
            rebuilt from the start stay undetected.
        marks: Links recorded in other anchors.
        progress: Called with (links verified, links in total).

    Raises:
        InputError: The folder does not exist, or holds no journal.
        JournalError: The anchor cannot be read.
    """
    if not folder.is_dir():
        raise InputError(folder, "is no folder")
    if not (folder / LOCK).exists():
        raise no_journal(folder)
    with lock(folder / LOCK):
        known = [*marks, *(read_anchor(anchor) if anchor is not None else ())]
        paths = link_paths(folder)
        names = {path.name for path in folder.iterdir()}
        new = {path.name.removesuffix(PART) for path in folder.glob(f"{NEW}/*")}
        contents = {
            int(path.name.partition(".")[0]): path.read_bytes() for path in paths
        }
    findings, links, hashes = _prove_links(contents)
    findings += _prove_anchors(hashes, links, known)
    findings += _strangers(names, new, links)
    removed = removed_links(list(links.values()))
    for done, link in enumerate(links.values(), start=1):
        findings += prove_content(folder, link, removed=link.number in removed)
        progress(done, len(links))
    segments = [one for one in links.values() if one.kind == "segment"]
    last = max(links, default=0)
    return VerificationResult(
        findings=findings,
        links=len(links),
        records=sum(one.rows for one in segments if one.number not in removed),
        removed=sum(one.rows for one in segments if one.number in removed),
        missing=missing_in(list(links.values())),
        head=AnchorMark(links[last].chain, last, hashes[last]) if links else None,
        anchored=len(known),
    )


def _prove_links(
    contents: dict[int, bytes],
) -> tuple[list[Discrepancy], dict[int, Link], dict[int, str]]:
    """Verify that no link is missing, and that each has the hash of the last."""
    findings: list[Discrepancy] = []
    links: dict[int, Link] = {}
    hashes: dict[int, str] = {}
    if not contents:
        return [Discrepancy("journal", "holds no link")], links, hashes
    for number in range(1, max(contents) + 1):
        where = f"link {number}"
        if number not in contents:
            findings.append(Discrepancy(where, "was removed"))
            continue
        hashes[number] = link_hash(contents[number])
        try:
            link = decode_link(where, contents[number])
        except JournalError as exc:
            findings.append(Discrepancy(where, f"was changed: {exc.problem}"))
            continue
        links[number] = link
        before = hashes.get(number - 1, NOTHING if number == 1 else None)
        if before is not None and link.previous != before:
            problem = f"was changed, or link {number - 1} was: its hash does not fit"
            findings.append(Discrepancy(where, problem))
        findings += _prove_identity(link, links, number)
    return findings, links, hashes


def _prove_identity(
    link: Link, links: dict[int, Link], number: int
) -> Iterator[Discrepancy]:
    where = f"link {number}"
    first = next(iter(links.values()))
    if link.number != number:
        yield Discrepancy(where, f"has number {link.number}: links were exchanged")
    if (link.chain, link.product) != (first.chain, first.product):
        yield Discrepancy(where, "belongs to another chain")
    if (link.kind == "begin") != (number == 1):
        yield Discrepancy(where, f"is of kind {link.kind}: the beginning was changed")


def _prove_anchors(
    hashes: dict[int, str], links: dict[int, Link], marks: Sequence[AnchorMark]
) -> Iterator[Discrepancy]:
    """Verify that the links recorded in anchors are still there and unchanged."""
    chains = {one.chain for one in links.values()}
    for mark in marks:
        where = f"link {mark.number}"
        if mark.chain not in chains:
            yield Discrepancy(
                "journal", f"is not chain {mark.chain[:12]}… of its anchor"
            )
            return
        if mark.number not in hashes:
            yield Discrepancy(where, "was removed: its anchor has it")
        elif hashes[mark.number] != mark.hash:
            yield Discrepancy(where, "was changed: its anchor has another hash")
    if marks:
        known = max(mark.number for mark in marks)
        for number in sorted(hashes):
            if number > known:
                problem = (
                    "was added: its anchor does not have it; if its worker was killed "
                    "at that moment, start it again"
                )
                yield Discrepancy(f"link {number}", problem)


def _strangers(
    names: set[str], new: set[str], links: dict[int, Link]
) -> Iterator[Discrepancy]:
    """Find files that no link names."""
    last = max(links, default=0)
    expected = {LOCK, WORKER_LOCK, NEW}
    for number, link in links.items():
        expected.add(link_name(number))
        expected.update(one.name for one in link.files)
        if link.table:
            expected.add(file_name(number, LEAVES_SUFFIX[1:]))
    for name in sorted(names - expected):
        if not _is_link(name):
            yield Discrepancy(name, "was added: no link names it")
    for name in sorted(new):
        # A killed worker may leave files of the next link, or files that it did not
        # rename.
        unfinished = name.startswith(f"{last + 1:08d}.")
        if not unfinished and (name not in expected or name in names):
            yield Discrepancy(f"{NEW}/{name}", "was added: no link names it")


def _is_link(name: str) -> bool:
    stem = name.removesuffix(".json")
    return name != stem and stem.isdigit() and len(stem) == 8


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
        chain: All links of the journal, each with its hash.

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
