"""Read a caller's credentials for a gateway: TLS, client certificate, API key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.errors import InputError

if TYPE_CHECKING:
    from clients.options import Tls

TlsCa = Annotated[
    Path | None,
    typer.Option(help="Certificate authority of the gateway; PEM. Turns on TLS."),
]
TlsCert = Annotated[
    Path | None, typer.Option(help="Client certificate; PEM, with --tls-key.")
]
TlsKey = Annotated[
    Path | None, typer.Option(help="Private key of the client certificate; PEM.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File that contains only the caller's API key.")
]


def read_proof(
    ca: Path | None, certificate: Path | None, *, key: Path | None, token: Path | None
) -> tuple[Tls | None, str | None]:
    """
    Read a caller's credentials.

    Returns:
        TLS, None for plain text; the key, None for none.

    Raises:
        InputError: A file cannot be read, or only one of certificate and key is given.
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
