"""Pack purchase and label events into the arguments of one store call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate import compiled
from tollgate.features.fields import Fields, field_values, hash_words
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import (
    COLUMN_BYTES,
    ENTRY,
    FRAUD,
    LABELLED,
    MISSING,
    PURCHASE,
    REVISION_SHIFT,
    identify,
)

# Build the columns that an entry holds beyond the amount: fields and entity ids.

I64 = npt.NDArray[np.int64]


def entity_columns(
    spec: FeatureSpec, entity_id: Sequence[Sequence[bytes]], *, fields: Fields
) -> list[I64]:
    """
    Build, per entity of the spec, the columns that its features need.

    Args:
        spec: Names the columns of each entity.
        entity_id: Per entity its ids, of N purchases.
        fields: Declared fields that were sent; int64 [N] each.

    Returns:
        Per entity int64 [N, K], in the order of its `columns`; ids as their hash.
    """
    rows = len(entity_id[0])
    keys = {entity.key: at for at, entity in enumerate(spec.entities)}
    made: dict[str, I64] = {}
    for name in {name for entity in spec.entities for name in entity.columns}:
        if name in keys:
            made[name] = hash_words(entity_id[keys[name]])
        else:
            made[name] = field_values(fields, name, rows)
    return [
        np.stack([made[name] for name in entity.columns], axis=1)
        if entity.columns
        else np.empty((rows, 0), np.int64)
        for entity in spec.entities
    ]


def widened(
    entries: npt.NDArray[np.void], columns: I64 | None, *, width: int
) -> npt.NDArray[np.void]:
    """
    Append columns to entries.

    Args:
        entries: ENTRY [N].
        columns: int64 [N, K]; None for events without values.
        width: K.

    Returns:
        Raw entries of 48 + 8 · K bytes [N].
    """
    if not width:
        return entries
    words = ENTRY.itemsize // COLUMN_BYTES
    whole = np.full((len(entries), words + width), MISSING)
    whole[:, :words] = entries.view("<i8").reshape(-1, words)
    if columns is not None:
        whole[:, words:] = columns
    return whole.view(f"V{whole.shape[1] * COLUMN_BYTES}")[:, 0]


# A value lives for its horizon and this long after its last event, on the server's
# clock: by then the windows of an inactive customer are empty.
_TTL_MARGIN_S = 86_400
MAX_REVISION = 2 ** (32 - REVISION_SHIFT) - 1  # largest number that fits the flags
ARGUMENTS = np.dtype(
    [
        ("horizon_us", "<i8"),
        ("cap", "<u2"),
        ("most_bytes", "<u2"),  # a value with tiles up to this may hold more than cap
        ("ttl_s", "<u4"),
        ("events", "<u4"),
        ("entry_bytes", "<u2"),
        ("form", "<u2"),  # 0: every event is stored; else the number of a form
    ]
)


class Purchases(msgspec.Struct, frozen=True):
    """
    Hold N purchases: ids, per entity of the spec its ids, times (µs) and cents.

    `fields` holds declared fields as tollgate/features/fields.py has them, int64 [N]
    each; a field that no purchase was sent with is left out.
    """

    transaction_id: Sequence[bytes]
    entity_id: Sequence[Sequence[bytes]]
    event_time_us: I64
    cents: I64
    fields: Fields = {}

    def __len__(self) -> int:
        return len(self.transaction_id)


class Labels(msgspec.Struct, frozen=True):
    """
    Hold N labels of purchases.

    `event_time_us` is the purchase's; `revision` [N] orders labels of one purchase, a
    higher one replaces a lower, from 0 to 2²⁴ - 1; `label` is 1 for fraud, 0 for none.
    """

    transaction_id: Sequence[bytes]
    entity_id: Sequence[Sequence[bytes]]
    event_time_us: I64
    label: npt.NDArray[np.int8]
    label_time_us: I64
    revision: I64

    def __len__(self) -> int:
        return len(self.transaction_id)


class Call(msgspec.Struct, frozen=True):
    """
    Hold one call of the Lua function, and the data to read its reply.

    Attributes:
        keys: K store keys, entity by entity.
        arguments: Per-key settings, packed.
        forms: Forms of tiles, packed; empty without any.
        events: The events grouped by key, packed.
        first_key: First key of each entity, then the end of the last; [entities + 1].
        code: Per entity, the key of each event, counted from the entity's first; [N]
            each.
        order: Per entity, the event at each position of its group; [N] each.
        known: Per key its bytes of ARGV[5] of apply.lua, which name the value that the
            caller has (tollgate/store/in_place_appends.py); empty without any.
    """

    keys: list[bytes]
    arguments: bytes
    events: bytes
    first_key: list[int]
    code: list[I64]
    order: list[I64]
    forms: bytes = b""
    known: Sequence[bytes] = ()


NO_CALL = Call([], b"", b"", first_key=[0], code=[], order=[])  # without any entity


def purchase_entries(purchases: Purchases) -> npt.NDArray[np.void]:
    """Convert purchases to entries; ENTRY [N]."""
    if compiled.events is not None:
        packed = compiled.events.entries(
            purchases.transaction_id,
            purchases.event_time_us,
            purchases.cents,
            flags=PURCHASE,
        )
        if packed is not None:
            return np.frombuffer(packed, ENTRY)
    entries = _identified(purchases.transaction_id, purchases.event_time_us)
    entries["cents"] = purchases.cents
    entries["flags"] = PURCHASE
    return entries


def label_entries(labels: Labels) -> npt.NDArray[np.void]:
    """
    Convert labels to entries that wait for, or join, their purchase; ENTRY [N].

    Raises:
        ValueError: A label is neither 0 nor 1, or a revision is out of range.
    """
    for name, column, most in (
        ("label", labels.label, 1),
        ("revision", labels.revision, MAX_REVISION),
    ):
        wrong = np.flatnonzero((column < 0) | (column > most))
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(f"row {row}: {name} {column[row]} is not 0 … {most}")
    entries = _identified(labels.transaction_id, labels.event_time_us)
    fraud = np.where(labels.label == 1, FRAUD, 0)
    entries["flags"] = LABELLED | fraud | (labels.revision << REVISION_SHIFT)
    entries["label_time_us"] = labels.label_time_us
    return entries


def _identified(transaction_id: Sequence[bytes], time_us: I64) -> npt.NDArray[np.void]:
    entries = np.zeros(len(transaction_id), ENTRY)
    entries["time_us"] = time_us
    identify(entries, transaction_id)
    return entries


def packed_forms(spec: FeatureSpec) -> bytes:
    """Pack the forms of a spec's tiles, each after its length; empty without any."""
    if not any(entity.tiles for entity in spec.entities):
        return b""
    forms = [entity.tiles.pack() if entity.tiles else b"" for entity in spec.entities]
    return b"".join(len(form).to_bytes(4, "little") + form for form in forms)


class Packer:
    """
    Pack store calls for one feature spec.

    Args:
        spec: The feature spec.
        spare: Events that a value may have above its cap: for calls that read and store
            nothing, so that a batch's own rows push no stored event out.
    """

    def __init__(self, spec: FeatureSpec, *, spare: int = 0) -> None:
        self._prefix = [
            f"tollgate:{spec.product}:{spec.state_hash:016x}:{name}:".encode()
            for name in spec.entity_names
        ]
        self._settings = np.array(
            [
                (
                    one.horizon_us,
                    one.cap + spare,
                    one.most_bytes,
                    one.horizon_us // 10**6 + _TTL_MARGIN_S,
                    1,
                    ENTRY.itemsize + COLUMN_BYTES * len(one.columns),
                    at if one.tiles else 0,
                )
                for at, one in enumerate(spec.entities, start=1)
            ],
            ARGUMENTS,
        )
        self._packed_settings = self._settings.tobytes()
        self._forms = packed_forms(spec)
        self._width = [len(one.columns) for one in spec.entities]
        self._wide = any(self._width)
        self._spec = spec

    def key(self, entity: int, entity_id: bytes) -> bytes:
        """Return the store key of one entity."""
        return self._prefix[entity] + entity_id

    def columns(self, purchases: Purchases) -> list[I64] | None:
        """Build the columns that entries hold beyond the amount; [N, K] per entity."""
        if not self._wide:
            return None
        return entity_columns(self._spec, purchases.entity_id, fields=purchases.fields)

    def pack(
        self,
        entries: npt.NDArray[np.void],
        entity_id: Sequence[Sequence[bytes]],
        *,
        columns: Sequence[I64] | None = None,
    ) -> Call:
        """
        Pack one call.

        Args:
            entries: The events; ENTRY [N].
            entity_id: Per entity, the id each event belongs to; N each.
            columns: The result of `columns` for purchases; None for labels, which get
                theirs from their purchase.

        Raises:
            ValueError: The entries have another layout, or native byte order: the
                result of np.concatenate on ENTRY looks alike and sorts wrongly.
        """
        if entries.dtype != ENTRY:
            raise ValueError(f"entries are {entries.dtype}, not {ENTRY}")
        if compiled.events is not None and self._prefix:
            call = self._group(entries, entity_id, columns=columns)
            if call is not None:
                return call
        keys: list[bytes] = []
        first_key = [0]
        arguments, events = [], []
        codes, orders = [], []
        for at, (prefix, column) in enumerate(
            zip(self._prefix, entity_id, strict=True)
        ):
            number = dict(zip(dict.fromkeys(column), itertools.count(), strict=False))
            settings = self._settings[at : at + 1].repeat(len(number))
            extra = columns[at] if columns is not None else None
            whole = widened(entries, extra, width=self._width[at])
            if len(number) == len(column):  # one event each, in this order
                code = order = np.arange(len(column))
            else:
                places = map(number.__getitem__, column)
                code = np.fromiter(places, np.int64, len(column))
                order = code.argsort(kind="stable")
                settings["events"] = np.bincount(code, minlength=len(number))
                whole = whole[order]
            arguments.append(settings.tobytes())
            events.append(whole.tobytes())
            keys += [prefix + one for one in number]
            first_key.append(len(keys))
            codes.append(code)
            orders.append(order)
        return Call(
            keys=keys,
            arguments=b"".join(arguments),
            events=b"".join(events),
            first_key=first_key,
            code=codes,
            order=orders,
            forms=self._forms,
        )

    def _group(
        self,
        entries: npt.NDArray[np.void],
        entity_id: Sequence[Sequence[bytes]],
        *,
        columns: Sequence[I64] | None,
    ) -> Call | None:
        """Pack a call by the compiled loop; None if it does not cover the input."""
        if self._wide:
            extra = columns if columns is not None else [None] * len(self._width)
            packed = [
                widened(entries, own, width=width).tobytes()
                for own, width in zip(extra, self._width, strict=True)
            ]
        else:
            packed = [entries.tobytes()] * len(self._width)
        places = np.empty((2, len(packed), len(entries)), np.int64)
        grouped = compiled.events.group(
            self._prefix, entity_id, packed, self._packed_settings, places
        )
        if grouped is None:
            return None
        keys, first_key, arguments, events = grouped
        return Call(
            keys=keys,
            arguments=arguments,
            events=events,
            first_key=first_key,
            code=list(places[0]),
            order=list(places[1]),
            forms=self._forms,
        )

    def pack_stored(
        self, entity: int, events: Sequence[tuple[bytes, Sequence[bytes]]]
    ) -> Call:
        """
        Pack events of one entity that have the layout of its stored values.

        Args:
            entity: Its index in the spec.
            events: Ids, and the entries of each with their columns, K in all.
        """
        counts = [len(own) for _, own in events]
        per_key = self._settings[entity : entity + 1].repeat(len(events))
        per_key["events"] = counts
        return Call(
            keys=[self._prefix[entity] + one for one, _ in events],
            arguments=per_key.tobytes(),
            events=b"".join(entry for _, own in events for entry in own),
            first_key=[0, len(events)],
            code=[np.arange(len(events)).repeat(counts)],
            order=[np.arange(sum(counts))],
            forms=self._forms,
        )
