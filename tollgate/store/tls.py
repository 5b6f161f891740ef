"""Read the TLS parameters of a store's address, and build the TLS context."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from tollgate.errors import InputError

SOURCE = "store url"  # in errors; the address itself may hold a password

_CA, _CERT, _KEY = "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"
_KEY_PASSWORD, _CHECK_HOST = "ssl_password", "ssl_check_hostname"
TLS_PARAMETERS = (_CA, _CERT, _KEY, _KEY_PASSWORD, _CHECK_HOST)
_BOOLEANS = {"true": True, "false": False}


class Tls(msgspec.Struct, frozen=True):
    """
    Hold the TLS parameters: how the store and this client authenticate.

    Attributes:
        ca: File of the authorities to trust; empty for the system's.
        certificate: File with our certificate; empty for none.
        key: File with its key; empty when it is in the same file.
        key_password: Password of the key.
        check_host: Require the store's certificate to name the host that we connect to.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""
    check_host: bool = True

    def __repr__(self) -> str:
        """Print it without the password of the key."""
        return f"Tls(ca={self.ca!r}, certificate={self.certificate!r})"


def read_tls(parameters: Mapping[str, str]) -> Tls:
    """
    Read the parameters of TLS.

    Raises:
        InputError: A parameter is invalid.
    """
    check = parameters.get(_CHECK_HOST, "true").lower()
    if check not in _BOOLEANS:
        raise InputError(SOURCE, "is neither true nor false", where=_CHECK_HOST)
    if parameters.get(_KEY) and not parameters.get(_CERT):
        raise InputError(SOURCE, f"is there without {_CERT}", where=_KEY)
    return Tls(
        ca=parameters.get(_CA, ""),
        certificate=parameters.get(_CERT, ""),
        key=parameters.get(_KEY, ""),
        key_password=parameters.get(_KEY_PASSWORD, ""),
        check_host=_BOOLEANS[check],
    )


def tls_context(tls: Tls) -> ssl.SSLContext:
    """
    Build the TLS context; an unverified store is never trusted.

    Raises:
        InputError: A file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.check_host
    try:
        if tls.ca:
            context.load_verify_locations(cafile=tls.ca)
        else:
            context.load_default_certs()
    except OSError as exc:
        raise _unusable(_CA, tls.ca, exc) from exc
    if tls.certificate:
        try:
            context.load_cert_chain(
                tls.certificate, tls.key or None, lambda: tls.key_password
            )
        except (OSError, ValueError) as exc:
            names = f"{tls.certificate} with {tls.key}" if tls.key else tls.certificate
            raise _unusable(_CERT, names, exc) from exc
    return context


def greet(connection: Any) -> None:
    """
    Exchange one greeting over TLS, a command that every user may run.

    The store's session tickets come with its reply. Left unread, they look like a reply
    to no command, and redis-py drops the connection.
    """
    connection.on_connect()
    connection.send_command("HELLO", 2, check_health=False)
    connection.read_response()


def _unusable(name: str, files: str, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error)
    return InputError(SOURCE, f"{files} cannot be used: {why}", where=name)
