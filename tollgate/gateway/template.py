"""Render the gateway's configuration: one template, values that differ by place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import ArgumentError, InputError

_FILES = Path(__file__).parent / "files"  # the chart has copies
TEMPLATE = _FILES / "nginx.conf"
INSPECTION = _FILES / "inspection.js"
SUSPENSIONS_FOLDER = "suspended"  # the name in nginx.conf
AuthMode = Literal["keys", "mtls", "either", "both"]
# For one server on two cores; its requests have one row.
IN_FLIGHT, CALLER_IN_FLIGHT, BULK_IN_FLIGHT = 40, 28, 1
_PLACE = re.compile(r"\$\{(GATEWAY_[A-Z_]+)\}")
_PRODUCT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Characters that have no meaning in the syntax of nginx's configuration.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@\[\]-]+")


class Limits(msgspec.Struct, frozen=True):
    """
    The limits that a gateway enforces.

    Attributes:
        rate: Requests per second of each caller.
        in_flight: Maximum number of decisions in flight.
        caller_in_flight: How many of these may be one caller's.
        bulk_in_flight: How many of these may be bulk requests.
    """

    rate: int
    in_flight: int
    caller_in_flight: int
    bulk_in_flight: int


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """
    The values of a gateway; each becomes GATEWAY_… in the template.

    Attributes:
        state: Folder that it may write to.
        upstream: host:port of Triton's gRPC.
        listen: address:port for callers.
        health_listen: address:port of /healthz, without TLS.
        tls_cert, tls_key: Certificate of the gateway with its chain, and the key; PEM
        files.
        auth: Credential of a caller: a key, a client certificate, either, or both.
        client_ca: Certificate authority of the clients' certificates; required unless
            `auth` is keys.
        keys: File of keys; required unless `auth` is mtls.
        rate: Requests per second that a caller may send.
        burst: Requests above the rate that are let through at once.
        in_flight: Maximum number of decisions in flight; docs/overload.md says how to
            choose it.
        caller_in_flight: How many of these may be one caller's.
        bulk_in_flight: How many of these may be bulk requests.
        max_body: Maximum size of one request: bytes, or with k or m.
        products: Names of the ensembles that callers may call.
        inspection: The script that inspects each request.
        suspensions: Folder of suspended callers, at the path that nginx's processes
            reach it by; None for the one that nginx makes in `state`.
        workers: Number of nginx's worker processes.
        log: Destination of the lines for refused requests.
        requests: Destination of one short line per request, from which requests are
            counted.
    """

    state: Path
    upstream: str
    listen: str
    health_listen: str
    tls_cert: Path
    tls_key: Path
    auth: AuthMode = "keys"
    client_ca: Path | None = None
    keys: Path | None = None
    rate: int = 1000
    burst: int = 200
    in_flight: int = IN_FLIGHT
    caller_in_flight: int = CALLER_IN_FLIGHT
    bulk_in_flight: int = BULK_IN_FLIGHT
    max_body: str = "128k"
    products: tuple[str, ...] = ("fraud",)
    inspection: Path = INSPECTION
    suspensions: Path | None = None
    workers: int = 2
    log: str = "/dev/stdout"
    requests: Path = Path("/dev/null")

    def __post_init__(self) -> None:
        for argument, address in (
            ("listen", self.listen),
            ("health_listen", self.health_listen),
            ("upstream", self.upstream),
        ):
            _require_address(argument, address)
        if self.auth != "keys" and self.client_ca is None:
            raise ArgumentError(
                "client_ca", f"is required if callers authenticate by {self.auth}"
            )
        if self.auth != "mtls" and self.keys is None:
            raise ArgumentError(
                "api_keys", f"is required if callers authenticate by {self.auth}"
            )
        if not re.fullmatch(r"[1-9][0-9]*[km]?", self.max_body):
            problem = f"{self.max_body!r} is no number of bytes, such as 131072 or 128k"
            raise ArgumentError("max_body", problem)
        for name in self.products:
            if not _PRODUCT.fullmatch(name):
                problem = f"{name!r:.80} is not a name of A-Z a-z 0-9 _.-"
                raise ArgumentError("product", problem)
        if not self.products:
            raise ArgumentError("product", "name at least one ensemble")

    @property
    def limits(self) -> Limits:
        """The limits that it enforces."""
        return Limits(
            self.rate, self.in_flight, self.caller_in_flight, self.bulk_in_flight
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that nginx reads, and reloads after a change."""
        every = (self.tls_cert, self.tls_key, self.client_ca, self.keys)
        return tuple(path for path in every if path is not None)

    def values(self) -> dict[str, str]:
        """Return the template's values by name."""
        named = msgspec.structs.asdict(self) | {
            # nginx opens a file even if it requires no client certificate.
            "client_ca": self.client_ca or self.tls_cert,
            "keys": self.keys or "/dev/null",
            "products": ",".join(self.products),
            "suspensions": self.suspensions or self.state / SUSPENSIONS_FOLDER,
            "verify_client": "off" if self.auth == "keys" else "optional",
        }
        return {
            f"GATEWAY_{name.upper()}": str(
                value.absolute() if isinstance(value, Path) else value
            )
            for name, value in named.items()
        }


def _require_address(argument: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ArgumentError(argument, f"{address!r:.80} is not address:port")


def render(gateway: Gateway, *, template: Path = TEMPLATE) -> str:
    """
    Substitute the values in the template, as envsubst does for the official image.

    Raises:
        InputError: The template cannot be read or uses an unknown value, or a value has
            characters with a meaning in nginx's configuration.
    """
    try:
        text = template.read_text()
    except OSError as exc:
        problem = f"cannot be read: {exc.strerror}; name another template"
        raise InputError(template, problem) from exc
    values = gateway.values()

    def value(place: re.Match[str]) -> str:
        name = place[1]
        if name not in values:
            raise InputError(template, "has no value", where=name)
        if not _PLAIN.fullmatch(values[name]):
            problem = (
                f"{values[name]!r} has other characters than A-Z a-z 0-9 _./:,@[]-"
            )
            raise InputError("gateway", problem, where=name)
        return values[name]

    return _PLACE.sub(value, text)
