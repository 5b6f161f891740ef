"""Ask each replica of a fleet, at its admin port, which releases it runs."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from tollgate.errors import ArgumentError, ServerError
from tollgate.supervisor.arrivals import Arrival
from tollgate.supervisor.converging import Convergence

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
    products: tuple[Convergence, ...]
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
            places = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            raise ArgumentError("replica", f"{name}: {error.strerror}") from error
        for family, *_, place in places:
            ip = str(place[0])
            found.add(f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}")
    return sorted(found)


def ask_replica(url: str) -> list[Convergence]:
    """
    Ask a server for the state of its products.

    Args:
        url: Address of its admin port, "http://host:port".

    Raises:
        ServerError: It does not answer, or its answer is not that of a Tollgate server.
    """
    return _ask_page(url, "releases", list[Convergence])


def ask_versions(url: str) -> list[Arrival]:
    """
    Ask a server for its findings on versions that no release names.

    Args:
        url: Address of its admin port, "http://host:port".

    Raises:
        ServerError: It does not answer, or its answer is not that of a Tollgate server.
    """
    return _ask_page(url, "versions", list[Arrival])


def _ask_page(url: str, page: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(f"{url}/{page}", timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except urllib.error.HTTPError as error:
        error.close()
        raise ServerError(url, f"/{page}: status {error.code}") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(url, f"does not tell its {page}: {reason}") from error


def ask_replicas(addresses: Sequence[str]) -> list[Replica]:
    """Ask all replicas at the same time; include those that do not answer."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(_ask, addresses))


def _ask(address: str) -> Replica:
    try:
        return Replica(address, tuple(ask_replica(f"http://{address}")))
    except ServerError as error:
        return Replica(address, (), error.problem)
