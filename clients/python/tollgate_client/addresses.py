"""Hold the servers' addresses: open their connections, and choose the next to call."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from tollgate_client.breaker import Breaker, BreakerRules
from tollgate_client.errors import InputError, Unavailable
from tollgate_client.options import Options, Tls
from tollgate_client.wire import METHOD

CHANNEL_OPTIONS = (
    # The error texts of 32 bad rows travel as gRPC metadata, 8 KiB by default.
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.absolute_max_metadata_size", 128 * 1024),
    # Reconnect to a restarted server within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Never send payments through an http_proxy that is meant for the web.
    ("grpc.enable_http_proxy", 0),
)
# A ping without a response detects a network that drops every packet: after 2 s when
# gRPC's own ping was in flight, else after 12. Without the ping_timeout nothing detects
# it (grpcio 1.85, a server under SIGSTOP). Send pings only while calls are in flight:
# Triton counts others as abuse, and closes the connection.
_KEEP_ALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
# Behind these prefixes gRPC finds several servers, and calls them in turn.
SERVICES = ("dns:", "ipv4:", "ipv6:")
IN_TURN = (
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
)


def opener(options: Options, grpc_module: Any) -> Callable[[str], tuple[Any, Any]]:
    """
    Return a function that opens the connection to an address.

    Args:
        options: Options of the client; they say whether to use TLS.
        grpc_module: `grpc`, or `grpc.aio`.

    Returns:
        Function from address to the channel and its method; see `infer_method`.
    """

    def open_(address: str) -> tuple[Any, Any]:
        options.check_secrecy(address)
        arguments: tuple[tuple[str, object], ...] = (*CHANNEL_OPTIONS, *_KEEP_ALIVE)
        if address.startswith(SERVICES):
            arguments += IN_TURN
        channel = open_channel(
            address, grpc_module, tls=options.tls, arguments=arguments
        )
        return channel, infer_method(channel)

    return open_


def open_channel(
    address: str,
    grpc_module: Any,
    *,
    tls: Tls | None,
    arguments: tuple[tuple[str, object], ...],
) -> Any:
    """
    Open a connection, in plain text or with TLS.

    Args:
        address: host:port, or a name that gRPC can resolve.
        grpc_module: `grpc`, or `grpc.aio`.
        tls: TLS settings; None for plain text.
        arguments: Additional channel arguments.
    """
    if tls is None:
        return grpc_module.insecure_channel(address, options=arguments)
    if tls.server_name:
        arguments += (("grpc.ssl_target_name_override", tls.server_name),)
    return grpc_module.secure_channel(address, _credentials(tls), options=arguments)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.authority,
        private_key=tls.key,
        certificate_chain=tls.certificate,
    )


def infer_method(channel: Any) -> Any:
    """Return a channel's function that sends an encoded request to be decided."""
    return channel.unary_unary(METHOD)


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """
    The address of one server, or a DNS name behind which gRPC finds several.

    Attributes:
        name: The address as the caller gave it.
        channel: The connection, which all calls share.
        infer: Function that makes the call; see `infer_method`.
        breaker: Circuit breaker of this address.
    """

    name: str
    channel: Any
    infer: Any
    breaker: Breaker


class Ring:
    """
    Choose among addresses in round-robin order; threads may share it.

    Args:
        names: At least one address, each once.
        connect: Function that opens a connection to an address; returns its channel
            and its method.
        rules: Conditions under which a circuit breaker opens.
        clock: Function that returns monotonic seconds.

    Raises:
        InputError: `names` is empty, or holds an address twice.
    """

    def __init__(
        self,
        names: Sequence[str],
        connect: Callable[[str], tuple[Any, Any]],
        *,
        rules: BreakerRules,
        clock: Callable[[], float],
    ) -> None:
        for name in names:
            if not name or list(names).count(name) > 1:
                raise InputError("addresses", f"{name!r} is empty or stands twice")
        if not names:
            raise InputError("addresses", "there is none; give host:port")
        self.addresses = tuple(
            Address(name, *connect(name), Breaker(rules, clock)) for name in names
        )
        self._turn = itertools.count()

    def pick(self, tried: Collection[Address]) -> Address | None:
        """
        Return the next address whose circuit breaker allows a call.

        Args:
            tried: Addresses to leave out.

        Returns:
            The address; None when no other address may be called now.
        """
        first = next(self._turn)
        for step in range(len(self.addresses)):
            address = self.addresses[(first + step) % len(self.addresses)]
            if address not in tried and address.breaker.allows():
                return address
        return None

    def others(self, tried: Collection[Address]) -> bool:
        """Return whether another address is left that is not known to be down."""
        return any(
            address not in tried and not address.breaker.state
            for address in self.addresses
        )


def wait_connected(addresses: Sequence[Address], timeout_s: float) -> None:
    """
    Wait until each address has a connection.

    Raises:
        Unavailable: Some addresses have no connection in time; the error names them.
    """
    until_s = time.monotonic() + timeout_s
    away = []
    for address in addresses:
        future = grpc.channel_ready_future(address.channel)
        try:
            future.result(timeout=max(0.0, until_s - time.monotonic()))
        except grpc.FutureTimeoutError:
            away.append(address)
        finally:
            future.cancel()
    _require_none(away, timeout_s)


async def wait_connected_async(addresses: Sequence[Address], timeout_s: float) -> None:
    """Wait until each asyncio address has a connection; see `wait_connected`."""
    tasks = [asyncio.ensure_future(one.channel.channel_ready()) for one in addresses]
    _, late = await asyncio.wait(tasks, timeout=timeout_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    away = [one for one, task in zip(addresses, tasks, strict=True) if task in late]
    _require_none(away, timeout_s)


def _require_none(away: Sequence[Address], timeout_s: float) -> None:
    if away:
        names = ", ".join(address.name for address in away)
        raise Unavailable(f"no connection to {names} within {timeout_s:g} s")
