"""How a store proves who it is, and we do: the parameters of an address, and TLS."""

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
    How a store proves who it is, and we do.

    Attributes:
        ca: File of the authorities to trust; empty for the system's.
        certificate: File with our certificate; empty for none.
        key: File with its key; empty when it is in the same file.
        key_password: What opens the key.
        check_host: The store's certificate must name the host we ask for.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""
    check_host: bool = True

    def __repr__(self) -> str:
        """Print it without what opens the key."""
        return f"Tls(ca={self.ca!r}, certificate={self.certificate!r})"


def read_tls(parameters: Mapping[str, str]) -> Tls:
    """
    Read the parameters of TLS.

    Raises:
        InputError: One is unusable.
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
    Make the TLS context; an unverified store is never trusted.

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
    Exchange one greeting over TLS, which everybody may.

    The store's session tickets come with its answer. Left unread, they look like an
    answer that nobody waits for, and redis-py drops the connection.
    """
    connection.on_connect()
    connection.send_command("HELLO", 2, check_health=False)
    connection.read_response()


def _unusable(name: str, files: str, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error)
    return InputError(SOURCE, f"{files} cannot be used: {why}", where=name)
