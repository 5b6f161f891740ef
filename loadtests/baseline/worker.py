"""
One worker of a service: uvicorn on a port that it shares with the others.

    python -m loadtests.baseline.worker loadtests.baseline.lean.app:app 8080

uvicorn's own `--workers` share one socket, of which the process that wakes first takes
what it can: all of 64 connections that come at once, maybe. With a socket each
(SO_REUSEPORT) the kernel deals connections out by a hash of their addresses.
"""

from __future__ import annotations

import socket
import sys

import uvicorn


def main(app: str, port: int) -> None:
    """Serve until SIGTERM."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", port))
        # uvloop and httptools are what "auto", its default, takes where they are.
        config = uvicorn.Config(app, access_log=False, log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
