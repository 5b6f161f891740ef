"""Read `features.yaml`: entities, windows, features and their order."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import SpecError
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

SPEC_VERSION = 1
SPEC_FILE = "features.yaml"
MAX_ENTRIES = 1024  # per entity value; longer ones cost 190 µs an update and more
LABEL = "label"
LABEL_TIME = "label_time"

Aggregate = Literal["count", "sum", "mean", "flagged", "share"]
Calendar = Literal["weekend", "night"]

_UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}


class RawEntity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entity as written in the file."""

    key: str
    hop: int | str = 0
    delay: str = "0s"
    cap: int = MAX_ENTRIES


class RawFeature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature as written in the file."""

    name: str
    field: str | None = None
    calendar: Calendar | None = None
    entity: str | None = None
    aggregate: Aggregate | None = None
    window: str | None = None
    default: float = 0.0


class RawSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file as written."""

    version: int
    product: str
    entities: dict[str, RawEntity]
    features: list[RawFeature]
    lateness: str = "1d"
    aliases: dict[str, list[str]] = {}


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


def duration_us(text: str) -> int:
    """
    Turn a duration such as `7d`, `5m` or `30s` into microseconds.

    Raises:
        ValueError: The text is not digits and one of s, m, h, d.
    """
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if not match:
        raise ValueError(f"{text!r} is not a duration like 30d, 12h, 5m or 10s")
    return int(match[1]) * _UNIT_US[match[2]]


def load_spec(path: Path) -> FeatureSpec:
    """
    Read and check a features.yaml.

    Raises:
        SpecError: It cannot be read, has an unknown or a missing key, or does not
            fit together; the message names the file and the key.
    """
    try:
        raw = msgspec.yaml.decode(path.read_bytes(), type=RawSpec)
    except OSError as exc:
        raise SpecError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, ValueError) as exc:
        raise SpecError(path, " ".join(str(exc).split())) from exc
    return _checked(raw, path)


def _checked(raw: RawSpec, path: Path) -> FeatureSpec:
    if raw.version != SPEC_VERSION:
        raise SpecError(path, f"{raw.version} is not {SPEC_VERSION}", where="version")
    names = [feature.name for feature in raw.features]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(path, f"{name!r} appears twice", where="features")
    lateness_us = _duration(raw.lateness, path, "lateness")
    entities = tuple(
        _entity(name, raw, lateness_us=lateness_us, path=path) for name in raw.entities
    )
    features = tuple(_feature(one, entities, path=path) for one in raw.features)
    state = [(e.name, e.key, e.delay_us, e.horizon_us, e.cap) for e in entities]
    windows = [entity.windows_us for entity in entities]
    return FeatureSpec(
        product=raw.product,
        entities=entities,
        features=features,
        aliases={key: tuple(names) for key, names in raw.aliases.items()},
        lateness_us=lateness_us,
        spec_hash=_hash([raw.product, state, windows, features]),
        state_hash=_hash([raw.product, state]),
    )


def _entity(name: str, raw: RawSpec, *, lateness_us: int, path: Path) -> Entity:
    where = f"entities.{name}"
    entity = raw.entities[name]
    if entity.hop not in (0, "0", "0s"):
        raise SpecError(
            path,
            f"{entity.hop} is not supported: only exact windows (hop: 0) are",
            where=f"{where}.hop",
        )
    if not 1 <= entity.cap <= MAX_ENTRIES:
        raise SpecError(
            path, f"{entity.cap} is not within 1 … {MAX_ENTRIES}", where=f"{where}.cap"
        )
    windows = {
        _duration(one.window, path, f"features.{one.name}.window")
        for one in raw.features
        if one.entity == name and one.window is not None
    }
    if not windows:
        raise SpecError(path, "no feature has a window over it", where=where)
    delay_us = _duration(entity.delay, path, f"{where}.delay")
    return Entity(
        name=name,
        key=entity.key,
        delay_us=delay_us,
        windows_us=tuple(sorted(windows)),
        horizon_us=max(windows) + delay_us + lateness_us,
        cap=entity.cap,
    )


def _feature(raw: RawFeature, entities: tuple[Entity, ...], *, path: Path) -> Feature:
    where = f"features.{raw.name}"
    kinds = [raw.field, raw.calendar, raw.aggregate]
    if sum(kind is not None for kind in kinds) != 1:
        raise SpecError(
            path, "needs exactly one of field, calendar, aggregate", where=where
        )
    if raw.field is not None and raw.field != AMOUNT:
        raise SpecError(
            path,
            f"{raw.field!r} is not a number of the request",
            where=f"{where}.field",
        )
    entity = window = -1
    if raw.aggregate is not None:
        names = [one.name for one in entities]
        if raw.entity not in names or raw.window is None:
            raise SpecError(
                path,
                f"an aggregate needs a window and an entity out of {', '.join(names)}",
                where=where,
            )
        entity = names.index(raw.entity)
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


def _duration(text: str, path: Path, where: str) -> int:
    try:
        return duration_us(text)
    except ValueError as exc:
        raise SpecError(path, str(exc), where=where) from exc


def _hash(value: object) -> int:
    digest = hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest()
    return int.from_bytes(digest, "big")
