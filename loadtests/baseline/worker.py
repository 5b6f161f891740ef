"""
One worker of a service: uvicorn on a port that it shares with the others.

    python -m loadtests.baseline.worker loadtests.baseline.lean.app:app 8080

uvicorn's own `--workers` share one socket. The process that wakes first accepts all
pending connections, possibly all of 64 that arrive at the same time. With one socket
per worker (SO_REUSEPORT) the kernel distributes connections by a hash of their
addresses.
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
        # "auto", uvicorn's default, uses uvloop and httptools where they are installed.
        config = uvicorn.Config(app, access_log=False, log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
