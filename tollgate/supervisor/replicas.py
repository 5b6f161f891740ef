"""Query each replica of a fleet, at its admin port, for the releases it runs."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from tollgate.errors import ArgumentError, ServerError
from tollgate.supervisor.reconciler import ReconcileStatus
from tollgate.supervisor.versions.detection import DetectedVersion

T = TypeVar("T")

_TIMEOUT_S = 2.0
_MOST_AT_ONCE = 32


class Replica(msgspec.Struct, frozen=True):
    """
    The answer of one replica.

    Attributes:
        address: Its admin port, "host:port".
        products: State of the reconciliation, per product; empty if it did not answer.
        problem: Reason why it did not answer; empty if it did.
    """

    address: str
    products: tuple[ReconcileStatus, ...]
    problem: str = ""


def find_replicas(names: Sequence[str]) -> list[str]:
    """
    Resolve names to the addresses of replicas.

    Args:
        names: "host:port" of admin ports; a name with many addresses, such as that of a
            headless service, stands for as many replicas.

    Returns:
        "address:port", sorted, without duplicates.

    Raises:
        InputError: A name is not host:port, or cannot be resolved.
    """
    found: set[str] = set()
    for name in names:
        host, _, port = name.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ArgumentError("replica", f"{name!r} is not host:port")
        try:
            addresses = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            raise ArgumentError("replica", f"{name}: {error.strerror}") from error
        for family, *_, address in addresses:
            ip = str(address[0])
            found.add(f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}")
    return sorted(found)


def query_replica(url: str) -> list[ReconcileStatus]:
    """
    Query a server for the state of its products.

    Args:
        url: Address of its admin port, "http://host:port".

    Raises:
        ServerError: It does not answer, or its answer is not that of a Tollgate server.
    """
    return _query_page(url, "releases", list[ReconcileStatus])


def query_versions(url: str) -> list[DetectedVersion]:
    """
    Query a server for its findings on versions that no release names.

    Args:
        url: Address of its admin port, "http://host:port".

    Raises:
        ServerError: It does not answer, or its answer is not that of a Tollgate server.
    """
    return _query_page(url, "versions", list[DetectedVersion])


def _query_page(url: str, page: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(f"{url}/{page}", timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except urllib.error.HTTPError as error:
        error.close()
        raise ServerError(url, f"/{page}: status {error.code}") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(url, f"does not report its {page}: {reason}") from error


def query_replicas(addresses: Sequence[str]) -> list[Replica]:
    """Query all replicas at the same time; include those that do not answer."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(_query, addresses))


def _query(address: str) -> Replica:
    try:
        return Replica(address, tuple(query_replica(f"http://{address}")))
    except ServerError as error:
        return Replica(address, (), error.problem)
