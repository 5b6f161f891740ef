"""Certificates for a test, made with the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_authority(folder: Path, name: str) -> Path:
    """Make an authority: its certificate; the key lies beside it."""
    ca = folder / f"{name}.pem"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", str(ca.with_suffix(".key")), "-out", str(ca)),
    )
    return ca


def make_certificate(ca: Path, name: str, *, of: str) -> Path:
    """Have an authority certify a name (`DNS:localhost`); the key lies beside it."""
    certificate = ca.with_name(f"{name}.pem")
    request = certificate.with_suffix(".csr")
    extensions = certificate.with_suffix(".ext")
    extensions.write_text(f"subjectAltName={of}\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", str(certificate.with_suffix(".key"))),
        *("-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-CA", str(ca)),
        *("-CAkey", str(ca.with_suffix(".key")), "-CAcreateserial"),
        *("-extfile", str(extensions), "-out", str(certificate)),
    )
    return certificate


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
