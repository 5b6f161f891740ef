"""Keys of subjects."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from tollgate.audit.worker.pseudonyms import FILE, Subjects, pseudonym
from tollgate.errors import JournalError


def test_subject_retains_its_key(tmp_path: Path) -> None:
    """The same id has the same key in every process; another id has another key."""
    first = Subjects(tmp_path / "keys").keys("customer", [b"a", b"b"])
    again = Subjects(tmp_path / "keys").keys("customer", [b"b", b"a", b"c"])
    assert {name: again[name] for name in first} == first
    assert len(set(again.values())) == 3
    assert Subjects(tmp_path / "keys").keys("terminal", [b"a"])[b"a"] != first[b"a"]


def test_pseudonym_is_an_hmac_of_the_id() -> None:
    """Compared with the standard library's other function."""
    mac = hmac.new(b"k" * 32, b"customer\x00card-1", hashlib.sha256)
    assert pseudonym(b"k" * 32, "customer", b"card-1") == mac.hexdigest()[:32]


def test_only_this_user_may_read_keys(tmp_path: Path) -> None:
    """Folder 0700, file 0600."""
    Subjects(tmp_path / "keys").keys("customer", [b"a"])
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "keys").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_erased_key_is_in_no_file(tmp_path: Path) -> None:
    """No byte of the folder holds key or id; the next key is a new one."""
    subjects = Subjects(tmp_path / "keys")
    keys = subjects.keys("customer", [b"card-%d" % number for number in range(500)])
    gone = keys[b"card-7"]

    def everything() -> bytes:
        return b"".join(path.read_bytes() for path in (tmp_path / "keys").iterdir())

    assert gone in everything()
    assert b"card-7" not in everything()
    assert subjects.erase("customer", b"card-7", day="2026-01-01")
    assert gone not in everything()
    assert keys[b"card-8"] in everything()
    assert not subjects.erase("customer", b"card-7", day="2026-01-01")
    assert subjects.known("customer", [b"card-7"]) == {}
    assert subjects.keys("customer", [b"card-7"])[b"card-7"] != gone
    assert subjects.erased() == 1


def test_error_names_the_damaged_file(tmp_path: Path) -> None:
    """A file that is no database gives a one-line error."""
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match=r"subjects\.sqlite: cannot be used"):
        Subjects(tmp_path)
