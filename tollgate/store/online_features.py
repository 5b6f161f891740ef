"""
The online path of the features: apply a batch's events, read its vectors.

The feature step and the replay of a history both use this code, so a proof about one is
a proof about the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tollgate import compiled
from tollgate.features.assemble import Assembler, common_kind
from tollgate.features.feature_tables import TableColumns
from tollgate.features.hook.hook_run import HookGuard
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.spec_definition import EntityHistory
from tollgate.features.spec.tile_form import COUNT_AT, NEWEST_BYTES, PREFIX_BYTES
from tollgate.features.windows.entity_entries import (
    COLUMN_BYTES,
    ENTRY,
    Entries,
    Values,
    order_of,
    tiled_values,
    unpack_values,
)
from tollgate.features.windows.window_values import (
    Demand,
    Places,
    Rows,
    beyond_head,
    compute_demands,
    entity_demands,
    find_places,
    look_back,
    rounding,
    window_sums,
)
from tollgate.ranking.history import UserHistory, newest_events
from tollgate.schema import MAX_BATCH_ROWS, Applied, Degraded
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.lookups import Tables
from tollgate.store.redis.redis_store import NO_ANSWER, Answer, Mode, RedisStore
from tollgate.store.store_events import (
    NO_CALL,
    Call,
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)

__all__ = ["OnlineFeatures", "Packed", "Vectors"]

# Turn the store's replies to a batch into windows, and windows into vectors.

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_ALL_WELL, _TOO_LATE = b"\1", 3  # status bytes of apply.lua
# NumPy reads an enum member several times slower than a plain number.
_COLD_START = np.uint32(Degraded.COLD_START)
_EVENT_TOO_LATE = np.uint32(Degraded.EVENT_TOO_LATE)
_WINDOW_OVERFLOW = np.uint32(Degraded.WINDOW_OVERFLOW)
_STATE_CORRUPT = np.uint32(Degraded.STATE_CORRUPT)
_NO, _YES = np.uint8(Applied.NO), np.uint8(Applied.YES)
# Status of the Lua function -> Applied.
_APPLIED = np.array(
    [Applied.NO, Applied.YES, Applied.DUPLICATE, Applied.NO, Applied.NO], np.uint8
)


class Vectors(msgspec.Struct, frozen=True):
    """
    Hold the results of a batch of purchases.

    Attributes:
        features: float64 [N, F].
        degraded: Degraded bits; uint32 [N].
        applied: Applied; uint8 [N], the worst of the entities.
        history: The newest events of the rows; None if the spec reads none.
    """

    features: npt.NDArray[np.float64]
    degraded: npt.NDArray[np.uint32]
    applied: npt.NDArray[np.uint8]
    history: UserHistory | None = None


class Packed(msgspec.Struct, frozen=True):
    """
    Hold a batch of purchases, its entries, and the call that applies them.

    `tables` holds the numbers of the tables, after they are read.
    """

    purchases: Purchases
    entries: npt.NDArray[np.void]
    call: Call
    tables: TableColumns = {}


class Reader:
    """
    Read the features of batches of one product.

    Attributes:
        guard: Runs its hook, if it has one.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._assembler = Assembler(spec)
        self.guard = HookGuard(spec)
        if not spec.entities:
            return
        reach = _reach_of(spec)
        # By number of rows: the same few sizes occur again and again.
        self._reach = [_repeated(reach, rows) for rows in range(MAX_BATCH_ROWS + 1)]
        self._demands = entity_demands(spec)
        self._tiled = any(entity.tiles for entity in spec.entities)
        # Values that tiles do not name, if the head lacks them.
        self._deep = [
            [one for one in demands if entity.tiles and _is_deep(one)]
            for entity, demands in zip(spec.entities, self._demands, strict=True)
        ]
        width = [len(entity.columns) for entity in spec.entities]
        self._width = np.array(width, np.int64) if any(width) else None
        self._loop = _compiled_loop(spec)

    def read(self, packed: Packed, answer: Answer) -> Vectors:
        """Read the windows of all entities of a batch's rows."""
        if not self._spec.entities:
            return self._without_windows(packed)
        batch, call = packed.purchases, packed.call
        found = self._read_compiled(packed, answer[0])
        features, degraded, corrupt = found or self._read(packed, answer[0])
        if answer[1].count(_ALL_WELL) == len(answer[1]):
            applied = np.full(len(degraded), _YES)
        else:
            status = statuses(call, answer)
            degraded |= (status == _TOO_LATE).any(axis=0) * _EVENT_TOO_LATE
            applied = worst(status)
        if self._spec.hook is not None:
            self.guard.mark(degraded)
        if corrupt:
            damaged = (degraded & _STATE_CORRUPT) != 0
            features[damaged] = self._assembler.assemble(
                cents=batch.cents[damaged],
                time_us=batch.event_time_us[damaged],
                sums=(),
                fields={name: one[damaged] for name, one in batch.fields.items()},
                tables={name: one[damaged] for name, one in packed.tables.items()},
                run=self.guard.run,
            )
            self.guard.mark(degraded, damaged)
        history = None
        if self._spec.history is not None:
            history = _history(self._spec, self._spec.history, packed, answer[0])
        return Vectors(
            features=features, degraded=degraded, applied=applied, history=history
        )

    def _read_compiled(
        self, packed: Packed, values: Sequence[bytes]
    ) -> tuple[F64, U32, bool] | None:
        """Return the result of `_read`; None where the loop does not cover it."""
        if self._loop is None or compiled.windows is None:
            return None
        batch, call = packed.purchases, packed.call
        read = self._loop.read(
            values,
            call.first_key,
            call.code,
            packed.entries.view(np.uint8),
            batch.cents,
            batch.event_time_us,
        )
        if read is None:
            return None
        features, degraded, numbers, corrupt = read
        if self._assembler.not_common or self._spec.numbers:
            rows = iter(numbers)
            others = [dict(zip(one, rows, strict=False)) for one in self._demands]
            self._assembler.complete(
                features,
                cents=batch.cents,
                time_us=batch.event_time_us,
                others=others,
                fields=batch.fields,
                tables=packed.tables,
                run=self.guard.run,
            )
        return features, degraded, corrupt

    def _read(self, packed: Packed, values: Sequence[bytes]) -> tuple[F64, U32, bool]:
        """
        Read all windows in one pass: row n of entity e is e * N + n.

        Returns:
            Features [N, F], Degraded bits [N], and True if a value is damaged.
        """
        entries, batch, call = packed.entries, packed.purchases, packed.call
        columns = None
        if self._width is not None:
            columns = self._width.repeat(np.diff(call.first_key))
        tiled = tiled_values(self._spec, call.first_key) if self._tiled else ()
        unpacked = unpack_values(values, columns=columns, tiled=tiled)
        entities, count = len(call.code), len(batch.transaction_id)
        known = count < len(self._reach)
        reach = self._reach[count] if known else _repeated(self._reach[1], count)
        order = order_of(entries)
        keys = []
        for code, first in zip(call.code, call.first_key[:-1], strict=True):
            keys.append(code + first)
        rows = Rows(
            entity=np.concatenate(keys),
            time_us=np.concatenate([batch.event_time_us] * entities),
            order=np.concatenate([order] * entities),
            delay_us=reach.delay_us,
            windows_us=reach.windows_us,
            back_us=reach.back_us,
            rounding_us=reach.rounding_us,
        )
        places = find_places(unpacked.entries, rows)
        sums = window_sums(unpacked.entries, rows, places=places)
        bits = _degraded(unpacked, rows, reach, upto=sums.upto)
        parts = []
        for entity, demands in enumerate(self._demands):
            part = slice(entity * count, (entity + 1) * count)
            own = sums.part(part)
            if demands:
                others, beyond = self._others(
                    entity,
                    unpacked.entries,
                    rows,
                    places,
                    part=part,
                    keys=call.first_key[entity : entity + 2],
                )
                own = replace(own, others=others)
                if beyond is not None:
                    bits[part] |= beyond * _EVENT_TOO_LATE
            parts.append(own)
        features = self._assembler.assemble(
            cents=batch.cents,
            time_us=batch.event_time_us,
            sums=parts,
            fields=batch.fields,
            tables=packed.tables,
            run=self.guard.run,
        )
        degraded = np.bitwise_or.reduce(bits.reshape(entities, count), axis=0)
        return features, degraded, bool(np.logical_or.reduce(unpacked.corrupt))

    def defaults(self, packed: Packed) -> npt.NDArray[np.float64]:
        """Return the vectors of purchases of unknown entities; float64 [N, F]."""
        purchases = packed.purchases
        return self._assembler.assemble(
            cents=purchases.cents,
            time_us=purchases.event_time_us,
            sums=(),
            fields=purchases.fields,
            tables=packed.tables,
            run=self.guard.run,
        )

    def _without_windows(self, packed: Packed) -> Vectors:
        """Return the vectors of purchases that have nothing in the store."""
        count = len(packed.purchases)
        features = self.defaults(packed)
        degraded = np.zeros(count, np.uint32)
        self.guard.mark(degraded)
        return Vectors(
            features=features, degraded=degraded, applied=np.full(count, _NO)
        )

    def _others(
        self,
        entity: int,
        entries: Entries,
        rows: Rows,
        places: Places,
        *,
        part: slice,
        keys: list[int],
    ) -> tuple[dict[Demand, I64], npt.NDArray[np.bool_] | None]:
        """
        Compute the values of one entity's windows that features need besides.

        Returns:
            The values, and the rows whose values tiles have forgotten; bool [N], None
            if no feature reads such a value.
        """
        first, last = keys
        own = slice(int(entries.starts[first]), int(entries.starts[last]))
        entries, rows = entries.part(first, last), rows.part(part, first=first)
        places, deep = places.part(part, own), self._deep[entity]
        columns = self._spec.entities[entity].columns
        found = compute_demands(
            entries, rows, places, columns=columns, demands=self._demands[entity]
        )
        if not deep:
            return found, None
        return found, beyond_head(entries, rows, places, columns=columns, demands=deep)


_NO_WINDOWS = np.zeros((0, 1), np.int64)
_NO_DELAY = np.zeros(1, np.int64)


def _history(
    spec: FeatureSpec, form: EntityHistory, packed: Packed, values: Sequence[bytes]
) -> UserHistory:
    """Read the newest events of a batch's rows; none of a damaged value is known."""
    entity, call = spec.entities[form.entity], packed.call
    first, last = call.first_key[form.entity : form.entity + 2]
    own, code = values[first:last], call.code[form.entity]
    unpacked = unpack_values(own, columns=[len(entity.columns)] * len(own))
    return newest_events(
        unpacked.entries,
        Rows(
            entity=code,
            time_us=packed.purchases.event_time_us,
            order=order_of(packed.entries),
            delay_us=_NO_DELAY,
            windows_us=_NO_WINDOWS,
        ),
        columns=entity.columns,
        form=form,
        known=~unpacked.corrupt[code],
    )


_MOMENTS = {"variance": "squares", "slope": "time_products"}  # numbers of a tile


def _is_deep(demand: Demand) -> bool:
    """Test whether a demand reads more than the newest value."""
    return demand.kind == "last" and demand.parameter > 1


def _compiled_loop(spec: FeatureSpec) -> Any:
    """Build the compiled loop of a spec; None if there is none, or it lacks a kind."""
    loop, entities, demands = compiled.windows, [], []
    if loop is None:
        return None
    for entity, own in zip(spec.entities, entity_demands(spec), strict=True):
        if not all(demand.kind in loop.DEMANDS for demand in own):
            return None
        tiles, longest_us = entity.tiles, entity.delay_us + entity.windows_us[-1]
        plan: dict[str, Any] = {
            "entry_bytes": ENTRY.itemsize + COLUMN_BYTES * len(entity.columns),
            "delay_us": entity.delay_us,
            "horizon_us": entity.horizon_us,
            "longest_us": longest_us,
            "edge_us": entity.edge_us,
            "windows": list(zip(entity.windows_us, entity.rounding_us, strict=True)),
        }
        offsets: dict[tuple[str, int], int] = {}
        if tiles is not None:
            offsets = {
                (one.kind.name.lower(), one.column): one.offset for one in tiles.fields
            }
            offsets["known", -1] = COUNT_AT  # every purchase has an amount
            plan |= {
                "longest_us": longest_us + entity.rounding_us[-1],
                "prefix_bytes": PREFIX_BYTES + NEWEST_BYTES * (1 + len(entity.columns)),
                "record_bytes": tiles.record_bytes,
                "tile_us": tiles.width_us,
                "sum_at": offsets.get(("sum", -1), 0),
                "flagged_at": offsets.get(("flagged", -1), 0),
            }
        entities.append(plan)
        places = {name: at for at, name in enumerate(entity.columns)}
        demands.append(
            [
                (
                    one.kind,
                    column := places.get(one.of, -1),
                    one.window,
                    one.parameter,
                    [
                        offsets.get((number, column), 0)
                        for number in (
                            _MOMENTS.get(one.kind, one.kind),
                            *("sum", "known", "times", "time_squares"),
                        )
                    ],
                )
                for one in own
            ]
        )
    columns = [
        (column, kind, one.entity, one.window, one.range)
        for column, one in enumerate(spec.features)
        if (kind := common_kind(one))
    ]
    if not all(kind in loop.COLUMNS for _, kind, *_ in columns):
        return None
    return loop.Windows(len(spec.features), entities, demands, columns)


class _Reach(msgspec.Struct, frozen=True):
    """Hold how far back entities, or their rows, look; int64 [R], widths [W, R]."""

    delay_us: I64
    windows_us: I64
    back_us: I64
    longest_us: I64
    horizon_us: I64
    rounding_us: I64 | None


def _reach_of(spec: FeatureSpec) -> _Reach:
    """Collect the reach of a spec's entities; missing windows get width 0."""
    entities = spec.entities
    windows_us = np.zeros(
        (max(len(one.windows_us) for one in entities), len(entities)), np.int64
    )
    for column, one in enumerate(entities):
        windows_us[: len(one.windows_us), column] = one.windows_us
    delay_us = np.array([one.delay_us for one in entities], np.int64)
    longest_us = delay_us + windows_us.max(axis=0)
    rounding_us = None
    if any(one.tiles for one in entities):
        begin_us = np.ones_like(windows_us)
        for column, one in enumerate(entities):
            begin_us[: len(one.rounding_us), column] = one.rounding_us
        rounding_us = rounding(np.array([one.edge_us for one in entities]), begin_us)
        longest_us += [one.rounding_us[-1] if one.tiles else 0 for one in entities]
    return _Reach(
        delay_us=delay_us,
        windows_us=windows_us,
        back_us=look_back(delay_us, windows_us),
        longest_us=longest_us,
        horizon_us=np.array([one.horizon_us for one in entities], np.int64),
        rounding_us=rounding_us,
    )


def _repeated(reach: _Reach, count: int) -> _Reach:
    return _Reach(
        delay_us=reach.delay_us.repeat(count),
        windows_us=reach.windows_us.repeat(count, axis=1),
        back_us=reach.back_us.repeat(count, axis=1),
        longest_us=reach.longest_us.repeat(count),
        horizon_us=reach.horizon_us.repeat(count),
        rounding_us=None
        if reach.rounding_us is None
        else reach.rounding_us.repeat(count, axis=1),
    )


def _degraded(
    values: Values, rows: Rows, reach: _Reach, *, upto: I64
) -> npt.NDArray[np.uint32]:
    """Return Degraded bits for the windows of each row; [R]."""
    begin_us = rows.time_us - reach.longest_us
    truncated = begin_us < values.watermark_us[rows.entity] - reach.horizon_us
    bits: npt.NDArray[np.uint32] = (upto <= 1) * _COLD_START
    bits |= truncated * _EVENT_TOO_LATE
    if np.logical_or.reduce(values.overflow):
        # A value that once dropped events is complete again when its windows start
        # later.
        dropped = values.overflow[rows.entity] > 0
        dropped &= begin_us < values.dropped_us[rows.entity]
        if values.tiled is not None and values.label_us is not None:
            dropped &= ~values.tiled[rows.entity]  # these are folded, not dropped
            early = rows.time_us < values.label_us[rows.entity]
            bits |= early * _EVENT_TOO_LATE
        bits |= dropped * _WINDOW_OVERFLOW
    if np.logical_or.reduce(values.corrupt):
        bits |= values.corrupt[rows.entity] * _STATE_CORRUPT
    return bits


def worst(status: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Reduce the status per entity to one value per event; Applied [N]."""
    applied: npt.NDArray[np.uint8] = _APPLIED[status].min(axis=0)
    return applied


def statuses(call: Call, answer: Answer) -> npt.NDArray[np.uint8]:
    """Return the status bytes in the order of the batch; [entities, N]."""
    grouped = np.frombuffer(answer[1], np.uint8).reshape(len(call.order), -1)
    status = np.empty_like(grouped)
    for position, order in enumerate(call.order):
        status[position, order] = grouped[position]
    return status


_NO_ENTRIES = np.zeros(0, ENTRY)


class OnlineFeatures:
    """
    Compute the features of one product over one store.

    Args:
        spec: The product's features.
        store: The store.
        spare: As of `Packer`.
    """

    def __init__(self, spec: FeatureSpec, store: RedisStore, *, spare: int = 0) -> None:
        self.spec = spec
        # It caches nothing: every value is read when it is needed.
        self._tables = Tables(spec, LastKnown(0, 0.0, clock=time.monotonic))
        self._store = store
        self._packer = Packer(spec, spare=spare)
        self._reader = Reader(spec)
        self.guard = self._reader.guard

    def score(
        self, batches: Sequence[Purchases], *, write: Sequence[bool]
    ) -> list[Vectors]:
        """
        Apply batches of purchases and read their vectors, in one round trip.

        Args:
            batches: Each is applied completely, then read; a dry one sees itself and
                the events written before it, and no other batch sees a dry one.
            write: Per batch, False for a dry run.

        Raises:
            StoreError: The store did not reply; nothing is known of any row.
        """
        packed = [self.pack(batch) for batch in batches]
        if not self.spec.entities:
            return [self.read(one, NO_ANSWER) for one in packed]
        query = self._tables.plan(batches)
        modes = [Mode.WRITE if one else Mode.DRY for one in write]
        calls = [one.call for one in packed]
        answers, replies = self._store.flush(
            list(zip(calls, modes, strict=True)), extra_commands=query.commands()
        )
        self._tables.take_replies(query, replies)
        lookups = self._tables.read(query)
        read = []
        for one, answer, tables in zip(packed, answers, lookups, strict=True):
            vectors = self.read(replace(one, tables=tables.columns), answer)
            vectors.degraded[:] |= tables.degraded
            read.append(vectors)
        return read

    def pack(self, purchases: Purchases) -> Packed:
        """
        Pack a batch for the store; for a product without entities the call is empty.
        """
        if not self.spec.entities:
            return Packed(purchases=purchases, entries=_NO_ENTRIES, call=NO_CALL)
        entries = purchase_entries(purchases)
        call = self._packer.pack(
            entries, purchases.entity_id, columns=self._packer.columns(purchases)
        )
        return Packed(purchases=purchases, entries=entries, call=call)

    def load(self, purchases: Purchases) -> npt.NDArray[np.uint8]:
        """
        Apply purchases of a history without reading anything; no caller waits for them.

        Returns:
            Applied, the worst of the entities; uint8 [N].

        Raises:
            StoreError: The store did not reply.
        """
        if not self.spec.entities:
            return np.zeros(len(purchases), np.uint8)
        call = self.pack(purchases).call
        (answer,) = self._store.apply([(call, Mode.WRITE_ONLY)])
        return worst(statuses(call, answer))

    def label(self, labels: Labels) -> npt.NDArray[np.uint8]:
        """
        Apply label events.

        Returns:
            Applied, the worst of the entities; uint8 [N].

        Raises:
            StoreError: The store did not reply.
        """
        if not self.spec.entities:
            return np.zeros(len(labels), np.uint8)
        call = self._packer.pack(label_entries(labels), labels.entity_id)
        (answer,) = self._store.apply([(call, Mode.WRITE_ONLY)])
        return worst(statuses(call, answer))

    def read(self, packed: Packed, answer: Answer) -> Vectors:
        """Read the vectors of a packed batch from the store's reply."""
        return self._reader.read(packed, answer)

    def defaults(self, packed: Packed) -> npt.NDArray[np.float64]:
        """Return the vectors of a packed batch of unknown entities; float64 [N, F]."""
        return self._reader.defaults(packed)
