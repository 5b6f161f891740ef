"""Query replicas at their admin ports for the releases they run; wait for one."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from tollgate.errors import ArgumentError, ServerError
from tollgate.repository.releases.release_file import (
    Release,
    release_content,
    release_path,
)
from tollgate.supervisor.reconciler import ReconcileStatus, digest_of
from tollgate.supervisor.version_detection import DetectedVersion

T = TypeVar("T")

_TIMEOUT_S = 2.0
_POLL_S = 0.05
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
    Resolve names to the "address:port" of replicas, sorted, without duplicates.

    Args:
        names: "host:port" of admin ports; a name with many addresses, such as that of a
            headless service, stands for as many replicas.

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


def wait_for_release(
    url: str,
    release: Release,
    *,
    repository: Path,
    wait_s: float,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """
    Wait until a server serves a release that was just made the desired one.

    Args:
        url: Address of its admin port, "http://host:port".
        wait_s: Longest time to wait, s.

    Raises:
        ServerError: The server refused it, it took too long, or another release became
            the desired one meanwhile.
    """
    path = release_path(repository, release.product)
    until_s, printed = time.monotonic() + wait_s, ""
    file = digest_of(release_content(release))
    now = _query_status(url, release.product)
    # The release failed before and was requested again: only the new attempt counts.
    before = now.attempts if now.file == file and now.state == "failed" else 0
    while now.file != file or now.state != "converged":
        if now.file == file:
            if now.state == "failed" and now.attempts > before:
                problem = f"{release.name} was not loaded, {now.running} still answers"
                raise ServerError(release.product, f"{problem}: {now.doing}")
            if now.doing not in ("", printed):
                printed = now.doing
                report(printed)
        elif _digest_now(path) not in ("", file):
            problem = f"another release than {release.name} is desired by now"
            raise ServerError(release.product, problem)
        if time.monotonic() > until_s:
            problem = f"{now.running} still answers after {wait_s:g} s"
            text = f"{problem}: {now.state} {now.doing}".rstrip()
            raise ServerError(release.product, text)
        time.sleep(_POLL_S)
        now = _query_status(url, release.product)


def _digest_now(path: Path) -> str:
    """Return the digest of a release.json now; empty when it cannot be read."""
    try:
        return digest_of(path.read_bytes())
    except OSError:
        return ""


def _query_status(url: str, product: str) -> ReconcileStatus:
    """Request the state of one product's rollout from a server."""
    for one in query_replica(url):
        if one.product == product:
            return one
    raise ServerError(product, f"is not served at {url} any more")
