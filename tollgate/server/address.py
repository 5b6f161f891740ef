"""
Publish and find the address of the server that runs on a state folder.

Other processes of the same user read the address from `server.json`. The file holds the
secret that opens the server's control API, so only its owner may read it. It exists
while the server runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tollgate.errors import ArgumentError, InputError
from tollgate.repository.atomic import replace_file
from tollgate.server.processes.listening_ports import listens
from tollgate.server.triton.control import Endpoint
from tollgate.server.triton.launcher import ADMIN_HEADER, TritonServer

ADDRESS_FILE = "server.json"
_OWNER_ONLY = 0o600


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The address and secrets of a server that another process runs.

    Attributes:
        grpc_url: Address for requests, "host:port".
        metrics_url: Address that Prometheus scrapes.
        pid: Process id of tritonserver.
        repository: The model repository that it serves, absolute.
        admin_secret: Secret that opens the control API.
        journal_url: Address of the stream for decisions; empty if none is used.
        slots: Folder of its own copies of that repository, absolute; empty if it reads
            the repository itself.
        side_port_url: Address of the admin port, with readiness and releases; empty if
            there is none.
        origin: Address of the object store that the repository mirrors; empty for a
            repository that is a folder.
        private_suffix: Suffix of the private names of its steps; as secret as the admin
            secret.
    """

    grpc_url: str
    metrics_url: str
    pid: int
    repository: str
    products: tuple[str, ...]
    admin_secret: str
    store_url: str = ""
    journal_url: str = ""
    slots: str = ""
    side_port_url: str = ""
    origin: str = ""
    private_suffix: str = ""

    @property
    def repository_name(self) -> str:
        """The repository that it follows, in the form of the settings."""
        return self.origin.rstrip("/") or self.repository

    def __repr__(self) -> str:
        """Format the address without the secrets."""
        return f"Address({self.grpc_url!r}, pid={self.pid}, admin_secret='***')"

    @property
    def admin_headers(self) -> dict[str, str]:
        """The gRPC metadata that opens the restricted protocols."""
        return {ADMIN_HEADER: self.admin_secret}

    @property
    def own_repository(self) -> Path:
        """Folder that it reads models from."""
        return Path(self.slots or self.repository)


def announce(
    triton: TritonServer,
    *,
    state: Path,
    repository: Path,
    products: Sequence[str],
    store_url: str,
    side_port_url: str = "",
    origin: str = "",
) -> None:
    """
    Write a server's address for other processes of this user.

    Args:
        triton: The server; it holds the lock of the state folder.
        side_port_url: Address of the admin port; empty if there is none.
        origin: Address of the object store that the repository mirrors.
    """
    address = Address(
        grpc_url=triton.grpc_url,
        metrics_url=triton.metrics_url,
        pid=triton.pid,
        repository=str(repository.resolve()),
        products=tuple(products),
        admin_secret=triton.admin_headers[ADMIN_HEADER],
        store_url=store_url,
        journal_url=triton.journal_url,
        slots=str(triton.own_repository),
        side_port_url=side_port_url,
        origin=origin,
        private_suffix=triton.private_suffix,
    )
    text = msgspec.json.format(msgspec.json.encode(address), indent=2)
    replace_file(state / ADDRESS_FILE, text + b"\n", mode=_OWNER_ONLY)


@contextlib.contextmanager
def announced(
    triton: TritonServer,
    *,
    state: Path,
    repository: Path,
    products: Sequence[str],
    store_url: str,
) -> Iterator[None]:
    """Publish the address as `announce` does, until the context ends."""
    announce(
        triton,
        state=state,
        repository=repository,
        products=products,
        store_url=store_url,
    )
    try:
        yield
    finally:
        (state / ADDRESS_FILE).unlink(missing_ok=True)


def find_server(state: Path) -> Address | None:
    """
    Find the running server of a state folder.

    Returns:
        Its address; None if none runs, also if a killed server left its file behind.

    Raises:
        InputError: The file exists and cannot be read.
    """
    path = state / ADDRESS_FILE
    try:
        address = msgspec.json.decode(path.read_bytes(), type=Address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(path, str(error)) from error
    port = address.grpc_url.rpartition(":")[2]
    alive = port.isdigit() and listens(address.pid, int(port))
    return address if alive else None


def endpoint(url: str, *, secret_file: Path | None) -> Endpoint:
    """
    Describe a server by its address and the file that holds its secret.

    Args:
        secret_file: File with one line; None for a server whose control API is open.

    Raises:
        InputError: The address is not valid, or the file cannot be read or is not one
            line.
    """
    host, _, port = url.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ArgumentError("url", f"{url!r} is not host:port")
    if secret_file is None:
        return Endpoint(url)
    try:
        secret = secret_file.read_text("ascii").strip()
    except OSError as error:
        raise InputError(secret_file, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(secret_file, "is not one line of plain text") from error
    if not secret or len(secret.split()) != 1:
        raise InputError(secret_file, "is not one line with the admin secret")
    return Endpoint(url, {ADMIN_HEADER: secret})
