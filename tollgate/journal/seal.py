"""Seal and check the envelope of a chunk: magic, version, length and CRC-32."""

from __future__ import annotations

import struct
import zlib

from tollgate.errors import JournalError

MAGIC = b"TGJR"
VERSION = 1
MAX_CHUNK_BYTES = 16 << 20

_SEAL = struct.Struct("<4sBII")  # magic, version, total length, CRC of the body


def sealed(body: bytes) -> bytes:
    """Prepend the seal to the body of a chunk."""
    size = _SEAL.size + len(body)
    return _SEAL.pack(MAGIC, VERSION, size, zlib.crc32(body)) + body


def unsealed(raw: bytes) -> bytes:
    """
    Check the seal and the checksum of a chunk.

    Returns:
        The body of the chunk.

    Raises:
        JournalError: The bytes are no chunk, are damaged, or have an unknown version.
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
