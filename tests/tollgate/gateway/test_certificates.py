"""Certificates to try the gateway with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.gateway.certificates import make_certificates


def test_openssl_takes_them_for_what_they_are(tmp_path: Path) -> None:
    """The server's by name and address, the client's for clients alone."""
    made = make_certificates(
        tmp_path, names=["gate.test", "127.0.0.1", "::1"], callers=["shop"], days=1
    )
    assert [path.name for path in made] == ["ca.pem", "server.pem", "shop.pem"]

    def verified(name: str, *more: str) -> bool:
        command = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.pem"), *more]
        done = subprocess.run(
            [*command, str(tmp_path / f"{name}.pem")], capture_output=True, check=False
        )
        return done.returncode == 0

    for host in (
        ("-verify_hostname", "gate.test"),
        ("-verify_ip", "127.0.0.1"),
        ("-verify_ip", "::1"),
    ):
        assert verified("server", "-purpose", "sslserver", *host)
    assert not verified("server", "-verify_hostname", "other.test")
    assert verified("shop", "-purpose", "sslclient")
    assert not verified("shop", "-purpose", "sslserver")
    assert all(
        (tmp_path / f"{path.stem}.key").stat().st_mode & 0o077 == 0 for path in made
    )


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A second call, or a caller named as the server, leaves what is there."""
    make_certificates(tmp_path, names=["localhost"], callers=["shop"], days=1)
    was = (tmp_path / "ca.pem").read_bytes()
    with pytest.raises(InputError, match="is there already"):
        make_certificates(tmp_path, names=["localhost"], callers=["bank"], days=1)
    assert (tmp_path / "ca.pem").read_bytes() == was
    with pytest.raises(InputError, match=r"server\.pem"):
        make_certificates(tmp_path / "new", names=["a"], callers=["server"], days=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["1.2.3", "", "a:b", "a b", "x\ny=z", "a,DNS:b"])
def test_a_host_that_is_none_leaves_nothing(tmp_path: Path, host: str) -> None:
    """Half of the certificates would be in the way of the next try."""
    with pytest.raises(InputError, match=r"^host: .* is neither a name nor"):
        make_certificates(tmp_path / "new", names=["a", host], callers=["b"], days=1)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file is there."""
    (tmp_path / "file").write_text("")
    for place in ("file", "file/new"):
        with pytest.raises(InputError, match=r"file.* cannot be made"):
            make_certificates(tmp_path / place, names=["a"], callers=["b"], days=1)


@pytest.mark.parametrize("caller", ["a/b", "", "a,DNS:bank", "-x", "a\nb"])
def test_an_invalid_name_is_refused(tmp_path: Path, caller: str) -> None:
    """It names a file, and stands in the certificate."""
    with pytest.raises(InputError, match=r"^caller: .* is not A-Z"):
        make_certificates(
            tmp_path / "new", names=["localhost"], callers=[caller], days=1
        )
    assert not (tmp_path / "new").exists()
