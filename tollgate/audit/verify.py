"""
Prove a journal: every link, every file, every record.

The links prove each other by their hashes, the anchor proves the last of them; a link
proves its files, and the digests of its records, by which a record is found that is
not as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tollgate.audit.anchor import Mark, read_anchor
from tollgate.audit.chain import LOCK
from tollgate.audit.contents import Finding, prove_content
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
    removed_links,
)
from tollgate.audit.sealing import missing_in
from tollgate.audit.worker import WORKER_LOCK
from tollgate.errors import InputError, JournalError


class Proof(msgspec.Struct, frozen=True):
    """
    What came of proving a journal.

    Attributes:
        findings: What is wrong; none if all is as it was sealed.
        links: How many links were read.
        records: Decisions in the segments that are there.
        removed: Decisions that retention removed.
        missing: By writer, records that it numbered and that never came.
        head: Where the chain ends; None without any link.
        anchored: Marks that were compared.
    """

    findings: list[Finding]
    links: int
    records: int
    removed: int
    missing: dict[str, int]
    head: Mark | None
    anchored: int


def verify(
    folder: Path,
    *,
    anchor: Path | None = None,
    marks: Sequence[Mark] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Proof:
    """
    Prove everything in a journal's folder.

    Args:
        folder: The journal.
        anchor: Its anchor; without any mark, links that were cut off at the end or a
            chain that was made anew cannot be told.
        marks: What other anchors know.
        progress: Called with (links proven, links in all).

    Raises:
        InputError: There is no such folder.
        JournalError: The anchor cannot be read.
    """
    if not folder.is_dir():
        raise InputError(folder, "is no folder")
    if not (folder / LOCK).exists():
        raise InputError(folder, "holds no journal; `tollgate journal run` makes one")
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
    return Proof(
        findings=findings,
        links=len(links),
        records=sum(one.rows for one in segments if one.number not in removed),
        removed=sum(one.rows for one in segments if one.number in removed),
        missing=missing_in(list(links.values())),
        head=Mark(links[last].chain, last, hashes[last]) if links else None,
        anchored=len(known),
    )


def _prove_links(
    contents: dict[int, bytes],
) -> tuple[list[Finding], dict[int, Link], dict[int, str]]:
    """Prove that links are all there, and that each names the one before."""
    findings: list[Finding] = []
    links: dict[int, Link] = {}
    hashes: dict[int, str] = {}
    if not contents:
        return [Finding("journal", "holds no link")], links, hashes
    for number in range(1, max(contents) + 1):
        where = f"link {number}"
        if number not in contents:
            findings.append(Finding(where, "was removed"))
            continue
        hashes[number] = link_hash(contents[number])
        try:
            link = decode_link(where, contents[number])
        except JournalError as exc:
            findings.append(Finding(where, f"was changed: {exc.problem}"))
            continue
        links[number] = link
        before = hashes.get(number - 1, NOTHING if number == 1 else None)
        if before is not None and link.previous != before:
            problem = f"was changed, or link {number - 1} was: its hash does not fit"
            findings.append(Finding(where, problem))
        findings += _prove_identity(link, links, number)
    return findings, links, hashes


def _prove_identity(
    link: Link, links: dict[int, Link], number: int
) -> Iterator[Finding]:
    where = f"link {number}"
    first = next(iter(links.values()))
    if link.number != number:
        yield Finding(where, f"calls itself {link.number}: links were exchanged")
    if (link.chain, link.product) != (first.chain, first.product):
        yield Finding(where, "is of another chain")
    if (link.kind == "begin") != (number == 1):
        yield Finding(where, f"is of kind {link.kind}: the beginning was changed")


def _prove_anchors(
    hashes: dict[int, str], links: dict[int, Link], marks: Sequence[Mark]
) -> Iterator[Finding]:
    """Prove that what anchors know is there still."""
    chains = {one.chain for one in links.values()}
    for mark in marks:
        where = f"link {mark.number}"
        if mark.chain not in chains:
            yield Finding("journal", f"is not chain {mark.chain[:12]}… of its anchor")
            return
        if mark.number not in hashes:
            yield Finding(where, "was removed: its anchor knows it")
        elif hashes[mark.number] != mark.hash:
            yield Finding(where, "was changed: its anchor knows it otherwise")
    if marks:
        known = max(mark.number for mark in marks)
        for number in sorted(hashes):
            if number > known:
                problem = (
                    "was added: its anchor does not know it; if its worker was killed "
                    "at that moment, start it once more"
                )
                yield Finding(f"link {number}", problem)


def _strangers(
    names: set[str], new: set[str], links: dict[int, Link]
) -> Iterator[Finding]:
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
            yield Finding(name, "was added: no link names it")
    for name in sorted(new):
        # What a killed worker began, and what it did not move any more.
        begun = name.startswith(f"{last + 1:08d}.")
        if not begun and (name not in expected or name in names):
            yield Finding(f"{NEW}/{name}", "was added: no link names it")


def _is_link(name: str) -> bool:
    stem = name.removesuffix(".json")
    return name != stem and stem.isdigit() and len(stem) == 8
