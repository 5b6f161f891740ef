"""Define the options of a client and their defaults."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tollgate_client.breaker import BreakerRules
from tollgate_client.contract import BULK, CLASS_HEADER, FRAUD_INPUTS
from tollgate_client.errors import InputError
from tollgate_client.inputs import NO_FIELDS

LONGEST_S = 3600.0  # the longest that a caller waits for a response


@dataclass(frozen=True, slots=True)
class Tls:
    """
    TLS settings of a connection; all files in PEM format.

    Attributes:
        authority: CA that signs servers' certificates; None trusts the system's CAs.
        certificate: The client's own certificate, for mTLS.
        key: Private key of that certificate.
        server_name: Name in the server's certificate, if it is not the address.
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
        InputError: A file cannot be read, or only one of certificate and key is given.
    """
    read: list[bytes | None] = []
    for path in (authority, certificate, key):
        try:
            read.append(path.read_bytes() if path else None)
        except OSError as error:
            raise InputError(path, error.strerror or "cannot be read") from error
    return Tls(read[0], read[1], read[2], server_name)


@dataclass(frozen=True, slots=True)
class RetryRules:
    """
    Limit how often one call may be sent.

    Attributes:
        attempts: Maximum number of attempts, the first one included.
        first_part: Fraction of the remaining time that a server may take while another
            one can be called. Half left too little for healthy servers on a busy
            machine: their p99 was 29 ms.
        share: Fraction of all calls that may be retried; more would burden failing
            servers with useless work.
        burst: Retries available at once after a time without retries.
    """

    attempts: int = 2
    first_part: float = 0.6
    share: float = 0.2
    burst: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    Options of a client.

    Attributes:
        product: Name of the Triton ensemble.
        inputs: Inputs of the product: name -> BYTES, FP64 or INT64.
        fields: Optional inputs, which the product's features.yaml declares.
        deadline_s: Deadline, in seconds, of a call that has none of its own; a longer
            one than an hour counts as an hour.
        retry: Limits of retries.
        breaker: Conditions under which the client stops calling an address.
        remembered: Number of decisions stored for `cached`; 0 stores none. About a
            kilobyte each.
        remember_s: Seconds for which they are stored; not longer than the server's
            window for stored decisions.
        tls: TLS settings; None sends in plain text.
        token: API key, sent as `authorization: Bearer …`; a function is called for
            every request, and must neither raise nor take long. Without TLS it is sent
            only to this same machine.
        compress_above_bytes: Larger requests are compressed with gzip; None compresses
            none. docs/clients.md says when that pays.
        bulk: True if the client's requests can wait, and give way to payments.
        traces: True if each call is an OpenTelemetry span whose trace context goes to
            the servers; docs/tracing.md.
    """

    product: str = "fraud"
    inputs: Mapping[str, str] = field(default_factory=lambda: FRAUD_INPUTS)
    fields: Mapping[str, str] = field(default_factory=lambda: NO_FIELDS)
    deadline_s: float = 0.05
    retry: RetryRules = field(default_factory=RetryRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
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
        Refuse to send a token without TLS to another machine.

        Raises:
            InputError: There is a token, no TLS, and the address is not loopback.
        """
        check_secrecy(address, tls=self.tls, token=self.token)


def check_secrecy(
    address: str, *, tls: Tls | None, token: str | Callable[[], str] | None
) -> None:
    """
    Refuse to send a token without TLS to another machine.

    Raises:
        InputError: There is a token, no TLS, and the address is not loopback.
    """
    if token is not None and tls is None and not _is_loopback(address):
        problem = f"a token to {address} needs TLS; give tls"
        raise InputError("options", problem, where="token")


def bearer(token: str | Callable[[], str] | None) -> tuple[tuple[str, str], ...]:
    """Encode a token as gRPC metadata; None gives no metadata."""
    if token is None:
        return ()
    text = token if isinstance(token, str) else token()
    return (("authorization", f"Bearer {text}"),)


def request_class(bulk: bool) -> tuple[tuple[str, str], ...]:
    """Encode as gRPC metadata that a request can wait; none for one that cannot."""
    return ((CLASS_HEADER, BULK),) if bulk else ()


def _is_loopback(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def limit_deadline(deadline_s: float) -> float:
    """Limit a deadline to an hour: gRPC supports no infinite one."""
    return min(deadline_s, LONGEST_S)


DEFAULTS = Options()
