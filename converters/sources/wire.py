"""
Exchange messages with a child process: a length, then that many bytes.

This module uses only the standard library: the environments of other releases import it
too.
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
    """Read one message; empty at the end of the stream, or if it is truncated."""
    size = stream.read(LENGTH.size)
    if len(size) < LENGTH.size:
        return b""
    wanted = LENGTH.unpack(size)[0]
    body = stream.read(wanted)
    return body if len(body) == wanted else b""


def take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """
    Reserve standard input and output for messages.

    Returns:
        The streams of requests and replies. Output that libraries print goes to
        standard error, and they find standard input empty.
    """
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return requests, replies
