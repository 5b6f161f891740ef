"""What a client can be told, with its defaults named once."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from clients.breaker import BreakerRules
from clients.columns import FRAUD_INPUTS, NO_FIELDS
from clients.retry import RetryRules
from tollgate.errors import InputError
from tollgate.schema import BULK, CLASS_HEADER

LONGEST_S = 3600.0  # that anybody waits for an answer


class Tls(msgspec.Struct, frozen=True):
    """
    How a connection is proven and encrypted; PEM.

    Attributes:
        authority: Who signs servers' certificates; None trusts the system's.
        certificate: The caller's own, for mTLS.
        key: Of that.
        server_name: What the server's certificate says, if not the address.
    """

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InputError("tls", "certificate and key come together")


def tls_from(
    *,
    authority: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    server_name: str = "",
) -> Tls:
    """
    Read certificates from files.

    Raises:
        InputError: One cannot be read, or certificate and key are not both given.
    """
    read: list[bytes | None] = []
    for path in (authority, certificate, key):
        try:
            read.append(path.read_bytes() if path else None)
        except OSError as error:
            raise InputError(path, error.strerror or "cannot be read") from error
    return Tls(read[0], read[1], read[2], server_name)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a client asks.

    Attributes:
        product: Name of the ensemble.
        inputs: Its inputs: name -> BYTES, FP64 or INT64.
        fields: Its optional ones, which its features.yaml declares.
        deadline_s: Of a call that brings none of its own; over an hour is an hour.
        retry: How often one call may ask.
        breaker: When an address is left alone.
        remembered: How many answers are kept for `cached`; 0 keeps none. About a
            kilobyte each.
        remember_s: For how long; not beyond the server's window for answers to an id.
        tls: None asks in the clear.
        token: Sent as `authorization: Bearer …`; a function is called for every
            request, and must neither raise nor take its time. In the clear only to
            this very machine.
        compress_above_bytes: Requests larger than this travel gzipped; None never.
            docs/clients.md says when that pays.
        bulk: Whether its requests can wait, and give way to payments.
        traces: Whether each call is a span of OpenTelemetry's, passed on to servers;
            docs/tracing.md.
    """

    product: str = "fraud"
    inputs: Mapping[str, str] = FRAUD_INPUTS
    fields: Mapping[str, str] = NO_FIELDS
    deadline_s: float = 0.05
    retry: RetryRules = RetryRules()
    breaker: BreakerRules = BreakerRules()
    remembered: int = 10_000
    remember_s: float = 600.0
    tls: Tls | None = None
    token: str | Callable[[], str] | None = None
    compress_above_bytes: int | None = None
    bulk: bool = False
    traces: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < float("inf"):
            raise InputError(
                "options", f"{self.deadline_s!r} is not above 0", where="deadline_s"
            )

    def check_secrecy(self, address: str) -> None:
        """
        Refuse to send a token in the clear to another machine.

        Raises:
            InputError: There is a token, no TLS, and the address is not loopback.
        """
        check_secrecy(address, tls=self.tls, token=self.token)


def check_secrecy(
    address: str, *, tls: Tls | None, token: str | Callable[[], str] | None
) -> None:
    """
    Refuse to send a token in the clear to another machine.

    Raises:
        InputError: There is a token, no TLS, and the address is not loopback.
    """
    if token is not None and tls is None and not _is_loopback(address):
        problem = f"a token to {address} needs TLS; give tls"
        raise InputError("options", problem, where="token")


def bearer(token: str | Callable[[], str] | None) -> tuple[tuple[str, str], ...]:
    """Write a token as gRPC metadata; None as no metadata."""
    if token is None:
        return ()
    text = token if isinstance(token, str) else token()
    return (("authorization", f"Bearer {text}"),)


def waits(bulk: bool) -> tuple[tuple[str, str], ...]:
    """Write as gRPC metadata that a request can wait; nothing for one that cannot."""
    return ((CLASS_HEADER, BULK),) if bulk else ()


def _is_loopback(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bounded(deadline_s: float) -> float:
    """Take a deadline for an hour where it is longer: gRPC knows no endless one."""
    return min(deadline_s, LONGEST_S)


DEFAULTS = Options()
