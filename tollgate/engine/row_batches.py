"""
Hold the rows of a dynamic batch, group them, and identify each by a fingerprint.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.fields import Fields, lacks_fields
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.ranking.history import UserHistory
from tollgate.schema import (
    EXCLUDE,
    ITEM_SEPARATOR,
    MAX_EXCLUDED,
    MAX_LIST_SIZE,
    STORE_LOST,
    Degraded,
)
from tollgate.store.fallback.fallback_chain import Scored
from tollgate.store.store_events import Purchases
from tollgate.validation import check_fields

_FIELD_MISSING = np.uint32(Degraded.FIELD_MISSING)
_SEPARATOR = ITEM_SEPARATOR.encode()

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Batch(msgspec.Struct, frozen=True):
    """
    Hold the rows of all requests of a dynamic batch.

    Attributes:
        ids: Id columns by field.
        cents: int64 [N]; zero for a bad row.
        time_us: int64 [N].
        errors: Row -> its error.
        bounds: First row of each request, then the end of the last.
        dry: Per request, True for a dry run.
        degraded: Degraded bits that the request itself causes; uint32 [N], or one
            number for every row.
        fields: Declared fields that at least one request had; int64 [N] each.
        store_deadline_ms: Per request, the store deadline that it allows, ms; 0 for a
            request without one. Empty when no request has one.
        excluded: Of a product that ranks: per row, the ids of items that its answer
            must not have; empty when no row has any.
        counts: Of a product that ranks: per request, the number of items, 0 for as
            many as the policy says.
        history: Newest events of the rows' users, after they were read; None before,
            and for a product that does not rank.
    """

    ids: Mapping[str, list[bytes]]
    cents: Array
    time_us: Array
    errors: dict[int, str]
    bounds: list[int]
    dry: list[bool]
    degraded: Array | int = 0
    fields: Mapping[str, Array] = {}
    store_deadline_ms: Sequence[int] = ()
    excluded: Sequence[Sequence[bytes]] = ()
    counts: Sequence[int] = ()
    history: UserHistory | None = None


class Group(msgspec.Struct, frozen=True):
    """
    Hold good rows of a batch that go to the store together.

    Attributes:
        rows: Their positions in the batch; int64 [M].
        purchases: Their contents.
        dry: True if nothing of them may be stored.
    """

    rows: Array
    purchases: Purchases
    dry: bool


def declared_fields(
    spec: FeatureSpec,
    sent: Mapping[str, Array],
    *,
    rows: int,
    errors: dict[int, str],
) -> tuple[Mapping[str, Array], Array | int]:
    """
    Check declared fields, and mark the rows that lack one.

    Args:
        spec: Declares the fields.
        sent: Field -> its column, for those that at least one row has; [N].
        rows: Number of rows; N.
        errors: Row -> its error; changed.

    Returns:
        Fields of a `Batch`, and its degraded bits.
    """
    fields, wrong = check_fields(spec.fields, sent)
    for row, text in wrong.items():
        errors.setdefault(row, text)
    return fields, lacks_fields(spec, fields, rows) * _FIELD_MISSING


def excluded_ids(
    texts: Sequence[bytes], *, errors: dict[int, str]
) -> Sequence[Sequence[bytes]]:
    """
    Split the texts of the input `exclude`.

    Args:
        texts: Per row, ids joined by ITEM_SEPARATOR; empty for none.
        errors: Row -> its error; changed where a row has too many.

    Returns:
        `excluded` of a `Batch`.
    """
    if not any(texts):
        return ()
    found: list[Sequence[bytes]] = []
    for row, text in enumerate(texts):
        ids = text.split(_SEPARATOR) if text else []
        if len(ids) > MAX_EXCLUDED:
            problem = f"{EXCLUDE}: {len(ids)} ids: at most {MAX_EXCLUDED} are allowed"
            errors.setdefault(row, problem)
            ids = []
        found.append(ids)
    return found


def count_rule(count: object) -> str:
    """Return the rule that a number of items breaks; empty if it is allowed."""
    if isinstance(count, int) and count is not True and 0 < count <= MAX_LIST_SIZE:
        return ""
    return f"is no whole number, 1 to {MAX_LIST_SIZE}"


def one_request(batch: Batch, position: int) -> Batch:
    """Copy one request out of a batch; the copy uses none of Triton's memory."""
    start, stop = batch.bounds[position : position + 2]
    degraded = batch.degraded
    return Batch(
        ids={name: column[start:stop] for name, column in batch.ids.items()},
        cents=batch.cents[start:stop].copy(),
        time_us=batch.time_us[start:stop].copy(),
        errors={
            row - start: text
            for row, text in batch.errors.items()
            if start <= row < stop
        },
        bounds=[0, stop - start],
        dry=[batch.dry[position]],
        degraded=degraded if isinstance(degraded, int) else degraded[start:stop].copy(),
        fields={name: one[start:stop].copy() for name, one in batch.fields.items()},
        excluded=batch.excluded[start:stop],
        counts=batch.counts[position : position + 1],
    )


def rows_except(batch: Batch, positions: Collection[int]) -> Array | slice:
    """Return the rows of all requests except the given ones."""
    if not positions:
        return slice(None)
    chosen = np.ones(batch.bounds[-1], np.bool_)
    for position in positions:
        chosen[slice(*batch.bounds[position : position + 2])] = False
    return chosen


def dry_spans(batch: Batch) -> list[slice]:
    """Return the rows of each dry request, bad ones included."""
    return [
        slice(batch.bounds[position], batch.bounds[position + 1])
        for position, dry in enumerate(batch.dry)
        if dry
    ]


def groups(batch: Batch) -> list[Group]:
    """
    Split the good rows: one group for those that write, one per dry request.

    No other request may see the events that a dry run applies.
    """
    if not (batch.errors or any(batch.dry)):
        rows = np.arange(len(batch.cents))
        if not len(rows):
            return []
        return [Group(rows=rows, purchases=_pick(batch, rows), dry=False)]
    spans = dry_spans(batch)
    good = np.ones(len(batch.cents), np.bool_)
    good[list(batch.errors)] = False
    wet, dry = good.copy(), []
    for span in spans:
        wet[span] = False
        dry.append(span.start + np.flatnonzero(good[span]))
    found = [(np.flatnonzero(wet), False), *((rows, True) for rows in dry)]
    return [
        Group(rows=rows, purchases=_pick(batch, rows), dry=is_dry)
        for rows, is_dry in found
        if len(rows)
    ]


def rejected_requests(batch: Batch) -> list[tuple[int, str]]:
    """
    Find the requests of which every row is bad; return their positions and errors.
    """
    found = []
    for position, start in enumerate(batch.bounds[:-1]):
        rows = range(start, batch.bounds[position + 1])
        if all(row in batch.errors for row in rows):
            words = [f"row {row - start}: {batch.errors[row]}" for row in rows]
            found.append((position, "\n".join(words)))
    return found


def _pick(batch: Batch, rows: Array) -> Purchases:
    if len(rows) == len(batch.cents):
        transaction, *entities = batch.ids.values()
        return Purchases(
            transaction_id=transaction,
            entity_id=entities,
            # It may be Triton's memory, and the purchase may be stored for later.
            event_time_us=batch.time_us.copy(),
            cents=batch.cents,
            fields=batch.fields,
        )
    index = rows.tolist()
    transaction, *entities = (
        [column[row] for row in index] for column in batch.ids.values()
    )
    return Purchases(
        transaction_id=transaction,
        entity_id=entities,
        event_time_us=batch.time_us[rows],
        cents=batch.cents[rows],
        fields={name: column[rows] for name, column in batch.fields.items()},
    )


# Fingerprints: one number from everything that a purchase was sent with.
#
# Two rows with one transaction id are the same purchase when their fingerprints agree.
# The number is the same in every process, on every machine and under every feature spec
# that knows the fields that were sent: the next release may receive a retry.

_BLAKE2B = hashlib.blake2b(digest_size=8)


def fingerprints(
    ids: Sequence[Sequence[bytes]], *, cents: I64, time_us: I64, fields: Fields
) -> U64:
    """
    Hash the inputs of N rows (BLAKE2b, 64 bits).

    A row's bytes are, as little-endian 64-bit numbers, the length of each id, cents,
    time and the sum of `mix_fields` over its declared fields, then the ids themselves.

    Args:
        ids: Id columns, the transaction's first, then the entities' in the order of the
            spec; N each.
        cents: int64 [N].
        time_us: int64 [N].
        fields: Declared fields; MISSING is the same as an absent field.

    Returns:
        uint64 [N].
    """
    rows = len(cents)
    numbers = np.empty((rows, len(ids) + 3), "<i8")
    lengths = map(len, itertools.chain.from_iterable(ids))
    numbers[:, :-3] = np.fromiter(lengths, np.int64).reshape(len(ids), rows).T
    numbers[:, -3] = cents
    numbers[:, -2] = time_us
    numbers[:, -1] = mix_fields(fields).view(np.int64) if fields else 0
    raw, width = numbers.tobytes(), numbers.shape[1] * 8
    # One digest per row is cheaper than any arithmetic over padded slots: 22 µs for
    # 32 rows, against 29 µs.
    digests = []
    copy = _BLAKE2B.copy  # faster than a new one with its size
    for row, texts in enumerate(zip(*ids, strict=True)):
        state = copy()
        state.update(raw[row * width : (row + 1) * width] + b"".join(texts))
        digests.append(state.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def mix_fields(fields: Fields) -> U64:
    """
    Return, per row, the sum of one well-mixed number for each field it has; uint64 [N].
    """
    values = np.stack(list(fields.values()))
    mixed = values.astype(np.uint64) ^ _seeds(tuple(fields))
    # Steele, Lea and Flood: Fast splittable pseudorandom number generators (2014).
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    mixed[values == MISSING] = 0
    total: U64 = mixed.sum(axis=0, dtype=np.uint64)
    return total


@functools.lru_cache(maxsize=256)
def _seeds(names: tuple[str, ...]) -> U64:
    """Return one number for each name; uint64 [K, 1]."""
    digests = [hashlib.blake2b(one.encode(), digest_size=8).digest() for one in names]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[:, None]


# Share one store look-up among identical dry-run requests of the same second.
#
# A dry run changes nothing, so two identical dry runs within a second may get the same
# vector. The cached vector is dropped as soon as this process writes for one of its
# entities.

MOST_ROWS = 4_096  # 2 MB of vectors and look-ups
_UNSHARED = np.uint32(STORE_LOST)

Entity = tuple[int, bytes]  # its index in the spec, and an id
LookUp = Callable[[Sequence[Group]], list[Scored]]


class _SharedResult(msgspec.Struct, frozen=True, eq=False):
    scored: Scored
    until_s: float
    entities: frozenset[Entity]


class DryShare:
    """
    Cache the vectors of the last second's dry requests.

    Args:
        life_s: Time for which one is shared; 0 shares nothing.
        most_rows: Rows to cache; the oldest request leaves first.
        clock: Monotonic, seconds.

    Attributes:
        rows: Rows that were answered without the store, since the start.
    """

    def __init__(
        self,
        life_s: float,
        *,
        most_rows: int = MOST_ROWS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows = 0
        self._life_s = life_s
        self._most_rows = most_rows
        self._clock = clock
        self._rows_held = 0
        self._results: OrderedDict[bytes, _SharedResult] = OrderedDict()
        self._users: dict[Entity, set[bytes]] = {}

    def score(
        self,
        groups: Sequence[Group],
        *,
        fingerprints: npt.NDArray[np.uint64],
        look_up: LookUp,
    ) -> list[Scored]:
        """
        Score groups of a batch; score identical dry groups only once per `life_s`.

        Args:
            groups: Those that write come first.
            fingerprints: Of all rows of the batch; uint64 [N].
            look_up: Scores groups by the store; not called when none is left to score.
        """
        if not self._life_s or not (self._results or any(one.dry for one in groups)):
            return look_up(groups)
        now_s = self._clock()
        self._expire(now_s)
        # Rows of a dry request see each other, so only whole requests are identical.
        keys = [fingerprints[one.rows].tobytes() if one.dry else b"" for one in groups]
        for one in groups:
            if not one.dry:
                self._drop_changed(_entities(one))
        found = {key: self._results[key].scored for key in keys if key in self._results}
        looked_up = [
            at
            for at, key in enumerate(keys)
            if not key or (key not in found and keys.index(key) == at)
        ]
        fresh = look_up([groups[at] for at in looked_up]) if looked_up else []
        results: dict[int, Scored] = dict(zip(looked_up, fresh, strict=True))
        for at in looked_up:
            if keys[at]:
                found[keys[at]] = results[at]
                self._store(keys[at], groups[at], results[at], now_s=now_s)
        self.rows += sum(
            len(one.rows) for at, one in enumerate(groups) if at not in results
        )
        return [
            results[at] if at in results else found[key] for at, key in enumerate(keys)
        ]

    def _store(self, key: bytes, group: Group, scored: Scored, *, now_s: float) -> None:
        rows = len(group.rows)
        if rows > self._most_rows or (scored.degraded & _UNSHARED).any():
            return
        entities = _entities(group)
        self._results[key] = _SharedResult(scored, now_s + self._life_s, entities)
        for one in entities:
            self._users.setdefault(one, set()).add(key)
        self._rows_held += rows
        while self._rows_held > self._most_rows:
            self._drop(next(iter(self._results)))

    def _expire(self, now_s: float) -> None:
        """Drop expired requests; they are in order of time."""
        while self._results:
            key, oldest = next(iter(self._results.items()))
            if oldest.until_s > now_s:
                return
            self._drop(key)

    def _drop_changed(self, entities: frozenset[Entity]) -> None:
        """Drop the results that were read from entities that are about to change."""
        for one in entities & self._users.keys():
            for key in tuple(self._users.get(one, ())):
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        dropped = self._results.pop(key)
        self._rows_held -= len(dropped.scored.degraded)
        for one in dropped.entities:
            users = self._users[one]
            users.discard(key)
            if not users:
                del self._users[one]


def _entities(group: Group) -> frozenset[Entity]:
    """
    Return the entities whose values a group's rows read or change.

    Rows without entities depend only on the stored decisions of their own ids.
    """
    purchases = group.purchases
    return frozenset(
        (place, one)
        for place, column in enumerate(
            purchases.entity_id or [purchases.transaction_id]
        )
        for one in column
    )
