"""How a command proves itself to a gateway: TLS, a client certificate, a key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.errors import InputError

if TYPE_CHECKING:
    from clients.options import Tls

TlsCa = Annotated[
    Path | None,
    typer.Option(help="Who signs the gateway's certificate; PEM. Asks by TLS."),
]
TlsCert = Annotated[
    Path | None, typer.Option(help="Certificate of the caller; PEM, with --tls-key.")
]
TlsKey = Annotated[Path | None, typer.Option(help="The key of that; PEM.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the caller's key, and nothing else.")
]


def read_proof(
    ca: Path | None, certificate: Path | None, *, key: Path | None, token: Path | None
) -> tuple[Tls | None, str | None]:
    """
    Read what a caller shows.

    Returns:
        TLS, None for in the clear; the key, None for none.

    Raises:
        InputError: A file cannot be read, or certificate and key are not both given.
    """
    from clients.options import tls_from

    tls = None
    if ca or certificate or key:
        tls = tls_from(authority=ca, certificate=certificate, key=key)
    if token is None:
        return tls, None
    try:
        return tls, token.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        words = getattr(exc, "strerror", None) or "is not ASCII"
        raise InputError(token, f"cannot be read: {words}") from exc
