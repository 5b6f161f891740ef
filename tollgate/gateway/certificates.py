"""Make certificates to try the gateway with, by openssl; not for production."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
from pathlib import Path

from tollgate.errors import (
    ArgumentError,
    InputError,
    ServerError,
    SetupError,
    os_errors,
)

AUTHORITY, SERVER = "ca", "server"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_certificates(
    folder: Path, *, names: list[str], callers: list[str], days: int
) -> list[Path]:
    """
    Make a certificate authority, the gateway's certificate and one for each caller.

    Args:
        folder: Created if it does not exist; receives NAME.pem and NAME.key of each.
        names: Host names and addresses of the gateway.
        days: Days for which the certificates are valid, from now.

    Raises:
        InputError: A file of that name exists already, a name is used twice or is not
            valid, or the folder cannot be created.
        SetupError: There is no openssl command.
    """
    every = [AUTHORITY, SERVER, *callers]
    for name in every:
        if not _NAME.fullmatch(name):
            raise ArgumentError("caller", f"{name!r:.80} is not A-Z a-z 0-9 _ . and -")
        path = folder / f"{name}.pem"
        if path.exists() or every.count(name) > 1:
            raise InputError(path, "is there already; certificates are made once each")
    hosts = ",".join(_alternative(name) for name in names)
    with os_errors(InputError, folder, "cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    certificate = folder / f"{AUTHORITY}.pem"
    _openssl(
        *("req", "-x509", *_CURVE, "-days", str(days)),
        *("-subj", "/CN=Tollgate test authority"),
        *("-keyout", _key(certificate), "-out", str(certificate)),
    )
    made = [certificate, _sign(folder, SERVER, of=hosts, days=days)]
    made += [_sign(folder, name, of=f"DNS:{name}", days=days) for name in callers]
    return made


def _sign(folder: Path, name: str, *, of: str, days: int) -> Path:
    certificate = folder / f"{name}.pem"
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    authority = folder / f"{AUTHORITY}.pem"
    use = "serverAuth" if name == SERVER else "clientAuth"
    extensions.write_text(f"subjectAltName={of}\nextendedKeyUsage={use}\n")
    _openssl(
        *("req", *_CURVE, "-subj", f"/CN={name}"),
        *("-keyout", _key(certificate), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", str(days)),
        *("-CA", str(authority), "-CAkey", _key(authority), "-CAcreateserial"),
        *("-extfile", str(extensions), "-out", str(certificate)),
    )
    request.unlink()
    extensions.unlink()
    return certificate


def _key(certificate: Path) -> str:
    return str(certificate.with_suffix(".key"))


def _alternative(host: str) -> str:
    """Write a host in the form of openssl's subjectAltName."""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        # If the last part is digits, this is half an address; no host name ends like
        # that.
        if _HOST.fullmatch(host) and not host.rpartition(".")[2].isdigit():
            return f"DNS:{host}"
    raise ArgumentError("host", f"{host!r:.80} is neither a name nor an address")


def _openssl(*arguments: str) -> None:
    binary = shutil.which("openssl")
    if binary is None:
        raise SetupError("no openssl on PATH", remedy="apt-get install openssl")
    done = subprocess.run(
        [binary, *arguments],
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServerError("openssl", f"failed: {done.stderr.strip()[-500:]}")
