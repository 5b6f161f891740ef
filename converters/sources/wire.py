"""
Messages between a process and the child it started: a length, then that many bytes.

The standard library alone: the environments of other releases import this too.
"""

from __future__ import annotations

import os
import struct
from typing import IO

LENGTH = struct.Struct("<Q")


def send(stream: IO[bytes], body: bytes) -> None:
    """Write one message."""
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Read one message; empty at the end of the stream, or when it is cut off."""
    size = stream.read(LENGTH.size)
    if len(size) < LENGTH.size:
        return b""
    wanted = LENGTH.unpack(size)[0]
    body = stream.read(wanted)
    return body if len(body) == wanted else b""


def take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """
    Take standard input and output for messages.

    Returns:
        Requests and replies. Whatever libraries print goes to standard error, and
        they find standard input empty.
    """
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return requests, replies
