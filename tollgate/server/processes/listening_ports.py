"""Find the process that listens on a port, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in the kernel's tcp_states.h


def listens(pid: int, port: int) -> bool:
    """
    Return whether a process of this user listens on a TCP port.

    A connection to the port would succeed for any process that took it first.

    Args:
        port: The port, on any address.
    """
    sockets = _listening_inodes(pid, port)
    return bool(sockets) and bool(sockets & _socket_inodes(pid))


def holder_of(port: int) -> str:
    """
    Describe the process that listens on a TCP port, as "process 17 (redis-server)".

    Returns:
        The description; empty if it cannot be found out: the process is another user's,
        or in a container.
    """
    sockets = _listening_inodes(os.getpid(), port)
    for name in os.listdir("/proc") if sockets else ():
        if name.isdigit() and sockets & _socket_inodes(int(name)):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{name}/comm").read_text().strip()
                return f"process {name} ({command})"
    return ""


def _listening_inodes(pid: int, port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, state, inode = fields[1], fields[3], fields[9]
            if state == _LISTEN and int(address.rpartition(":")[2], 16) == port:
                found.add(inode)
    return found


def _socket_inodes(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # the process ended
        return found
    for name in names:
        # A descriptor that is closed during the look must not hide those after it.
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found
