"""The features of a product: entities, windows, features and their order."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from tollgate.errors import SpecError
from tollgate.features.document import (
    LABEL,
    LABEL_TIME,
    MAX_SPAN_DAYS,
    Calendar,
    RawFeature,
    RawSpec,
    duration_us,
    read_document,
)
from tollgate.features.document import Aggregate as Aggregate
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

SPEC_FILE = "features.yaml"


class Entity(msgspec.Struct, frozen=True):
    """
    A thing that windows are kept for, such as a customer.

    `windows_us` holds the distinct windows its features use, ascending. An event
    older than the newest by more than `horizon_us` has left every window.
    """

    name: str
    key: str
    delay_us: int
    windows_us: tuple[int, ...]
    horizon_us: int
    cap: int


class Feature(msgspec.Struct, frozen=True):
    """
    One number the model sees.

    Exactly one of `field`, `calendar` and `aggregate` is set; with `aggregate`,
    `entity` and `window` index the spec's entities and that entity's windows.
    """

    name: str
    field: str | None
    calendar: Calendar | None
    aggregate: Aggregate | None
    entity: int
    window: int
    default: float


class FeatureSpec(msgspec.Struct, frozen=True):
    """
    A product's features, checked.

    `state_hash` names what is kept per entity (it is part of every store key);
    `spec_hash` names that and the vector made from it.
    """

    product: str
    entities: tuple[Entity, ...]
    features: tuple[Feature, ...]
    aliases: dict[str, tuple[str, ...]]
    lateness_us: int
    spec_hash: int
    state_hash: int

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name the columns of `features` [N, F], in order."""
        return tuple(feature.name for feature in self.features)

    @property
    def entity_names(self) -> tuple[str, ...]:
        """Name the entities, in the order of the file."""
        return tuple(entity.name for entity in self.entities)

    @property
    def columns(self) -> tuple[str, ...]:
        """Name the columns every purchase must have."""
        keys = tuple(entity.key for entity in self.entities)
        return (TRANSACTION_ID, *keys, AMOUNT, EVENT_TIME)


def load_spec(path: Path) -> FeatureSpec:
    """
    Read and check a features.yaml.

    Raises:
        SpecError: It cannot be read, has an unknown or a missing key, or does not
            fit together; the message names the file and the key.
    """
    return _checked(read_document(path), path)


def _checked(raw: RawSpec, path: Path) -> FeatureSpec:
    names = [feature.name for feature in raw.features]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(path, f"{name!r} appears twice", where="features")
    _refuse_shared_keys(raw, path)
    for one in raw.features:
        if one.entity is not None and one.entity not in raw.entities:
            known = ", ".join(raw.entities)
            problem = f"{one.entity!r} is none of {known}"
            raise SpecError(path, problem, where=f"features.{one.name}.entity")
    entities = tuple(_entity(name, raw, path=path) for name in raw.entities)
    features = tuple(_feature(one, entities) for one in raw.features)
    state = [(e.name, e.key, e.delay_us, e.horizon_us, e.cap) for e in entities]
    windows = [entity.windows_us for entity in entities]
    spec = FeatureSpec(
        product=raw.product,
        entities=entities,
        features=features,
        aliases={key: tuple(names) for key, names in raw.aliases.items()},
        lateness_us=duration_us(raw.lateness),
        spec_hash=_hash([raw.product, state, windows, features]),
        state_hash=_hash([raw.product, state]),
    )
    _check_aliases(spec, path)
    return spec


def _refuse_shared_keys(raw: RawSpec, path: Path) -> None:
    """Refuse two entities of one key: a request sends it once, for one of them."""
    owner: dict[str, str] = {}
    for name, entity in raw.entities.items():
        first = owner.setdefault(entity.key, name)
        if first != name:
            problem = f"{entity.key!r} is the key of {first} already"
            raise SpecError(path, problem, where=f"entities.{name}.key")


def _entity(name: str, raw: RawSpec, *, path: Path) -> Entity:
    where = f"entities.{name}"
    entity = raw.entities[name]
    windows = {
        duration_us(one.window)
        for one in raw.features
        if one.entity == name and one.window is not None
    }
    if not windows:
        raise SpecError(path, "no feature has a window over it", where=where)
    delay_us = duration_us(entity.delay)
    horizon_us = max(windows) + delay_us + duration_us(raw.lateness)
    if horizon_us > duration_us(f"{MAX_SPAN_DAYS}d"):
        problem = f"longest window, delay and lateness are over {MAX_SPAN_DAYS}d"
        raise SpecError(path, problem, where=where)
    return Entity(
        name=name,
        key=entity.key,
        delay_us=delay_us,
        windows_us=tuple(sorted(windows)),
        horizon_us=horizon_us,
        cap=entity.cap,
    )


def _feature(raw: RawFeature, entities: tuple[Entity, ...]) -> Feature:
    entity = window = -1
    if raw.window is not None:
        entity = [one.name for one in entities].index(str(raw.entity))
        window = entities[entity].windows_us.index(duration_us(raw.window))
    return Feature(
        name=raw.name,
        field=raw.field,
        calendar=raw.calendar,
        aggregate=raw.aggregate,
        entity=entity,
        window=window,
        default=raw.default,
    )


def _check_aliases(spec: FeatureSpec, path: Path) -> None:
    """Refuse aliases of no column of ours, and names that would stand for two."""
    columns = (*spec.columns, LABEL, LABEL_TIME)
    owner = dict(zip(columns, columns, strict=True))
    for column, aliases in spec.aliases.items():
        if column not in columns:
            problem = f"{column!r} is none of {', '.join(columns)}"
            raise SpecError(path, problem, where="aliases")
        for alias in aliases:
            first = owner.setdefault(alias, column)
            if first != column:
                problem = f"{alias!r} names {first} already"
                raise SpecError(path, problem, where=f"aliases.{column}")


def _hash(value: object) -> int:
    digest = hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest()
    return int.from_bytes(digest, "big")
