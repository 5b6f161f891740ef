"""The outside of a chunk: magic, version, length and CRC-32 of what is in it."""

from __future__ import annotations

import struct
import zlib

from tollgate.errors import JournalError

MAGIC = b"TGJR"
VERSION = 1
MAX_CHUNK_BYTES = 16 << 20

_SEAL = struct.Struct("<4sBII")  # magic, version, length of all, CRC of the rest


def sealed(body: bytes) -> bytes:
    """Put the seal before the inside of a chunk."""
    size = _SEAL.size + len(body)
    return _SEAL.pack(MAGIC, VERSION, size, zlib.crc32(body)) + body


def unsealed(raw: bytes) -> bytes:
    """
    Check seal and checksum of a chunk.

    Returns:
        What is in it.

    Raises:
        JournalError: It is none, it is damaged, or of a version unknown here.
    """
    if raw[: len(MAGIC)] != MAGIC or len(raw) < _SEAL.size:
        start = raw[: len(MAGIC)]
        raise JournalError("a chunk", f"begins with {start!r}, not {MAGIC!r}: foreign")
    _, version, size, crc = _SEAL.unpack_from(raw)
    if version != VERSION:
        problem = f"has version {version}, this Tollgate reads {VERSION}"
        raise JournalError("a chunk", problem)
    if size != len(raw) or size > MAX_CHUNK_BYTES:
        raise JournalError("a chunk", f"has {len(raw):,} bytes, and claims {size:,}")
    body = raw[_SEAL.size :]
    found = zlib.crc32(body)
    if found != crc:
        raise JournalError("a chunk", f"its checksum is {found:08x}, not {crc:08x}")
    return body
