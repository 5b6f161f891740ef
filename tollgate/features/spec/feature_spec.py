"""Build a product's features from its features.yaml, and refuse invalid ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from tollgate.errors import SpecError
from tollgate.features.hook.hook_file import HookSource, read_hook
from tollgate.features.spec.spec_definition import (
    Derived,
    Entity,
    EntityHistory,
    Feature,
    FeatureSpec,
    Field,
    Table,
    hash64,
)
from tollgate.features.spec.spec_document import (
    LABEL,
    LABEL_TIME,
    MAX_ENTRIES,
    MAX_SPAN_DAYS,
    OF_NTH,
    OF_NUMBER,
    OF_VALUE,
    RawEntity,
    RawFeature,
    RawField,
    RawHistory,
    RawSpec,
    duration_us,
    largest_number,
    rate_per_s,
    read_document,
)
from tollgate.features.spec.tile_form import (
    AGGREGATE_FIELDS,
    AIM_BYTES,
    AUTO,
    HOPS_US,
    LEAST_HEAD,
    MAX_VALUE_BYTES,
    NEWEST_EVENTS,
    FieldKind,
    HopFit,
    TileForm,
    head_size,
    hop_us,
    least_cap,
    most_events,
    tile_form,
)
from tollgate.schema import AMOUNT, EVENT_TIME, EXACT

__all__ = ["SPEC_FILE", "Entity", "Feature", "FeatureSpec", "Table", "load_spec"]

# Resolve the names in a features.yaml: entities, windows, fields, other features.

_NO_AMOUNT = "which the product has not (amount: false)"
_EVENTS_ONLY = "is a field of events, and requests do not have it (use: events)"
_RATES = ("count", "sum", "flagged")
_ADDED = ("sum", "mean", "std", "slope", "ewm")  # sums of floats depend on their order
_Plan = Callable[..., TileForm]  # makes the tiles of a hop, for one entity


def link_fields(
    raw: RawSpec, path: Path, hook: HookSource | None = None
) -> tuple[Field, ...]:
    """
    Link the declared fields; a field is used by a feature, or by the policy alone.

    The columns of the request that the hook reads count as used by its features, and
    so do those of the history.

    Raises:
        SpecError: A feature or the history names a field, an entity or a key that does
            not exist, or is of another type; or a field is not used as it is declared.
    """
    links = _Links(raw, path)
    used = {name for feature in raw.features for name in links.check(feature)}
    used |= hook.fields if hook else frozenset()
    if raw.history is not None:
        links.check_history(raw.history)
        used |= set(raw.history.of)
    fields = []
    for one in raw.fields:
        where = f"fields.{one.name}"
        if one.use == "features" and one.name not in used:
            problem = "no feature uses it; one for the policy alone says `use: policy`"
            raise SpecError(path, problem, where=where)
        if one.use == "events" and one.name not in used:
            problem = "neither the history nor an aggregate uses it"
            raise SpecError(path, problem, where=where)
        if one.use == "policy" and one.name in used:
            raise SpecError(
                path, "is for the policy, and a feature uses it", where=where
            )
        fields.append(_field(one))
    return tuple(fields)


def _field(one: RawField) -> Field:
    decimals = None if one.decimals == EXACT else int(one.decimals)
    most = largest_number(decimals)
    low, high = one.range or (-most, most)
    if decimals is not None:
        low, high = round(low * 10**decimals), round(high * 10**decimals)
    return Field(
        name=one.name,
        type=one.type,
        decimals=decimals,
        low=low,
        high=high,
        vocabulary=tuple(one.vocabulary),
        use=one.use,
    )


def link_features(
    raw: RawSpec,
    entities: Sequence[Entity],
    *,
    path: Path,
    hook: HookSource | None = None,
) -> tuple[Feature, ...]:
    """
    Resolve names to indices: of an entity, its window, a feature's inputs.

    Raises:
        HookError: The hook reads a feature that does not precede its own.
        SpecError: A derived feature names one that does not precede it, or a rate of
            change names two that are not comparable.
    """
    features: list[Feature] = []
    for one in raw.features:
        entity = window = -1
        name = one.entity or one.time_since_last
        if name is not None and one.window is not None:
            entity = [known.name for known in entities].index(name)
            window = entities[entity].windows_us.index(duration_us(one.window))
        derived, inputs = _derived(one, features, path=path)
        if hook is not None and one.hook is not None:
            inputs = hook.inputs(features)
        scale = None
        if derived == "rate_of_change" and inputs is not None:
            scale = _rate_scale(one, features, inputs, entities=entities, path=path)
        features.append(
            Feature(
                name=one.name,
                field=one.field,
                calendar=one.calendar,
                aggregate="time_since_last" if one.time_since_last else one.aggregate,
                entity=entity,
                window=window,
                default=one.default,
                category=one.category,
                of=_of(one),
                derived=derived,
                inputs=inputs,
                scale=scale,
                range=one.range,
                essential=one.essential,
                max_age_us=duration_us(one.max_age),
                table=one.table,
                column=one.column,
                hook=one.hook,
                nth=_nth(one),
                half_life_us=duration_us(one.half_life) if one.half_life else 0,
                gap_us=duration_us(one.gap) if one.gap else 0,
            )
        )
    return tuple(features)


def _of(one: RawFeature) -> str | None:
    """Return the value that a feature aggregates; None for the amount."""
    of_value = one.aggregate in OF_VALUE
    return None if one.of == AMOUNT and not of_value else one.of


def _nth(one: RawFeature) -> int:
    """Return the place that `last` and `change` read; 0 for that of the newest."""
    if one.aggregate == "change":
        return one.nth or OF_NTH["change"]
    return one.nth if one.nth is not None and one.nth > 1 else 0


def link_tables(
    raw: RawSpec, entities: Sequence[Entity], *, path: Path
) -> tuple[Table, ...]:
    """
    Link the declared tables, with the columns that features read from them.

    Raises:
        SpecError: A table's entity does not exist, or no feature reads a column.
    """
    tables = []
    names = [one.name for one in entities]
    for name, one in raw.tables.items():
        where = f"tables.{name}"
        if one.entity not in names:
            problem = f"{one.entity!r} is none of {', '.join(names)}"
            raise SpecError(path, problem, where=f"{where}.entity")
        used = {str(own.column) for own in raw.features if own.table == name}
        if not used:
            raise SpecError(path, "no feature takes a column of it", where=where)
        columns, entity = tuple(sorted(used)), names.index(one.entity)
        tables.append(
            Table(
                name=name,
                entity=entity,
                columns=columns,
                max_age_us=duration_us(one.max_age),
                refresh_us=duration_us(one.refresh),
                layout=hash64([name, entities[entity].key, columns]),
            )
        )
    return tuple(tables)


class _Links:
    """Check that the names in the features of a file exist, with the right type."""

    def __init__(self, raw: RawSpec, path: Path) -> None:
        self._amount = raw.amount
        self._entities = raw.entities
        self._fields = {one.name: one for one in raw.fields}
        self._tables = raw.tables
        self._keys = {one.key: name for name, one in raw.entities.items()}
        self._path = path

    def check(self, one: RawFeature) -> set[str]:
        """Check one feature; return the fields it uses."""
        where = f"features.{one.name}"
        for key in ("entity", "time_since_last"):
            name = getattr(one, key)
            if name is not None and name not in self._entities:
                known = ", ".join(self._entities) or "the entities: there are none"
                self._refuse(f"{where}.{key}", f"{name!r} is none of {known}")
        if one.table is not None and one.table not in self._tables:
            self._refuse(f"{where}.table", f"{one.table!r} is no table of the file")
        if one.field is not None:
            self._number(f"{where}.field", one.field)
        if one.category is not None:
            self._category(f"{where}.category", one.category)
        if one.of is not None and one.aggregate not in OF_VALUE:
            self._number(f"{where}.of", one.of)
            self._addable(f"{where}.of", one)
        elif one.of is not None:
            self._countable(f"{where}.of", one)
        elif one.aggregate in OF_NUMBER and not self._amount:
            self._refuse(where, f"is of the amount, {_NO_AMOUNT}; say of what: of")
        return {name for name in (one.field, one.category, one.of) if name}

    def check_history(self, history: RawHistory) -> None:
        """Check the names of the history, and that the store has its events."""
        entity = self._entities.get(history.entity)
        if entity is None:
            known = ", ".join(self._entities) or "the entities: there are none"
            self._refuse("history.entity", f"{history.entity!r} is none of {known}")
        for key, stated, plain in (
            ("hop", hop_us(entity.hop), "0"),
            ("delay", duration_us(entity.delay), "0s"),
        ):
            if stated != 0:
                problem = (
                    f"needs every event up to the row's own time: {history.entity} "
                    f"must have {key}: {plain}"
                )
                self._refuse("history.entity", problem)
        cap = entity.cap or MAX_ENTRIES
        if history.most > cap:
            problem = f"{history.most} is over the cap of {history.entity}, {cap}"
            self._refuse("history.most", problem)
        for name in history.of:
            if name == entity.key:
                self._refuse("history.of", f"{name!r} is the entity's own key")
            if name not in (*self._fields, *self._keys):
                problem = f"{name!r} is neither a field nor the key of an entity"
                self._refuse("history.of", problem)

    def _number(self, where: str, name: str) -> None:
        if name == AMOUNT:
            self._money(where)
            return
        field = self._fields.get(name)
        if field is None or field.type != "number":
            self._refuse(where, f"{name!r} is not a number of the request")
        if field.use == "events" and where.endswith(".field"):
            self._refuse(where, f"{name!r} {_EVENTS_ONLY}")

    def _addable(self, where: str, one: RawFeature) -> None:
        """Refuse sums of exact floats: they depend on the order of the events."""
        field = self._fields.get(str(one.of))
        if field is not None and field.decimals == EXACT and one.aggregate in _ADDED:
            kind = f"{'an' if one.aggregate == 'ewm' else 'a'} {one.aggregate}"
            problem = f"{one.of!r} is exact; {kind} needs decimals: 0 to 4"
            self._refuse(where, problem)

    def _category(self, where: str, name: str) -> None:
        field = self._fields.get(name)
        if field is None or field.type != "category":
            self._refuse(where, f"{name!r} is not a category of the request")
        elif not field.vocabulary:
            self._refuse(where, f"{name!r} has no vocabulary to take its codes from")
        elif field.use == "events":
            self._refuse(where, f"{name!r} {_EVENTS_ONLY}")

    def _countable(self, where: str, one: RawFeature) -> None:
        if one.of == AMOUNT:
            self._money(where)
        if one.of == self._entities[str(one.entity)].key:
            self._refuse(where, f"{one.of!r} is the entity's own key: always one")
        if one.of not in (AMOUNT, *self._fields, *self._keys):
            problem = f"{one.of!r} is neither a field nor the key of an entity"
            self._refuse(where, problem)
        field = self._fields.get(str(one.of))
        number = one.of == AMOUNT or (field is not None and field.type == "number")
        if number and one.aggregate == "approx_distinct":
            problem = f"{one.of!r} is a number; only texts have the hash that it needs"
            self._refuse(where, problem)

    def _money(self, where: str) -> None:
        if not self._amount:
            self._refuse(where, _NO_AMOUNT)

    def _refuse(self, where: str, problem: str) -> NoReturn:
        raise SpecError(self._path, problem, where=where)


def _derived(
    one: RawFeature, before: Sequence[Feature], *, path: Path
) -> tuple[Derived | None, tuple[int, ...] | None]:
    """Find the inputs of a derived feature among those that precede it."""
    if one.inputs is None:
        return None, None
    kind: Derived = "rate_of_change"
    if one.ratio or one.difference:
        kind = "ratio" if one.ratio else "difference"
    names = [feature.name for feature in before]
    for name in one.inputs:
        where = f"features.{one.name}.{kind}"
        if name not in names:
            problem = f"{name!r} is not a feature that stands before it"
            raise SpecError(path, problem, where=where)
        if before[names.index(name)].category is not None:
            raise SpecError(path, f"{name!r} is a code, not a number", where=where)
    first, second = one.inputs
    return kind, (names.index(first), names.index(second))


def _rate_scale(
    one: RawFeature,
    before: Sequence[Feature],
    inputs: Sequence[int],
    *,
    entities: Sequence[Entity],
    path: Path,
) -> float:
    """Divide the long window by the short one, of two comparable features."""
    where = f"features.{one.name}.rate_of_change"
    short, long = (before[at] for at in inputs)
    if short.aggregate not in _RATES:
        raise SpecError(path, f"has no {', '.join(_RATES)} first", where=where)
    if (short.aggregate, short.entity, short.of) != (
        long.aggregate,
        long.entity,
        long.of,
    ):
        problem = f"{short.name} and {long.name} are not the same aggregate"
        raise SpecError(path, problem, where=where)
    if short.window >= long.window:
        problem = f"{short.name}'s window is not shorter than {long.name}'s"
        raise SpecError(path, problem, where=where)
    windows_us = entities[short.entity].windows_us
    return windows_us[long.window] / windows_us[short.window]


SPEC_FILE = "features.yaml"
# Entry bytes are one byte of the header: (255 - 48) // 8 would be the most.
MAX_COLUMNS = 16


def load_spec(path: Path) -> FeatureSpec:
    """
    Read and check a features.yaml to serve, publish or fill a store with.

    Raises:
        SpecError: The file cannot be read, has an unknown or a missing key, or is
            inconsistent, or leaves a hop to the history; the message names the file and
            the key.
    """
    spec = load_draft(path)
    for entity in spec.entities:
        if entity.auto:
            problem = f"{AUTO} cannot be served: write hop: 0"
            if entity.fit.remedy:
                problem += (
                    f", or if an id has more than {entity.cap:,} events in its widest "
                    f"window {entity.fit.remedy}"
                )
            problem += "; `tollgate features build HISTORY OUT` prints which"
            raise SpecError(path, problem, where=f"entities.{entity.name}.hop")
    return spec


def load_draft(path: Path) -> FeatureSpec:
    """
    Read and check a features.yaml; an entity with `hop: auto` is as with `hop: 0`.

    Raises:
        SpecError: As `load_spec`, except for the hop.
    """
    return _checked(read_document(path), path)


def load_with_hops(path: Path, hops: Mapping[str, str]) -> FeatureSpec:
    """
    Read a features.yaml as if it had other hops; its hashes are those of such a file.

    Args:
        hops: The hop of each entity whose hop is not the file's.

    Raises:
        SpecError: As `load_spec`; or a hop does not fit its entity.
    """
    raw = read_document(path)
    entities = {
        name: msgspec.structs.replace(one, hop=hops.get(name, one.hop))
        for name, one in raw.entities.items()
    }
    return _checked(msgspec.structs.replace(raw, entities=entities), path)


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
    requested = tuple(one for one in fields if one.use != "events")
    events_only = tuple(one for one in fields if one.use == "events")
    history = _history(raw)
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
                *([requested] if requested else []),
                *([[(one.layout, one.max_age_us) for one in tables]] if tables else []),
                *([["hook", hook.digest]] if hook else []),
                *([["events", events_only]] if events_only else []),
                *([["history", history]] if history else []),
            ]
        ),
        state_hash=hash64([raw.product, state, *generation]),
        fields=requested,
        tables=tables,
        hook=hook,
        feeds={name: duration_us(feed.max_age) for name, feed in raw.feeds.items()},
        amount=raw.amount,
        events_only=events_only,
        history=history,
    )
    _check_aliases(spec, path)
    return spec


def _history(raw: RawSpec) -> EntityHistory | None:
    if raw.history is None:
        return None
    return EntityHistory(
        entity=[*raw.entities].index(raw.history.entity),
        of=tuple(raw.history.of),
        most=raw.history.most,
    )


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
    named = {one.of for one in own if one.of not in (None, AMOUNT)}
    if raw.history is not None and raw.history.entity == name:
        named |= set(raw.history.of)
    columns = tuple(sorted(filter(None, named)))
    if len(columns) > MAX_COLUMNS:
        problem = f"its features are of {len(columns)} others, {MAX_COLUMNS} at most"
        raise SpecError(path, problem, where=where)
    exact = _exact_feature(own, delay_us=delay_us)
    if exact is None and raw.history is not None and raw.history.entity == name:
        exact = "history", "newest events", "needs every event"
    deepest = max(own, key=_nth)
    plan = functools.partial(
        tile_form,
        delay_us=delay_us,
        lateness_us=duration_us(raw.lateness),
        windows_us=sorted(windows),
        needs=[] if exact else _tile_needs(own, columns),
        reads_back=_nth(deepest) > 1,
    )
    tiles, cap = None, entity.cap or MAX_ENTRIES
    fit = HopFit()
    if hop := hop_us(entity.hop):
        if exact:
            feature, kind, need = exact
            problem = f"{need}: its entity must have hop: 0"
            raise SpecError(path, problem, where=f"features.{feature}.{kind}")
        tiles = plan(hop_us=hop)
        # The oldest edge of a window is rounded down.
        horizon_us += tiles.window_us[-1]
        spans = {
            "its longest window": max(windows),
            "its delay": delay_us,
            "the lateness": duration_us(raw.lateness),
        }
        remedy = f"shorten {max(spans, key=spans.__getitem__)}"
        cap = _head(
            entity,
            tiles,
            columns,
            deepest=deepest,
            plan=plan,
            path=path,
            where=where,
            remedy=remedy,
        )
    elif exact:
        feature, kind, need = exact
        fit = HopFit(obstacle=f"{feature} ({kind}) {need}")
    else:
        sizes = (AIM_BYTES, MAX_VALUE_BYTES)
        least = least_cap(_nth(deepest))
        fit = _hop_fit(plan, columns, cap=entity.cap, least=least, sizes=sizes)
    return Entity(
        name=name,
        key=entity.key,
        delay_us=delay_us,
        windows_us=tuple(sorted(windows)),
        horizon_us=horizon_us,
        cap=cap,
        columns=columns,
        tiles=tiles,
        most_bytes=AIM_BYTES if tiles and not entity.cap else 0,
        auto=entity.hop == AUTO,
        fit=fit,
        rate_per_s=rate_per_s(entity.rate) if entity.rate else 0.0,
    )


def _exact_feature(
    features: Sequence[RawFeature], *, delay_us: int
) -> tuple[str, str, str] | None:
    """
    Find the first feature that no tile can answer.

    Returns:
        Its name, its aggregate, and its need in words.
    """
    for one in features:
        kind = one.aggregate or "time_since_last"
        if kind not in AGGREGATE_FIELDS:
            return one.name, kind, "needs every event"
        if delay_us and kind in NEWEST_EVENTS:
            return one.name, kind, "needs every event with a delay"
    return None


def _hop_fit(
    plan: _Plan,
    columns: Sequence[str],
    *,
    cap: int | None,
    least: int,
    sizes: Sequence[int],
) -> HopFit:
    """
    Find the smallest hop whose values have at most so many bytes.

    Args:
        plan: Makes the tiles of a hop.
        columns: The entity's columns.
        cap: The file's cap; None leaves it to the hop.
        least: The least cap that its features need.
        sizes: Bytes of a value, the preferred number first.
    """
    for own in (cap, None) if cap else (None,):
        for most in sizes if own is None or own >= least else ():
            for hop, width_us in HOPS_US.items():
                tiles = plan(hop_us=width_us)
                head = own or max(least, head_size(tiles, len(columns)))
                if tiles.value_bytes(head, len(columns)) <= most:
                    return HopFit(hop=hop, without_cap=own != cap)
    return HopFit(obstacle=f"its values would exceed {sizes[-1]:,} bytes with any")


def _tile_needs(
    features: Sequence[RawFeature], columns: Sequence[str]
) -> list[tuple[FieldKind, int]]:
    """List the numbers that a tile needs for the features of its entity."""
    needs = []
    for one in features:
        amount = one.of in (None, AMOUNT)
        column = -1 if amount else columns.index(str(one.of))
        for kind in AGGREGATE_FIELDS[one.aggregate or "time_since_last"]:
            if not (amount and kind == FieldKind.KNOWN):  # every purchase has an amount
                needs.append((kind, column))
    return needs


def _head(
    entity: RawEntity,
    tiles: TileForm,
    columns: Sequence[str],
    *,
    deepest: RawFeature,
    plan: _Plan,
    path: Path,
    where: str,
    remedy: str,
) -> int:
    """
    Return the number of events that an entity with tiles stores one by one.

    Args:
        deepest: The feature that reads the event furthest back.

    Raises:
        SpecError: Its tiles leave no room for them.
    """
    nth = _nth(deepest)
    least = least_cap(nth)
    cap = entity.cap or max(least, head_size(tiles, len(columns)))
    if cap < LEAST_HEAD:
        problem = f"{cap} is not within {LEAST_HEAD} … {MAX_ENTRIES}"
        raise SpecError(path, problem, where=f"{where}.cap")
    if cap < least:
        problem = f"{cap} is too small for nth: {nth} of {deepest.name}: set cap: "
        raise SpecError(path, f"{problem}{least}", where=f"{where}.cap")
    size = tiles.value_bytes(cap, len(columns))
    if size > MAX_VALUE_BYTES:
        most = (MAX_VALUE_BYTES,)
        fit = _hop_fit(plan, columns, cap=entity.cap, least=least, sizes=most)
        remedy = fit.remedy or remedy
        fitting = most_events(tiles, len(columns), most_bytes=MAX_VALUE_BYTES)
        if fitting >= least:
            remedy = f"lower its cap to {fitting}"
        problem = (
            f"{entity.hop} needs up to {size:,} bytes for {tiles.most_tiles} tiles and "
            f"{cap} events; the most is {MAX_VALUE_BYTES:,}: {remedy}"
        )
        raise SpecError(path, problem, where=f"{where}.hop")
    return cap


def _state(entity: Entity, raw: RawSpec) -> list[object]:
    """Describe the stored values of an entity: any change needs another store key."""
    state: list[object] = [
        entity.name,
        entity.key,
        entity.delay_us,
        entity.horizon_us,
        entity.cap,
    ]
    if entity.tiles:
        state.append(["tiles", entity.tiles.pack().hex(), *entity.rounding_us])
    if entity.columns:
        forms = {one.name: (one.type, one.decimals) for one in raw.fields}
        state.append([(name, *forms.get(name, ("id", 0))) for name in entity.columns])
    return state


def _check_aliases(spec: FeatureSpec, path: Path) -> None:
    """Refuse aliases of unknown columns, and aliases of two columns."""
    fields = (one.name for one in spec.event_fields)
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


_KINDS = {AMOUNT: "FP64", EVENT_TIME: "INT64"}
FIELD_KINDS = {"number": "FP64", "category": "BYTES"}


def wire_inputs(spec: FeatureSpec) -> dict[str, str]:
    """Return the inputs that every request has, with their types."""
    return {name: _KINDS.get(name, "BYTES") for name in spec.columns}


def all_fields(spec: FeatureSpec) -> dict[str, str]:
    """Return every declared field of a request, with its type."""
    return {field.name: FIELD_KINDS[field.type] for field in spec.fields}
