"""What each replica of a fleet runs, asked at its side port."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from tollgate.errors import InputError, ServerError
from tollgate.supervisor.arrivals import Arrival
from tollgate.supervisor.converging import Convergence

T = TypeVar("T")

_TIMEOUT_S = 2.0
_MOST_AT_ONCE = 32


class Replica(msgspec.Struct, frozen=True):
    """
    One replica's answer.

    Attributes:
        address: Its side port, "host:port".
        products: How far it is, per product; empty when it did not answer.
        problem: Why it did not; empty when it did.
    """

    address: str
    products: tuple[Convergence, ...]
    problem: str = ""


def find_replicas(names: Sequence[str]) -> list[str]:
    """
    Turn names into the addresses of replicas.

    Args:
        names: "host:port" of side ports; a name of many addresses, such as that of a
            headless service, is as many replicas.

    Returns:
        "address:port", sorted, none twice.

    Raises:
        InputError: A name is not host:port, or nobody knows it.
    """
    found: set[str] = set()
    for name in names:
        host, _, port = name.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise InputError("--replica", f"{name!r} is not host:port")
        try:
            places = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            raise InputError("--replica", f"{name}: {error.strerror}") from error
        for family, *_, place in places:
            ip = str(place[0])
            found.add(f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}")
    return sorted(found)


def ask_replica(url: str) -> list[Convergence]:
    """
    Ask a server how far it is with its products.

    Args:
        url: Of its side port, "http://host:port".

    Raises:
        ServerError: It does not answer, or not as a server of ours.
    """
    return _ask_page(url, "releases", list[Convergence])


def ask_versions(url: str) -> list[Arrival]:
    """
    Ask a server what it found of versions that no release names.

    Args:
        url: Of its side port, "http://host:port".

    Raises:
        ServerError: It does not answer, or not as a server of ours.
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
    """Ask replicas, all at once; one that does not answer is in the list too."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(_ask, addresses))


def _ask(address: str) -> Replica:
    try:
        return Replica(address, tuple(ask_replica(f"http://{address}")))
    except ServerError as error:
        return Replica(address, (), error.problem)
