"""
Pack the candidates that were prepared for a user, and read them again.

An entry holds what the ranking of a list starts from: candidates and their relevance.
It names the files of the release and the events of the user that it was made from, so
whoever reads it knows whether it still holds. docs/ranking.md has it byte by byte.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.ranking.candidates import CANDIDATES, POPULAR
from tollgate.ranking.history import UserHistory

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

ENTRY_VERSION = 1
# version, bytes of an index, candidates, CRC-32 of all other bytes, ranker, history,
# time made and life, µs
_HEAD = struct.Struct("<BBHIQQqq")
_CHECKSUM = slice(4, 8)
_INDEX_KINDS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_SPREAD = 0.2  # part of the mean life by which users differ, either way
_MAX_HASH = 2**32


class PreparedCandidates(msgspec.Struct, frozen=True, eq=False):
    """
    The candidates of one user, as they were found and scored at one time.

    Attributes:
        ranker: Hash of the files that found and scored them.
        history: Hash of the user's events that they were made from; `history_hash`.
        made_us: Time at which they were made, µs since the epoch.
        life_us: Time for which they hold, before and after.
        items: Index in the catalogue; int32 [M], at most CANDIDATES.
        sources: Index in `schema.SOURCES`; uint8 [M].
        relevance: float32 [M].
    """

    ranker: int
    history: int
    made_us: int
    life_us: int
    items: I32
    sources: U8
    relevance: F32


def prepared_key(product: str, user: bytes) -> bytes:
    """Return the store key of a user's entry."""
    return b"tollgate:%b:prepared:%b" % (product.encode(), user)


def life_of(user: bytes, mean_us: int) -> int:
    """
    Return how long the entry of a user holds, µs.

    Users differ by a fifth of the mean either way, so that entries that were made
    together do not end together.
    """
    part = 2 * zlib.crc32(user) / _MAX_HASH - 1
    return round(mean_us * (1 + _SPREAD * part))


def history_hash(history: UserHistory, row: int) -> int:
    """Hash the events of one row; an unsigned number of 64 bits."""
    count = int(history.count[row])
    digest = hashlib.blake2b(history.time_us[row, :count].tobytes(), digest_size=8)
    for column in history.columns.values():
        digest.update(column[row, :count].tobytes())
    return int.from_bytes(digest.digest(), "little")


def encode_prepared(made: PreparedCandidates) -> bytes:
    """Pack an entry."""
    width = 2 if int(made.items.max(initial=0)) < 1 << 16 else 4
    body = b"".join(
        (
            made.items.astype(_INDEX_KINDS[width]).tobytes(),
            made.sources.astype(np.uint8).tobytes(),
            made.relevance.astype("<f4").tobytes(),
        )
    )
    head = bytearray(
        _HEAD.pack(
            ENTRY_VERSION,
            width,
            len(made.items),
            0,
            made.ranker,
            made.history,
            made.made_us,
            made.life_us,
        )
    )
    head[_CHECKSUM] = _checksum(head, body).to_bytes(4, "little")
    return bytes(head) + body


def decode_prepared(raw: bytes, *, items: int) -> PreparedCandidates | None:
    """
    Read an entry; None if it is damaged.

    Args:
        raw: The entry.
        items: Number of items of the catalogue.
    """
    if len(raw) < _HEAD.size:
        return None
    version, width, count, checksum, ranker, history, made_us, life_us = (
        _HEAD.unpack_from(raw)
    )
    kind = _INDEX_KINDS.get(width)
    if version != ENTRY_VERSION or kind is None or not 0 < count <= CANDIDATES:
        return None
    body = raw[_HEAD.size :]
    if len(body) != count * (width + 1 + 4) or checksum != _checksum(raw, body):
        return None
    sources = np.frombuffer(body, np.uint8, count, offset=count * width)
    places = np.frombuffer(body, kind, count)
    # What the checksum does not show: whoever wrote it had another catalogue.
    if int(places.max()) >= items or int(sources.max()) > POPULAR:
        return None
    return PreparedCandidates(
        ranker=ranker,
        history=history,
        made_us=made_us,
        life_us=life_us,
        items=places.astype(np.int32),
        sources=sources,
        relevance=np.frombuffer(body, "<f4", count, offset=count * (width + 1)),
    )


def _checksum(head: bytes | bytearray, body: bytes) -> int:
    start = zlib.crc32(head[: _CHECKSUM.start])
    return zlib.crc32(body, zlib.crc32(head[_CHECKSUM.stop : _HEAD.size], start))
