"""
Bring the events of one state's values into another's while the first one serves.

First every writer of the product is made to write both states (dual writes); then the
events that were there before are copied. An entity's value holds its events one by one,
so the values that serve are themselves a history up to this moment. They are applied to
the other state's keys by the store's own function: existing events stay, and missing
ones are added. The dual writes end when no rollback can need the old state any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from tollgate.backfill.materialize import run_commands
from tollgate.backfill.pace import Pace, open_pace
from tollgate.errors import InputError
from tollgate.features.spec.description import duration_text
from tollgate.features.spec.feature_spec import Entity, FeatureSpec
from tollgate.features.windows.entity_entries import (
    COLUMN_BYTES,
    ENTRY,
    FRAUD,
    HEADER,
    LABELLED,
    PURCHASE,
    REVISION_SHIFT,
    oldest_stored_us,
    unpack_values,
)
from tollgate.store.dual_writes import (
    FRESH_S,
    WrittenState,
    WrittenStates,
    decode_states,
    missing_columns,
    missing_entities,
    states_key,
)
from tollgate.store.event_writer import EVENTS_PER_CALL
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import Call, Packer, widened

I64 = npt.NDArray[np.int64]

# Every writer has read the list of states by then, and its calls have ended.
WRITERS_READ_S = FRESH_S + 1.0
_SCAN_KEYS = b"128"
_READ_KEYS = 8  # few, so that little comes between the two reads of a value
_ENTRY_WORDS = ENTRY.itemsize // COLUMN_BYTES
_APPLIED, _TOO_LATE = b"\1", b"\3"  # status bytes of apply.lua


def read_states(product: str, store: RedisStore) -> list[WrittenState]:
    """
    Read the states that all writers of a product write to; none without dual writes.

    Raises:
        StoreError: The store did not reply, or refused.
    """
    (value,) = run_commands(store, [(b"GET", states_key(product))])
    return decode_states(value).states


def start_dual_writes(
    product: str, states: Sequence[WrittenState], store: RedisStore, *, days: int
) -> None:
    """
    Have all writers of a product write to states, and wait until they do.

    States that are written already stay as they are, and end as late as the others.

    Args:
        days: The writes end by themselves after so many days.

    Raises:
        StoreError: The store did not reply, or refused.
    """
    before = read_states(product, store)
    known = {one.state for one in before}
    new = [one for one in states if one.state not in known]
    _write_states(product, [*before, *new], store, ttl_s=days * 86_400)
    time.sleep(WRITERS_READ_S)


def mark_filled(product: str, state: str, store: RedisStore, *, filled: str) -> None:
    """
    Record that a written state has all older events, too.

    Args:
        state: Its hash, 16 hexadecimal digits.
        filled: The time, RFC 3339 in UTC.

    Raises:
        InputError: The dual writes of the state have ended meanwhile.
        StoreError: The store did not reply, or refused.
    """
    states = read_states(product, store)
    if state not in {one.state for one in states}:
        problem = f"the dual writes of {state} ended meanwhile: start again"
        raise InputError("migrate", problem)
    changed = [
        structs.replace(one, filled=one.filled or filled) if one.state == state else one
        for one in states
    ]
    _write_states(product, changed, store)


def end_dual_writes(product: str, ended: Sequence[str], store: RedisStore) -> None:
    """
    Have all writers of a product leave states out, and wait until they do.

    Args:
        ended: Hashes of the states, 16 hexadecimal digits.

    Raises:
        StoreError: The store did not reply, or refused; it is safe to repeat.
    """
    rest = [one for one in read_states(product, store) if one.state not in ended]
    if len(rest) > 1:
        _write_states(product, rest, store)
    else:  # one state alone is written by its own release
        run_commands(store, [(b"DEL", states_key(product))])
    time.sleep(WRITERS_READ_S)


def delete_values(product: str, state: str, store: RedisStore) -> int:
    """
    Delete the values of a state; return their number.

    Raises:
        InputError: The store is a cluster, which cannot list them.
        StoreError: The store did not reply, or refused; it is safe to repeat.
    """
    deleted = 0
    for keys in scanned_keys(store, f"tollgate:{product}:{state}".encode()):
        run_commands(store, [(b"DEL", *keys)])
        deleted += len(keys)
    return deleted


def _write_states(
    product: str,
    states: list[WrittenState],
    store: RedisStore,
    *,
    ttl_s: int | None = None,
) -> None:
    """Write the list of written states; without `ttl_s` it ends as before."""
    value = msgspec.json.encode(WrittenStates(states))
    end: tuple[object, ...] = (b"KEEPTTL",) if ttl_s is None else (b"EX", ttl_s)
    run_commands(store, [(b"SET", states_key(product), value, *end)])


def check_dual_writes(served: FeatureSpec, new: FeatureSpec) -> list[str]:
    """
    Check that purchases for one state have the data that another one needs.

    Returns:
        Lines that describe what a rollback would lack.

    Raises:
        InputError: The purchases for the served state lack data, or both are the same.
    """
    if (served.product, served.state_hash) == (new.product, new.state_hash):
        raise InputError("migrate", "both are the same state: no values change")
    if served.product != new.product:
        problem = f"{new.product} is another product than {served.product}"
        raise InputError("migrate", problem)
    for lacking in (missing_entities(served, new), missing_columns(served, new)):
        if lacking:
            problem = f"the served release has no {', '.join(lacking)}, or another form"
            remedy = ": first release features that declare it, with `use: policy`"
            raise InputError("migrate", problem + remedy)
    return [
        f"after the switch, the old values lack {name}: a rollback finds it missing"
        for name in (*missing_entities(new, served), *missing_columns(new, served))
    ]


class CopyCounts(msgspec.Struct):
    """
    Count the results of a copy.

    Attributes:
        values: Values that were read.
        events: Events sent; an event counts once per entity, and once for its label.
        applied: Events that changed a value.
        too_late: Events that are older than the new value retains, or than its newest
            tile, which may count them already.
        damaged: Values that could not be read, and were left out.
        full: Values that had dropped their oldest events, which no copy restores.
    """

    values: int = 0
    events: int = 0
    applied: int = 0
    too_late: int = 0
    damaged: int = 0
    full: int = 0


def copy_state(
    old: FeatureSpec,
    new: FeatureSpec,
    store: RedisStore,
    *,
    since_us: int = 0,
    rate_per_s: float | None = 0.0,
) -> CopyCounts:
    """
    Apply the events of one state's values to another's.

    Args:
        old: The spec of the source state.
        new: The spec of the target state.
        store: The store of both.
        since_us: Purchases, and labels that were known, before this time are left
            out; µs.
        rate_per_s: Most events per second; see `Pace`.

    Raises:
        InputError: The old values lack data that the new ones need.
        StoreError: The store did not reply; it is safe to repeat the copy.
    """
    pairs = check_copy(old, new)
    done = CopyCounts()
    pace = open_pace(new, store, rate_per_s)
    for place, (source, entity) in enumerate(pairs):
        copy = _EntityCopy(
            source=source,
            entity=entity,
            place=place,
            prefix=Packer(old).key(old.entities.index(source), b""),
            since_us=since_us,
            packer=Packer(new),
            store=store,
            pace=pace,
        )
        for keys in scanned_keys(store, copy.prefix):
            for start in range(0, len(keys), _READ_KEYS):
                copy.values(keys[start : start + _READ_KEYS], done)
    return done


class _EntityCopy(msgspec.Struct, kw_only=True):
    """
    Copy the values of one entity.

    Attributes:
        source: The entity in the old spec.
        entity: The entity in the new spec.
        place: Its index there.
        prefix: What the keys of the old values begin with, before the id.
        since_us: As in `copy_state`.
        packer: Packs events for the new values.
        store: The store of both.
        pace: Limits the writes.
    """

    source: Entity
    entity: Entity
    place: int
    prefix: bytes
    since_us: int
    packer: Packer
    store: RedisStore
    pace: Pace

    def values(self, keys: Sequence[bytes], done: CopyCounts) -> None:
        """Copy values by their keys, and add to the counts."""
        started_s = self.pace.begin()
        values = self._read(keys)
        first = self._events(values, done)
        # Values with tiles take labels of purchases that they have in this order.
        early = CopyCounts()
        self._send(keys, [list(one.labels.values()) for one in first], early)
        done.applied += early.applied
        before = done.events
        self._send(keys, [one.in_turn() for one in first], done)
        # Until then, the new values refused labels of purchases that they did not have.
        later = self._read(keys)
        changed = [place for place, one in enumerate(later) if one != values[place]]
        again = self._events([later[place] for place in changed], CopyCounts())
        events = [
            [one for name, one in new.labels.items() if old.labels.get(name) != one]
            for old, new in zip([first[place] for place in changed], again, strict=True)
        ]
        self._send([keys[place] for place in changed], events, done)
        self.pace.end(started_s, early.events + done.events - before)

    def _read(self, keys: Sequence[bytes]) -> list[bytes]:
        (found,) = run_commands(self.store, [(b"MGET", *keys)])
        return [value or b"" for value in found]

    def _events(self, values: Sequence[bytes], done: CopyCounts) -> list[_Events]:
        bodies = _bodies(values, self.source, entity=self.entity, done=done)
        return [
            _events(one, self.source, self.entity, since_us=self.since_us)
            for one in bodies
        ]

    def _send(
        self, keys: Sequence[bytes], events: Sequence[list[bytes]], done: CopyCounts
    ) -> None:
        ids = [key[len(self.prefix) :] for key in keys]
        for call, count in _calls(self.packer, self.place, ids, events):
            ((_, status),) = self.store.apply([(call, Mode.LOAD)])
            done.events += count
            done.applied += status.count(_APPLIED)
            done.too_late += status.count(_TOO_LATE)


def check_copy(old: FeatureSpec, new: FeatureSpec) -> list[tuple[Entity, Entity]]:
    """
    Find the source entity of each new entity's events.

    Returns:
        Old and new entity, in the order of the new ones.

    Raises:
        InputError: The old values lack data that the new ones need, or are the same.
    """
    if (old.product, old.state_hash) == (new.product, new.state_hash):
        raise InputError("copy", "both are the same state; there is nothing to copy")
    return [(_source(old, new, entity=entity), entity) for entity in new.entities]


def reach_warnings(old: FeatureSpec, new: FeatureSpec) -> list[str]:
    """
    Describe the windows that reach further back than the old values; for a copy alone.

    The begin of a window with a hop is rounded down, so a hop may add to its reach.

    Raises:
        InputError: The old values lack data that the new ones need.
    """
    warnings = []
    for source, entity in check_copy(old, new):
        windows_us = entity.windows_us[-1] + max(entity.rounding_us)
        if windows_us + entity.delay_us > source.horizon_us:
            stored = duration_text(source.horizon_us)
            needed = duration_text(windows_us + entity.delay_us)
            warnings.append(
                f"{entity.name}: the old values reach {stored} back, its windows up to "
                f"{needed}: name a history, or windows lack purchases until then"
            )
    return warnings


def _source(old: FeatureSpec, new: FeatureSpec, *, entity: Entity) -> Entity:
    """
    Find the source entity of a new entity's events.

    Raises:
        InputError: There is none, or it stores less.
    """
    for one in old.entities:
        if one.key == entity.key:
            if one.tiles:
                problem = f"the old values of {one.name} have tiles, not all events: "
                raise InputError("copy", problem + "use a history or a feed")
            lacking = sorted(set(entity.columns) - set(one.columns))
            if lacking:
                problem = f"{entity.name} needs {', '.join(lacking)}; the old values "
                raise InputError("copy", problem + "do not have it: use a feed")
            if changed := set(entity.columns) & set(missing_columns(old, new)):
                problem = f"{', '.join(sorted(changed))} has other decimals: use a feed"
                raise InputError("copy", problem)
            return one
    problem = f"no old entity has the key {entity.key!r}: use a feed"
    raise InputError("copy", problem)


def scanned_keys(store: RedisStore, prefix: bytes) -> Iterator[list[bytes]]:
    """Scan the keys of a prefix; a key that exists throughout the scan is included."""
    cursor = b"0"
    while True:
        command = (b"SCAN", cursor, b"MATCH", prefix + b"*", b"COUNT", _SCAN_KEYS)
        ((cursor, keys),) = run_commands(store, [command])
        if keys:
            yield keys
        if cursor == b"0":
            return


def _bodies(
    values: Sequence[bytes], source: Entity, *, entity: Entity, done: CopyCounts
) -> list[I64]:
    """
    Read the entries that another entity stores in its values, as words [E, W].

    A damaged value has none.
    """
    read = unpack_values(values, columns=np.full(len(values), len(source.columns)))
    done.values += sum(map(bool, values))
    done.damaged += int(read.corrupt.sum())
    done.full += int((read.overflow > 0).sum())
    whole = [
        b"" if damaged else value[HEADER.itemsize :]
        for value, damaged in zip(values, read.corrupt.tolist(), strict=True)
    ]
    width = _ENTRY_WORDS + len(source.columns)
    bodies = [np.frombuffer(one, "<i8").reshape(-1, width) for one in whole]
    newest_us = read.watermark_us
    oldest_us = (
        newest_us - entity.horizon_us
        if entity.tiles
        else oldest_stored_us(newest_us, entity.horizon_us)
    )
    pairs = zip(bodies, oldest_us.tolist(), strict=True)
    return [body[body[:, 0] >= oldest] for body, oldest in pairs]


class _Events(msgspec.Struct):
    """
    Hold the events that made the entries of a value; entries by id hash.

    Attributes:
        purchases: In the order of (time, id), as they are stored.
        labels: In the order of (label time, id hash).
    """

    purchases: dict[bytes, bytes]
    labels: dict[bytes, bytes]

    def in_turn(self) -> list[bytes]:
        """
        List the purchases, each before its label, and then the other labels.

        A value with tiles takes the label of a purchase that the same call adds, also
        if it counted newer labels before.
        """
        labels, events = dict(self.labels), []
        for name, purchase in self.purchases.items():
            events.append(purchase)
            if name in labels:
                events.append(labels.pop(name))
        return [*events, *labels.values()]


def _events(words: I64, source: Entity, entity: Entity, *, since_us: int) -> _Events:
    """
    Split entries into the events that made them.

    Values with tiles would refuse the correction of a label that they no longer hold
    one by one, so there a copied fraud is no correction; they get no labels if no
    feature reads any. Labels that became known since `since_us` are sent for older
    purchases, too.
    """
    picks = np.array([source.columns.index(one) for one in entity.columns], "i8")
    base = words[:, :_ENTRY_WORDS].copy().view(ENTRY)[:, 0]
    extra = words[:, _ENTRY_WORDS + picks]
    recent = base["time_us"] >= since_us
    bought = recent & ((base["flags"] & PURCHASE) != 0)
    recent |= base["label_time_us"] >= since_us
    labelled = recent & ((base["flags"] & LABELLED) != 0)
    if entity.tiles and not entity.tiles.labels:
        labelled[:] = False
    purchases, labels = base[bought], base[labelled]
    purchases["flags"], purchases["label_time_us"] = PURCHASE, 0
    labels["flags"] &= ~np.uint32(PURCHASE)
    if entity.tiles:
        fraud = (labels["flags"] & FRAUD) != 0
        labels["flags"][fraud] &= (1 << REVISION_SHIFT) - 1
    labels["cents"] = 0
    labels = labels[np.lexsort((labels["id_hash"], labels["label_time_us"]))]
    width = len(picks)
    return _Events(
        _by_id(widened(purchases, extra[bought], width=width)),
        _by_id(widened(labels, None, width=width)),
    )


def _by_id(entries: Iterable[npt.NDArray[np.void]]) -> dict[bytes, bytes]:
    """Return entries by their id hash."""
    found = [entry.tobytes() for entry in entries]
    return {_id_hash(entry): entry for entry in found}


def _id_hash(entry: bytes) -> bytes:
    return entry[24:32]


def _calls(
    packer: Packer, place: int, ids: Sequence[bytes], events: Sequence[list[bytes]]
) -> Iterator[tuple[Call, int]]:
    """Split the events of some values into calls that Redis completes quickly."""
    pending: list[tuple[bytes, list[bytes]]] = []
    count = 0
    for one, own in zip(ids, events, strict=True):
        start = 0
        while start < len(own):
            stop = start + EVENTS_PER_CALL
            if stop < len(own) and _id_hash(own[stop]) == _id_hash(own[stop - 1]):
                stop -= 1  # a purchase and its label stay in one call
            run, start = own[start:stop], stop
            if count + len(run) > EVENTS_PER_CALL:
                yield packer.pack_stored(place, pending), count
                pending, count = [], 0
            pending.append((one, run))
            count += len(run)
    if pending:
        yield packer.pack_stored(place, pending), count
