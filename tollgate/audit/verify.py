"""
Verify a journal: every link, every file, every record.

Each link is verified by the hash in its successor, the last one by the anchor. A link
holds the hashes of its files and the Merkle root of its records' digests. The digests
identify each record that was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tollgate.audit.anchor import AnchorMark, read_anchor
from tollgate.audit.chain import LOCK
from tollgate.audit.contents import Discrepancy, prove_content
from tollgate.audit.files import lock
from tollgate.audit.links import (
    LEAVES_SUFFIX,
    NEW,
    NOTHING,
    PART,
    Link,
    decode_link,
    file_name,
    link_hash,
    link_name,
    link_paths,
    no_journal,
    removed_links,
)
from tollgate.audit.sealing import missing_in
from tollgate.audit.worker import WORKER_LOCK
from tollgate.errors import InputError, JournalError


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
        folder: Folder of the journal.
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
    """
    Verify that no link is missing, and that each has the hash of the previous one.
    """
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
