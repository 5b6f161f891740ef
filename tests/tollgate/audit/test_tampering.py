"""Every change of a journal is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit.file_tampering import cut_the_end
from tests.support.audit.random_records import made
from tests.tollgate.audit.tamper import TAMPERINGS, run, sealed_journal
from tollgate.audit.chain.verification import verify
from tollgate.errors import InputError, JournalError

Open = Callable[..., Any]


def test_every_kind_of_tampering_is_found_and_named() -> None:
    """Twice each, at random places."""
    times = 2 * len(TAMPERINGS)
    counts = run(times=times, seed=7)
    assert counts["found"] == times
    assert counts["named"] == times, counts["missed"]


def test_unchanged_journal_has_no_finding(tmp_path: Path) -> None:
    """All links and records are counted."""
    folder, marks = sealed_journal(tmp_path)
    proof = verify(folder, marks=marks)
    assert proof.findings == []
    assert proof.records == 300
    assert proof.anchored == proof.links == len(marks)
    assert proof.head == marks[-1]


def test_cut_end_is_found_with_the_anchor_only(tmp_path: Path) -> None:
    """Without an anchor the rest is a valid chain, and `verify` says so."""
    import random

    folder, marks = sealed_journal(tmp_path)
    cut_the_end(folder, random.Random(1))
    assert verify(folder).findings == []
    assert verify(folder).anchored == 0
    assert verify(folder, marks=marks).findings


def test_worker_refuses_a_cut_chain(open_journal: Open) -> None:
    """The anchor has a link that is gone: the error says which command to run."""
    journal = open_journal()
    journal.sealer.seal([made(5)])
    last = sorted(journal.folder.glob("[0-9]*.json"))[-1]
    last.unlink()
    with pytest.raises(JournalError, match="its anchor has a link 3 that is not"):
        open_journal()


def test_worker_refuses_added_links(open_journal: Open) -> None:
    """A killed worker leaves at most one link that the anchor lacks; two were added."""
    journal = open_journal()
    journal.sealer.seal([made(5)])
    anchor = journal.home / "journal.anchor"
    lines = anchor.read_bytes().splitlines(keepends=True)
    anchor.write_bytes(b"".join(lines[:-1]))
    assert [str(one) for one in verify(journal.folder, marks=journal.marks()).findings]
    open_journal()
    assert verify(journal.folder, marks=journal.marks()).findings == []
    anchor.write_bytes(lines[0])
    with pytest.raises(JournalError, match="links were added"):
        open_journal()


def test_half_a_line_of_an_anchor_is_replaced(open_journal: Open) -> None:
    """A worker that is killed while it writes the anchor leaves a valid one."""
    journal = open_journal()
    journal.sealer.seal([made(5)])
    anchor = journal.home / "journal.anchor"
    whole = anchor.read_bytes()
    anchor.write_bytes(whole[:-20])
    open_journal()
    assert anchor.read_bytes() == whole


def test_folder_of_another_product_is_refused(open_journal: Open) -> None:
    """A folder holds the journal of one product."""
    from tollgate.audit.chain.chain import Chain

    folder = open_journal().folder
    with pytest.raises(InputError, match="is the journal of fraud, not of credit"):
        Chain(folder, product="credit")


def test_two_processes_add_in_turn(open_journal: Open) -> None:
    """Each sees the links of the other; the anchor has one line per link."""
    one, two = open_journal(), open_journal()
    for number in range(3):
        one.sealer.seal([made(5, first=10 * number)])
        two.sealer.seal([made(5, first=10 * number), made(5, first=10 * number + 5)])
    open_journal()
    marks = one.marks()
    assert [mark.number for mark in marks] == list(range(1, len(marks) + 1))
    proof = verify(one.folder, marks=marks)
    assert (proof.findings, proof.records, proof.missing) == ([], 30, {})


def test_missing_link_stops_a_worker(open_journal: Open) -> None:
    """Also without an anchor: a number is missing, and a later one exists."""
    from tollgate.audit.chain.chain import Chain

    journal = open_journal()
    journal.sealer.seal([made(5)])
    (journal.folder / "00000002.json").unlink()
    with pytest.raises(JournalError, match="does not follow link 1"):
        Chain(journal.folder, product="fraud")


def test_link_names_only_its_own_files(open_journal: Open) -> None:
    """A name outside of the folder is refused before any file is read or removed."""
    journal = open_journal()
    journal.sealer.seal([made(5)])
    path = journal.folder / "00000003.json"
    for name in ("00000002.policy.yaml", "00000003./../../keys"):
        content = path.read_text()
        path.write_text(content.replace("00000003.segment.parquet", name))
        with pytest.raises(JournalError, match="which is not its own"):
            open_journal()
        assert "is not its own" in str(verify(journal.folder).findings[0])
        path.write_text(content)
    open_journal()
