"""
Close connections whose callers send nothing.

Granian closes connections that take too long over their headers, or that are idle. It
has no time limit for the first bytes, by which it tells HTTP/1.1 from HTTP/2, nor for
the handshake of TLS. A caller that stops there would hold one of the door's connections
for ever.
"""

from __future__ import annotations

import os
import socket
import struct

_PREFACE_BYTES = 24  # of HTTP/2; with these the protocol is known
# struct tcp_info of linux/tcp.h: milliseconds since the last data came, and bytes that
# were received.
_INFO = struct.Struct("=52xI72xQ")
_FDS = "/proc/self/fd"


def close_silent_connections(port: int, *, first_s: float, idle_s: float) -> int:
    """
    Close this process's connections that sent nothing for too long.

    Args:
        port: Port that was connected to.
        first_s: Longest time since the last byte, or since the connection, s, while a
            connection has sent less than a protocol's first bytes.
        idle_s: The same thereafter; longer than a caller may wait for an answer.

    Returns:
        Number of closed connections.
    """
    return sum(
        _close_if_silent(int(name), port, first_s=first_s, idle_s=idle_s)
        for name in os.listdir(_FDS)
    )


def _close_if_silent(
    descriptor: int, port: int, *, first_s: float, idle_s: float
) -> bool:
    try:
        if not os.readlink(f"{_FDS}/{descriptor}").startswith("socket:"):
            return False
        copy = os.dup(descriptor)
    except OSError:
        return False  # it was closed meanwhile
    # The copy may be another connection than a moment before, and is checked itself.
    with socket.socket(fileno=copy) as one:
        try:
            if one.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            if one.getsockname()[1] != port:
                return False
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            silent_ms, received = _INFO.unpack(info)
            if silent_ms < (first_s if received < _PREFACE_BYTES else idle_s) * 1e3:
                return False
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
