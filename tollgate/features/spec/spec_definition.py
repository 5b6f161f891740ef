"""The features of a product as values: entities, fields, features, their hashes."""

from __future__ import annotations

import functools
import hashlib
from typing import Literal

import msgspec

from tollgate.features.spec.spec_document import (
    Aggregate,
    Calendar,
    FieldType,
    FieldUse,
)
from tollgate.features.spec.tile_form import HopFit, TileForm
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID, hash_words

# Aggregates over a window; features.yaml writes the last as `time_since_last: ENTITY`.
Window = Aggregate | Literal["time_since_last"]
Derived = Literal["ratio", "difference", "rate_of_change"]

_READINGS = "readings"  # the feature that counts them, in products of machines


class Entity(msgspec.Struct, frozen=True):
    """
    An entity for which windows are stored, such as a customer.

    `windows_us` holds the distinct windows its features use, ascending. An event older
    than the newest by more than `horizon_us` has left every window. `columns` names the
    columns of an entry beyond time, id, cents and label: fields, and keys of other
    entities; ascending. `tiles` is the form of its tiles; None stores every event. A
    value with tiles holds more than `cap` events one by one as long as it has at most
    `most_bytes`, 0 if the file names the cap. `auto` is True if the file leaves the hop
    to the history. `fit` is the hop to take instead of `hop: 0`. `rate_per_s` is the
    rate of events of the busiest id, 0 if the file does not state it. These four are in
    no hash.
    """

    name: str
    key: str
    delay_us: int
    windows_us: tuple[int, ...]
    horizon_us: int
    cap: int
    columns: tuple[str, ...] = ()
    tiles: TileForm | None = None
    most_bytes: int = 0
    auto: bool = False
    fit: HopFit = HopFit()
    rate_per_s: float = 0.0

    @property
    def rounding_us(self) -> tuple[int, ...]:
        """Return the width to which the begin of each window is rounded; 1: exact."""
        return self.tiles.window_us if self.tiles else (1,) * len(self.windows_us)

    @property
    def value_bytes(self) -> int:
        """Bound the size of a stored value with tiles; 0 without them."""
        if self.tiles is None:
            return 0
        return max(self.most_bytes, self.tiles.value_bytes(self.cap, len(self.columns)))

    @property
    def edge_us(self) -> int:
        """Return the width to which the end of the windows is rounded; 1: exact."""
        return self.tiles.edge_us if self.tiles else 1


class Field(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """
    A declared field of the request; a caller may leave it out.

    A number is stored as an integer multiple of 10^-decimals, and lies within `low` and
    `high`, in the same unit. One whose `decimals` are None is an exact float64, and so
    are its bounds. A category without a vocabulary can only be counted (`distinct`).
    No feature reads a field for the policy: only rules, segments and the consent to
    journal the row use it. Events have a field of `use: events`, requests have not.
    (`omit_defaults`: the hash of a spec without such fields is
    the same as before they existed.)
    """

    name: str
    type: FieldType
    decimals: int | None
    low: float
    high: float
    vocabulary: tuple[str, ...]
    use: FieldUse = "features"

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """Map the hash of each word to its position in the vocabulary."""
        hashes = hash_words([word.encode() for word in self.vocabulary])
        return {one: place for place, one in enumerate(hashes.tolist())}


class EntityHistory(msgspec.Struct, frozen=True):
    """
    The newest events that a row reads of its entity.

    `entity` indexes the spec's entities. `of` names the columns of the entity to read
    of each event, `most` is the largest number of events.
    """

    entity: int
    of: tuple[str, ...]
    most: int


class Table(msgspec.Struct, frozen=True):
    """
    Numbers by entity id from another system.

    `entity` indexes the spec's entities. `columns` names the columns that features
    read, ascending. A row older than `max_age_us` counts as missing; 0 for no limit.
    With `refresh_us`, a value is held in memory that long; 0 reads it with every batch.
    `layout` is a hash of table, key and columns: it is part of every store key and
    value.
    """

    name: str
    entity: int
    columns: tuple[str, ...]
    max_age_us: int
    refresh_us: int
    layout: int


class Hook(msgspec.Struct, frozen=True):
    """
    A product's own code: columns in, columns out.

    `path` is the file, for messages. `request` names the columns of the request that it
    reads, `features` the indices of the features, `columns` its output columns; each in
    the order in which the file names them first.
    """

    path: str
    source: str
    request: tuple[str, ...]
    features: tuple[int, ...]
    columns: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the code's bytes."""
        return hashlib.sha256(self.source.encode()).hexdigest()


class Feature(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One number that the model sees.

    Exactly one of `field`, `category`, `calendar`, `aggregate`, `derived`, `table`
    (with its `column`) and `hook` is set.
    With `aggregate`, `entity` and `window` index the spec's entities and that entity's
    windows, and `of` names the value to aggregate if it is not the amount. `nth` is the
    place of the value that `last` and `change` read, counted from the newest; 0 for a
    `last` of the newest. `half_life_us` is that of `ewm`, `gap_us` that of `sessions`.
    With
    `derived`, `inputs` index two earlier features, and `scale` is the factor of a rate
    of change. `hook` names a column of the hook; `inputs` are then all features that
    the hook reads.

    New attributes go to the end and have defaults: an attribute at its default is no
    part of the hash, so the hashes of older files stay. (A default must be None, a bool
    or a small int: msgspec leaves out a value that *is* the default, not one that
    equals it.)
    """

    name: str
    field: str | None
    calendar: Calendar | None
    aggregate: Window | None
    entity: int
    window: int
    default: float
    category: str | None = None
    of: str | None = None
    derived: Derived | None = None
    inputs: tuple[int, ...] | None = None
    scale: float | None = None
    range: tuple[float, float] | None = None
    essential: bool = False
    max_age_us: int = 0
    table: str | None = None
    column: str | None = None
    hook: str | None = None
    nth: int = 0
    half_life_us: int = 0
    gap_us: int = 0


class FeatureSpec(msgspec.Struct, frozen=True, dict=True):
    """
    A product's features, checked.

    `state_hash` identifies the values stored per entity (it is part of every store
    key); `spec_hash` identifies these and the vector computed from them. `feeds` sets
    how old the newest event of a feed may be, in µs. `amount` is True if the product
    has money; otherwise every amount is 0. `fields` are those that a request may have;
    `events_only` are those that events have in addition (`use: events`). `history`
    names the newest events that a row reads; None reads none.
    """

    product: str
    entities: tuple[Entity, ...]
    features: tuple[Feature, ...]
    aliases: dict[str, tuple[str, ...]]
    lateness_us: int
    spec_hash: int
    state_hash: int
    fields: tuple[Field, ...] = ()
    feeds: dict[str, int] = {}
    tables: tuple[Table, ...] = ()
    hook: Hook | None = None
    amount: bool = True
    events_only: tuple[Field, ...] = ()
    history: EntityHistory | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the columns of `features` [N, F], in order."""
        return tuple(feature.name for feature in self.features)

    @functools.cached_property
    def rows_noun(self) -> str:
        """
        Return the word for the product's rows: purchases, readings or rows.

        Rows without money whose only entity counts its readings are a machine's.
        """
        if self.amount:
            return "purchases"
        counts = any(
            one.name == _READINGS and one.aggregate == "count" for one in self.features
        )
        return "readings" if counts and len(self.entities) == 1 else "rows"

    @functools.cached_property
    def entity_names(self) -> tuple[str, ...]:
        """Return the entities, in the order of the file."""
        return tuple(entity.name for entity in self.entities)

    @functools.cached_property
    def field_names(self) -> tuple[str, ...]:
        """Return the declared fields of a request, in the order of the file."""
        return tuple(field.name for field in self.fields)

    @functools.cached_property
    def event_fields(self) -> tuple[Field, ...]:
        """Return the declared fields of an event: a request's, then the others."""
        return (*self.fields, *self.events_only)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that every purchase must have."""
        money = (AMOUNT,) if self.amount else ()
        return (*self.id_names, *money, EVENT_TIME)

    @functools.cached_property
    def id_names(self) -> tuple[str, ...]:
        """Return the columns that hold ids."""
        return (TRANSACTION_ID, *(entity.key for entity in self.entities))

    def field(self, name: str) -> Field:
        """Return a declared field by its name."""
        return self._fields[name]

    @functools.cached_property
    def _fields(self) -> dict[str, Field]:
        return {one.name: one for one in self.event_fields}

    @functools.cached_property
    def numbers(self) -> dict[int, Field]:
        """Map the columns of features that are numbers as sent to their fields."""
        return {
            column: self._fields[one.field]
            for column, one in enumerate(self.features)
            if one.field is not None and one.field != AMOUNT
        }


def hash64(value: object) -> int:
    """Hash the meaning of a file (BLAKE2b, 64 bits)."""
    digest = hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest()
    return int.from_bytes(digest, "big")
