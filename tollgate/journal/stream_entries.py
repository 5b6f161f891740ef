"""Encode and decode stream entries: a chunk of records, or the end of a writer."""

from __future__ import annotations

import msgspec

from tollgate.errors import JournalError

# Field names; an entry has exactly one field.
CHUNK_FIELD, END_FIELD = b"c", b"e"
Entry = tuple[bytes, bytes]  # field and value


class End(msgspec.Struct, frozen=True, array_like=True):
    """
    End of a writer: a stream entry written by the writer or on its behalf.

    Attributes:
        writer: 16 hexadecimal digits.
        sequence: Its last sequence number plus one.
        killed: True if the writer was not closed; the process that drains its files
            reports it.
    """

    writer: str
    sequence: int
    killed: bool


def stream_key(product: str) -> bytes:
    """Return the key of the stream of a product's journal."""
    return f"tollgate:{product}:journal".encode()


def chunk_entry(raw: bytes) -> Entry:
    """Return the entry of a chunk."""
    return CHUNK_FIELD, raw


def end_entry(end: End) -> Entry:
    """Return the entry of a writer's end."""
    return END_FIELD, encode_end(end)


def encode_end(end: End) -> bytes:
    """Encode the end of a writer."""
    return msgspec.msgpack.encode(end)


def decode_end(raw: bytes) -> End:
    """
    Decode the end of a writer.

    Raises:
        JournalError: The bytes are not the end of a writer.
    """
    try:
        return msgspec.msgpack.decode(raw, type=End)
    except msgspec.MsgspecError as exc:
        raise JournalError("a writer's end", f"cannot be read: {exc}") from exc
