"""Entries of a product's stream: a chunk of records, or what a writer came to."""

from __future__ import annotations

import msgspec

from tollgate.errors import JournalError

# The one field of an entry.
CHUNK_FIELD, END_FIELD = b"c", b"e"
Entry = tuple[bytes, bytes]  # field and value


class End(msgspec.Struct, frozen=True, array_like=True):
    """
    What a writer came to: an entry of the stream, from it or about it.

    Attributes:
        writer: 16 hexadecimal digits.
        sequence: One behind the last number that it gave to a record.
        killed: Nobody closed it; the drain that found it says so.
    """

    writer: str
    sequence: int
    killed: bool


def stream_key(product: str) -> bytes:
    """Name the stream of a product's journal."""
    return f"tollgate:{product}:journal".encode()


def chunk_entry(raw: bytes) -> Entry:
    """Make the entry of a chunk."""
    return CHUNK_FIELD, raw


def end_entry(end: End) -> Entry:
    """Make the entry of a writer's end."""
    return END_FIELD, encode_end(end)


def encode_end(end: End) -> bytes:
    """Pack the end of a writer."""
    return msgspec.msgpack.encode(end)


def decode_end(raw: bytes) -> End:
    """
    Unpack the end of a writer.

    Raises:
        JournalError: It is nothing of the kind.
    """
    try:
        return msgspec.msgpack.decode(raw, type=End)
    except msgspec.MsgspecError as exc:
        raise JournalError("a writer's end", f"cannot be read: {exc}") from exc
