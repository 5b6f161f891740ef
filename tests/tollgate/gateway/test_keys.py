"""Files of keys: what is refused, and never shown."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.gateway.keys import add_key, read_keys

KEY = "0123456789abcdef" * 4


def written(path: Path, text: str, *, mode: int = 0o600) -> Path:
    """Write a file of keys."""
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_caller_gets_as_many_keys_as_are_drawn(tmp_path: Path) -> None:
    """Each is new, 256 bits, and stands in a file that its owner alone reads."""
    path = tmp_path / "keys"
    drawn = [add_key(path, caller) for caller in ("shop", "shop", "bank-2")]
    assert read_keys(path) == dict(zip(drawn, ["shop", "shop", "bank-2"], strict=True))
    assert len(set(drawn)) == 3
    assert {len(bytes.fromhex(key)) for key in drawn} == {32}
    assert path.stat().st_mode & 0o777 == 0o600


def test_keys_that_are_drawn_at_once_are_all_stored(tmp_path: Path) -> None:
    """Each was printed, so each must be good."""
    path = tmp_path / "keys"
    callers = [f"shop-{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(partial(add_key, path), callers))
    assert read_keys(path) == dict(zip(drawn, callers, strict=True))


@pytest.mark.parametrize(
    "line",
    [
        f"{KEY} shop",
        f"{KEY} Shop;",
        f"{KEY[:31]} shop;",
        f"{KEY.upper()} shop;",
        f"{KEY} shop; {KEY[::-1]} bank;",
        f'"{KEY}" shop;',
        f"~^{KEY} shop;",
        "default shop;",
        "include /etc/passwd;",
        f"{KEY} shop; }} server {{",
        f"{KEY} a b;",
    ],
)
def test_other_lines_are_refused_by_number_and_not_shown(
    tmp_path: Path, line: str
) -> None:
    """What nginx would take for more than a key is no key."""
    path = written(tmp_path / "keys", f"# keys\n\n{line}\n")
    with pytest.raises(InputError, match="line 3") as caught:
        read_keys(path)
    assert KEY[:31] not in str(caught.value).lower()
    with pytest.raises(InputError, match="line 3"):
        add_key(path, "shop")
    assert path.read_text() == f"# keys\n\n{line}\n"


def test_a_key_belongs_to_one_caller(tmp_path: Path) -> None:
    """The same key again would be whose?"""
    path = written(tmp_path / "keys", f"{KEY} shop;\n{KEY} bank; # bank\n")
    with pytest.raises(InputError, match="line 2: the same key again"):
        read_keys(path)


def test_a_file_that_others_read_is_refused(tmp_path: Path) -> None:
    """As ssh does."""
    path = written(tmp_path / "keys", f"{KEY} shop;\n", mode=0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_keys(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "absent")


def test_a_mounted_secret_is_read_by_the_group_of_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user owns it: root, in Kubernetes; the rest of the world may not."""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    path = written(tmp_path / "keys", f"{KEY} shop;\n", mode=0o440)
    assert read_keys(path) == {KEY: "shop"}
    path.chmod(0o444)
    with pytest.raises(InputError, match="others may read it"):
        read_keys(path)


@pytest.mark.parametrize("caller", ["", "Shop", "a b", "-a", "a;", "a" * 64])
def test_a_callers_name_is_plain(tmp_path: Path, caller: str) -> None:
    """It goes into nginx's configuration and into logs."""
    with pytest.raises(InputError, match="CALLER"):
        add_key(tmp_path / "keys", caller)
    assert not (tmp_path / "keys").exists()
