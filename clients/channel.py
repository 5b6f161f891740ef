"""How a client talks to the server's gRPC; the same for every client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from clients.addresses import Address
from clients.options import Options, Tls
from tollgate.errors import Unavailable

CHANNEL_OPTIONS = (
    # The words for 32 bad rows travel as gRPC metadata, 8 KiB by default.
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.absolute_max_metadata_size", 128 * 1024),
    # A restarted server is found within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # An http_proxy meant for the web does not carry payments.
    ("grpc.enable_http_proxy", 0),
)
# A network that swallows everything is noticed by a ping without an answer: after 2 s
# when gRPC's own was under way, else after 12. Without the ping_timeout it is not
# (grpcio 1.85, a server under SIGSTOP). Pings go only while calls are on their way:
# Triton counts others as abuse, and hangs up.
_KEEP_ALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
# Behind these gRPC finds several servers, and asks them in turn.
SERVICES = ("dns:", "ipv4:", "ipv6:")
IN_TURN = (
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
)


def opener(options: Options, grpc_module: Any) -> Callable[[str], tuple[Any, Any]]:
    """
    Make what opens the connection to an address.

    Args:
        options: TLS or not.
        grpc_module: `grpc`, or `grpc.aio`.

    Returns:
        A function: address -> channel and the stub's ModelInfer.
    """

    def open_(address: str) -> tuple[Any, Any]:
        options.check_secrecy(address)
        told: tuple[tuple[str, object], ...] = (*CHANNEL_OPTIONS, *_KEEP_ALIVE)
        if address.startswith(SERVICES):
            told += IN_TURN
        channel = open_channel(address, grpc_module, tls=options.tls, told=told)
        return channel, service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer

    return open_


def open_channel(
    address: str,
    grpc_module: Any,
    *,
    tls: Tls | None,
    told: tuple[tuple[str, object], ...],
) -> Any:
    """
    Open a connection, in the clear or by TLS.

    Args:
        address: host:port, or a name that gRPC knows.
        grpc_module: `grpc`, or `grpc.aio`.
        tls: None for in the clear.
        told: Arguments of the channel.
    """
    if tls is None:
        return grpc_module.insecure_channel(address, options=told)
    if tls.server_name:
        told += (("grpc.ssl_target_name_override", tls.server_name),)
    return grpc_module.secure_channel(address, _credentials(tls), options=told)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.authority,
        private_key=tls.key,
        certificate_chain=tls.certificate,
    )


def wait_connected(addresses: Sequence[Address], timeout_s: float) -> None:
    """
    Wait until each address has a connection.

    Raises:
        Unavailable: Some have none in time; names them.
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
    """As `wait_connected`, for connections of asyncio."""
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
