"""
Parse a store's address: its location, the user, and the TLS parameters.

redis-py's `parse_url` knows no cluster, and ignores a database that is no number and
parameters without value; an address with a typo would connect elsewhere
(docs/dependencies.md).
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from tollgate.errors import InputError

SOURCE = "store url"  # in errors; the address itself may hold a password
SOCKET_PATH_BYTES = 107  # sun_path has 108, one of them the final zero: unix(7)
_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_PORT = 6379

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


class Address(msgspec.Struct, frozen=True):
    """
    Describe how to reach a store.

    Attributes:
        places: Host and port of each known node; one, if it is no cluster.
        path: Unix socket; then there are no places.
        username: User to log in as; empty for the default user.
        password: Password of that user.
        db: Number of the database.
        tls: TLS parameters; None for a connection without TLS.
        cluster: True for a Redis Cluster.
    """

    places: tuple[tuple[str, int], ...] = ()
    path: str = ""
    username: str = ""
    password: str = ""
    db: int = 0
    tls: Tls | None = None
    cluster: bool = False

    def __repr__(self) -> str:
        """Print the address without user and password."""
        return f"Address({self.path or self.places!r})"

    def at(self, place: tuple[str, int]) -> Address:
        """Return the address of one node of a cluster."""
        return msgspec.structs.replace(self, places=(place,), cluster=False)


def read_address(url: str) -> Address:
    """
    Parse an address.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, with user, password, database
            and the parameters of TLS; `redis+cluster://` or `rediss+cluster://` with
            one or more nodes, joined by commas. docs/store.md.

    Raises:
        InputError: The address is invalid; the message never holds the address, which
            may contain a password.
    """
    scheme, separator, rest = url.strip().partition("://")
    kind, _, cluster = scheme.lower().partition("+")
    if scheme.lower() not in _SCHEMES or not separator:
        usable = ", ".join(f"{one}://" for one in _SCHEMES)
        raise InputError(SOURCE, f"begins with none of {usable}")
    # urlsplit takes one node, and none after a comma if it is an IPv6 address.
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    userinfo, _, hosts = authority.rpartition("@")
    username, _, password = userinfo.partition(":")
    parts = urlsplit(f"//{rest[len(authority) :]}")
    try:
        query = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
        )
    except ValueError:
        # The cause is not chained: it quotes the address.
        raise InputError(SOURCE, "is no address") from None
    parameters = dict(query)
    secure = kind == "rediss"
    known = ("db", *TLS_PARAMETERS) if secure else ("db",)
    for name in parameters:
        if name not in known:
            usable = ", ".join(known)
            raise InputError(SOURCE, f"is none of {usable}", where=name)
    address = Address(
        username=unquote(username),
        password=unquote(password),
        tls=read_tls(parameters) if secure else None,
        cluster=bool(cluster),
        db=_database(parameters, path="" if kind == "unix" else parts.path),
    )
    if kind == "unix":
        path = unquote(parts.path)
        size = len(os.fsencode(path))
        if size > SOCKET_PATH_BYTES:
            problem = f"has a path of {size} bytes; a unix socket's is at most"
            raise InputError(SOURCE, f"{problem} {SOCKET_PATH_BYTES}")
        return msgspec.structs.replace(address, path=path)
    places = tuple(_place(one) for one in (hosts or "localhost").split(","))
    if len(places) > 1 and not cluster:
        raise InputError(SOURCE, f"names {len(places)} nodes and is no {kind}+cluster")
    if cluster and address.db:
        raise InputError(SOURCE, "is 0 in a cluster", where="db")
    return msgspec.structs.replace(address, places=places)


def connection_maker(address: Address) -> Callable[..., Any]:
    """
    Choose the class of redis-py that connects to one host or socket.

    Its TLS context is built here, once: that takes tens of milliseconds with the
    system's authorities, and a call's deadline is five.

    Returns:
        The class; call it with the arguments of `connection_arguments`.

    Raises:
        InputError: A file of TLS cannot be used.
    """
    from redis import connection

    if address.path:
        unix: Callable[..., Any] = connection.UnixDomainSocketConnection
        return unix
    if address.tls is None:
        plain: Callable[..., Any] = connection.Connection
        return plain
    context = tls_context(address.tls)

    class Secure(connection.Connection):
        def _connect(self) -> Any:
            plain: Any = super()._connect()  # type: ignore[no-untyped-call]
            try:
                return context.wrap_socket(plain, server_hostname=self.host)
            except OSError:
                plain.close()
                raise

    return Secure


def connection_arguments(address: Address) -> dict[str, Any]:
    """Return the arguments of redis-py's connection class, without its timeouts."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    if address.path:
        place: dict[str, Any] = {"path": address.path}
    else:
        host, port = address.places[0]
        place = {"host": host, "port": port}
    if address.tls is not None and not address.password:
        place["redis_connect_func"] = greet
    return place | {
        "username": address.username or None,
        "password": address.password or None,
        "db": address.db,
        "retry": Retry(NoBackoff(), 0),
        # A handshake without HELLO and CLIENT SETINFO: fewer waits, fewer rights.
        "protocol": 2,
        "driver_info": None,
    }


def open_client(url: str, *, timeout_s: float | None = None) -> Any:
    """
    Open a plain redis-py client, for commands other than calls of the Lua function.

    Args:
        url: As `read_address` takes it, and no cluster.
        timeout_s: Timeout of each wait for the socket; None waits as long as it takes.

    Raises:
        InputError: The address is wrong, or a cluster's.
    """
    import redis

    address = read_address(url)
    if address.cluster:
        raise InputError(SOURCE, "is a cluster's; this needs a single Redis")
    pool = redis.ConnectionPool(
        connection_class=connection_maker(address),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        **connection_arguments(address),
    )
    return redis.Redis.from_pool(pool)


def _place(node: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{node}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        raise InputError(SOURCE, "has a node that is not host:port")
    return unquote(host), _PORT if port is None else port


def _database(parameters: dict[str, str], *, path: str) -> int:
    text = parameters.get("db", path.strip("/")) or "0"
    if not (text.isascii() and text.isdigit()):
        raise InputError(SOURCE, "is not a number", where="db")
    return int(text)
