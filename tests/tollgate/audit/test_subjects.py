"""Keys of subjects."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from tollgate.audit.subjects import FILE, Subjects, pseudonym
from tollgate.errors import JournalError


def test_a_subject_keeps_its_key(tmp_path: Path) -> None:
    """The same id has the same key, also in another process; another has another."""
    first = Subjects(tmp_path / "keys").keys("customer", [b"a", b"b"])
    again = Subjects(tmp_path / "keys").keys("customer", [b"b", b"a", b"c"])
    assert {name: again[name] for name in first} == first
    assert len(set(again.values())) == 3
    assert Subjects(tmp_path / "keys").keys("terminal", [b"a"])[b"a"] != first[b"a"]


def test_pseudonym_is_an_hmac_of_the_id() -> None:
    """It is computed here once more, by the standard library's other function."""
    mac = hmac.new(b"k" * 32, b"customer\x00card-1", hashlib.sha256)
    assert pseudonym(b"k" * 32, "customer", b"card-1") == mac.hexdigest()[:32]


def test_only_this_user_may_read_them(tmp_path: Path) -> None:
    """Folder 0700, file 0600."""
    Subjects(tmp_path / "keys").keys("customer", [b"a"])
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "keys").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_an_erased_key_is_nowhere(tmp_path: Path) -> None:
    """Neither the key nor the id is in any byte of the folder; a new one is drawn."""
    subjects = Subjects(tmp_path / "keys")
    kept = subjects.keys("customer", [b"card-%d" % number for number in range(500)])
    gone = kept[b"card-7"]

    def everything() -> bytes:
        return b"".join(path.read_bytes() for path in (tmp_path / "keys").iterdir())

    assert gone in everything()
    assert b"card-7" not in everything()
    assert subjects.erase("customer", b"card-7", day="2026-01-01")
    assert gone not in everything()
    assert kept[b"card-8"] in everything()
    assert not subjects.erase("customer", b"card-7", day="2026-01-01")
    assert subjects.known("customer", [b"card-7"]) == {}
    assert subjects.keys("customer", [b"card-7"])[b"card-7"] != gone
    assert subjects.erased() == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """A file that is no database: one line that names it."""
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match=r"subjects\.sqlite: cannot be used"):
        Subjects(tmp_path)
