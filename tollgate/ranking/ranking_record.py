"""
Encode and decode what decided the list of one request, for its journal record.

Record, policy and catalogue together repeat the ranking bit by bit: `replay_input`
builds the input of `rank_row` again. The journal's chunk has the checksum; this module
checks that the parts fit together. docs/ranking.md has the layout.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tollgate.errors import JournalError
from tollgate.ranking.rank import I32, RankedList, RankingInput
from tollgate.schema import ACTIONS, MAX_LIST_SIZE, SOURCES

RECORD_VERSION = 1

_PIECE = "a ranking"
_INDEX_KINDS: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}
_MOST_INDEX = 2**31 - 1


class RankingRecord(msgspec.Struct, frozen=True, eq=False):
    """
    What decided one list, and the list.

    Attributes:
        catalogue_hash: Hash of the catalogue whose indices the record has.
        given: Input of the ranking. `available` is that of the record's items alone:
            True for every other item of the catalogue; bool [I], where I is one more
            than the greatest index of the record.
        ranked: The list.
        prepared_age_us: Time from the preparation of the candidates and their
            relevance to the request, µs; None if they were not prepared.
        challenger: Release whose relevance `given.rival` is; empty for none.
    """

    catalogue_hash: int
    given: RankingInput
    ranked: RankedList
    prepared_age_us: int | None = None
    challenger: str = ""


class _Packed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The record as it is encoded: whole numbers, texts and bytes of arrays."""

    version: int
    catalogue_hash: int
    count: int
    seed: bytes
    in_force: int
    candidates: bytes
    sources: bytes
    relevance: bytes
    history_items: bytes
    history_actions: bytes
    history_age_s: bytes
    excluded: bytes
    unavailable: bytes
    filled: bytes
    items: bytes
    scores: bytes
    shown_sources: bytes
    propensities: bytes
    inclusions: bytes
    explored: bytes
    by_relevance: bool
    caps_relaxed: bool
    prepared_age_us: int | None
    # Only of an interleaved list; records before did not end with them.
    rival: bytes = b""
    teams: bytes = b""
    challenger: str = ""


_DECODER = msgspec.msgpack.Decoder(_Packed)
_ENCODER = msgspec.msgpack.Encoder()


def encode_ranking(record: RankingRecord) -> bytes:
    """Encode a record."""
    given, ranked = record.given, record.ranked
    return _ENCODER.encode(
        _Packed(
            version=RECORD_VERSION,
            catalogue_hash=record.catalogue_hash,
            count=given.count,
            seed=given.seed,
            in_force=given.in_force,
            candidates=_indices(given.candidates),
            sources=given.sources.astype(np.uint8).tobytes(),
            relevance=given.relevance.astype("<f4").tobytes(),
            history_items=_indices(given.history_items),
            history_actions=given.history_actions.astype(np.int8).tobytes(),
            history_age_s=given.history_age_s.astype("<f8").tobytes(),
            excluded=_indices(given.excluded),
            unavailable=_indices(ranked.unavailable),
            filled=_indices(ranked.filled),
            items=_indices(ranked.items),
            scores=ranked.scores.astype("<f4").tobytes(),
            shown_sources=ranked.sources.astype(np.uint8).tobytes(),
            propensities=ranked.propensities.astype("<f4").tobytes(),
            inclusions=ranked.inclusions.astype("<f4").tobytes(),
            explored=np.packbits(ranked.explored).tobytes(),
            by_relevance=ranked.by_relevance,
            caps_relaxed=ranked.caps_relaxed,
            prepared_age_us=record.prepared_age_us,
            rival=b"" if given.rival is None else given.rival.astype("<f4").tobytes(),
            teams=b"" if ranked.teams is None else ranked.teams.tobytes(),
            challenger=record.challenger,
        )
    )


def decode_ranking(raw: bytes) -> RankingRecord:
    """
    Decode a record.

    Raises:
        JournalError: The bytes are damaged, or have an unknown version.
    """
    try:
        version = msgspec.msgpack.decode(raw)[0]
    except (msgspec.MsgspecError, TypeError, LookupError, ValueError) as exc:
        raise JournalError(_PIECE, f"cannot be read: {exc}") from exc
    if version != RECORD_VERSION:
        problem = f"has version {version}, this Tollgate reads {RECORD_VERSION}"
        raise JournalError(_PIECE, problem)
    try:
        packed = _DECODER.decode(raw)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise JournalError(_PIECE, f"cannot be read: {exc}") from exc
    if not 1 <= packed.count <= MAX_LIST_SIZE:
        raise JournalError(_PIECE, f"claims {packed.count} items")
    return _record_of(packed)


def _record_of(packed: _Packed) -> RankingRecord:
    count = packed.count
    candidates = _read_indices(packed.candidates, "candidates")
    history = _read_indices(packed.history_items, "history")
    excluded = _read_indices(packed.excluded, "exclusions")
    unavailable = _read_indices(packed.unavailable, "unavailable items")
    filled = _read_indices(packed.filled, "filled items")
    items = _read_indices(packed.items, "items")
    if len(items) != count:
        raise JournalError(_PIECE, f"has {len(items)} items, and claims {count}")
    for name, indices in (("unavailable", unavailable), ("filled", filled)):
        if (indices < 0).any():
            raise JournalError(_PIECE, f"its {name} items have a gap")
    named = (candidates, history, excluded, filled, items, unavailable)
    size = 1 + max(int(one.max(initial=-1)) for one in named)
    available = np.ones(size, np.bool_)
    available[unavailable] = False
    given = RankingInput(
        count=count,
        seed=packed.seed,
        in_force=packed.in_force,
        candidates=candidates,
        sources=_read(packed.sources, "u1", len(candidates), below=len(SOURCES)),
        relevance=_read(packed.relevance, "<f4", len(candidates)),
        history_items=history,
        history_actions=_read(
            packed.history_actions, "i1", len(history), below=len(ACTIONS)
        ),
        history_age_s=_read(packed.history_age_s, "<f8", len(history)),
        excluded=excluded,
        available=available,
        fill=filled,
        rival=_read(packed.rival, "<f4", len(candidates)) if packed.rival else None,
    )
    explored = _read(packed.explored, "u1", -(-count // 8))
    ranked = RankedList(
        items=items,
        scores=_read(packed.scores, "<f4", count),
        sources=_read(packed.shown_sources, "u1", count, below=len(SOURCES)),
        propensities=_read(packed.propensities, "<f4", count),
        inclusions=_read(packed.inclusions, "<f4", count),
        explored=np.unpackbits(explored, count=count).astype(np.bool_),
        by_relevance=packed.by_relevance,
        caps_relaxed=packed.caps_relaxed,
        unavailable=unavailable,
        filled=filled,
        teams=_read(packed.teams, "u1", count, below=3) if packed.teams else None,
    )
    return RankingRecord(
        catalogue_hash=packed.catalogue_hash,
        given=given,
        ranked=ranked,
        prepared_age_us=packed.prepared_age_us,
        challenger=packed.challenger,
    )


def replay_input(record: RankingRecord, *, items: int) -> RankingInput:
    """
    Return the input that gives the list of a record again.

    Args:
        items: Number of items of the catalogue.

    Raises:
        JournalError: The record has an item that the catalogue does not have.
    """
    known = record.given.available
    if len(known) > items:
        problem = f"has the item {len(known) - 1}, the catalogue {items} items"
        raise JournalError(_PIECE, problem)
    available = np.ones(items, np.bool_)
    available[: len(known)] = known
    return msgspec.structs.replace(record.given, available=available)


# Indices of items, from -1, are stored as whole numbers from 0 in 1, 2 or 4 bytes each,
# after one byte with this width.


def _indices(values: I32) -> bytes:
    above = values.astype(np.int64) + 1
    most = int(above.max(initial=0))
    width = next(width for width in _INDEX_KINDS if most < 1 << 8 * width)
    packed: bytes = above.astype(_INDEX_KINDS[width]).tobytes()
    return bytes([width]) + packed


def _read_indices(raw: bytes, name: str) -> I32:
    kind = _INDEX_KINDS.get(raw[0]) if raw else None
    if kind is None or (len(raw) - 1) % kind.itemsize:
        raise JournalError(_PIECE, f"its {name} have no valid width")
    values = np.frombuffer(raw, kind, offset=1).astype(np.int64) - 1
    if int(values.max(initial=0)) > _MOST_INDEX:
        raise JournalError(_PIECE, f"its {name} have an index that is none")
    found: I32 = values.astype(np.int32)
    return found


def _read(raw: bytes, kind: str, count: int, *, below: int | None = None) -> Any:
    """Read an array; check its length, and that its codes are known."""
    dtype = np.dtype(kind)
    if len(raw) != count * dtype.itemsize:
        problem = f"{len(raw)} bytes stand where {count * dtype.itemsize} belong"
        raise JournalError(_PIECE, problem)
    values = np.frombuffer(raw, dtype)
    if below is not None and int(values.max(initial=0)) >= below:
        raise JournalError(_PIECE, f"a code is {int(values.max())}, not below {below}")
    return values.astype(dtype.newbyteorder("="))
