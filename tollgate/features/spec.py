"""Build a product's features from its features.yaml, and refuse invalid ones."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.errors import SpecError
from tollgate.features.definition import Entity, Feature, FeatureSpec, Table, hash64
from tollgate.features.document import (
    LABEL,
    LABEL_TIME,
    MAX_SPAN_DAYS,
    RawSpec,
    duration_us,
)
from tollgate.features.hook import read_hook
from tollgate.features.linking import link_features, link_fields, link_tables
from tollgate.features.wellformed import read_document
from tollgate.schema import AMOUNT

__all__ = ["SPEC_FILE", "Entity", "Feature", "FeatureSpec", "Table", "load_spec"]

SPEC_FILE = "features.yaml"
# Entry bytes are one byte of the header: (255 - 48) // 8 would be the most.
MAX_COLUMNS = 16


def load_spec(path: Path) -> FeatureSpec:
    """
    Read and check a features.yaml.

    Raises:
        SpecError: The file cannot be read, has an unknown or a missing key, or is
            inconsistent; the message names the file and the key.
    """
    return _checked(read_document(path), path)


def _checked(raw: RawSpec, path: Path) -> FeatureSpec:
    for part, names in (
        ("features", [one.name for one in raw.features]),
        ("fields", [one.name for one in raw.fields]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise SpecError(path, f"{name!r} appears twice", where=part)
    _refuse_shared_keys(raw, path)
    source = read_hook(raw, path)
    fields = link_fields(raw, path, source)
    entities = tuple(_entity(name, raw, path=path) for name in raw.entities)
    features = link_features(raw, entities, path=path, hook=source)
    hook = source.linked(features) if source else None
    tables = link_tables(raw, entities, path=path)
    state = [_state(entity, raw) for entity in entities]
    windows = [entity.windows_us for entity in entities]
    # Settings that only set bits of the answer are no part of the vector.
    vector = [
        msgspec.structs.replace(one, essential=False, max_age_us=0) for one in features
    ]
    # The stored values differ, the vector does not: a model remains valid.
    generation = [raw.generation] if raw.generation else []
    spec = FeatureSpec(
        product=raw.product,
        entities=entities,
        features=features,
        aliases={key: tuple(names) for key, names in raw.aliases.items()},
        lateness_us=duration_us(raw.lateness),
        spec_hash=hash64(
            [
                *(raw.product, state, windows, vector),
                *([fields] if fields else []),
                *([[(one.layout, one.max_age_us) for one in tables]] if tables else []),
                *([["hook", hook.digest]] if hook else []),
            ]
        ),
        state_hash=hash64([raw.product, state, *generation]),
        fields=fields,
        tables=tables,
        hook=hook,
        feeds={name: duration_us(feed.max_age) for name, feed in raw.feeds.items()},
        amount=raw.amount,
    )
    _check_aliases(spec, path)
    return spec


def _refuse_shared_keys(raw: RawSpec, path: Path) -> None:
    """Refuse two entities with one key: a request sends it once, for one of them."""
    owner: dict[str, str] = {}
    for name, entity in raw.entities.items():
        first = owner.setdefault(entity.key, name)
        if first != name:
            problem = f"{entity.key!r} is the key of {first} already"
            raise SpecError(path, problem, where=f"entities.{name}.key")
    for field in raw.fields:
        if field.name in owner:
            problem = f"{field.name!r} is the key of {owner[field.name]} already"
            raise SpecError(path, problem, where=f"fields.{field.name}")


def _entity(name: str, raw: RawSpec, *, path: Path) -> Entity:
    where = f"entities.{name}"
    entity = raw.entities[name]
    own = [one for one in raw.features if name in (one.entity, one.time_since_last)]
    windows = {duration_us(one.window) for one in own if one.window is not None}
    if not windows:
        raise SpecError(path, "no feature has a window over it", where=where)
    delay_us = duration_us(entity.delay)
    horizon_us = max(windows) + delay_us + duration_us(raw.lateness)
    if horizon_us > duration_us(f"{MAX_SPAN_DAYS}d"):
        problem = f"longest window, delay and lateness are over {MAX_SPAN_DAYS}d"
        raise SpecError(path, problem, where=where)
    columns = tuple(sorted({one.of for one in own if one.of not in (None, AMOUNT)}))
    if len(columns) > MAX_COLUMNS:
        problem = f"its features are of {len(columns)} others, {MAX_COLUMNS} at most"
        raise SpecError(path, problem, where=where)
    return Entity(
        name=name,
        key=entity.key,
        delay_us=delay_us,
        windows_us=tuple(sorted(windows)),
        horizon_us=horizon_us,
        cap=entity.cap,
        columns=columns,
    )


def _state(entity: Entity, raw: RawSpec) -> list[object]:
    """Describe the stored values of an entity: any change needs another store key."""
    state: list[object] = [
        entity.name,
        entity.key,
        entity.delay_us,
        entity.horizon_us,
        entity.cap,
    ]
    if entity.columns:
        forms = {one.name: (one.type, one.decimals) for one in raw.fields}
        state.append([(name, *forms.get(name, ("id", 0))) for name in entity.columns])
    return state


def _check_aliases(spec: FeatureSpec, path: Path) -> None:
    """Refuse aliases of unknown columns, and aliases of two columns."""
    fields = (one.name for one in spec.fields)
    columns = (*spec.columns, *fields, LABEL, LABEL_TIME)
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
