"""Describe a feature: as a sentence for people, as parts; compare two features.yaml."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.features.fields import MISSING_CODE, UNSEEN_CODE
from tollgate.features.spec.spec_definition import Entity, Feature, FeatureSpec
from tollgate.features.windows.entity_entries import COLUMN_BYTES, ENTRY
from tollgate.schema import AMOUNT, EXACT

_UNITS_US = (("d", 86_400 * 10**6), ("h", 3_600 * 10**6), ("m", 60 * 10**6))
_CALENDAR = {
    "weekend": "1 on Saturday and Sunday, else 0; UTC",
    "night": "1 from 0:00 to 6:59, else 0; UTC",
}
_WORDS = {
    "count": "number of {rows}",
    "flagged": "number of {rows} known as fraud",
    "share": "{rows} known as fraud / {rows}",
    "sum": "sum of {of}",
    "mean": "mean of {of}",
    "min": "smallest {of}",
    "max": "largest {of}",
    "last": "{of} of the {nth}newest {row} before this one",
    "change": "{of} of the newest {row} before this one, minus the {nth}newest",
    "distinct": "number of different values of {of}",
    "approx_distinct": "number of different values of {of}, about",
    "std": "standard deviation of {of}",
    "slope": "trend of {of} per hour, by least squares",
    "ewm": "mean of {of}, weighted by half for each {half_life} of age",
    "sessions": "number of sessions: {rows} more than {gap} after the one before",
    "time_since_last": "seconds since the newest {row} before this one",
}


def duration_text(duration_us: int) -> str:
    """Format microseconds as in the file: 7d, 90m, 30s."""
    for unit, size_us in _UNITS_US:
        if duration_us and duration_us % size_us == 0:
            return f"{duration_us // size_us}{unit}"
    return f"{duration_us / 1e6:g}s"


def feature_text(feature: Feature, spec: FeatureSpec) -> str:
    """Define a feature in one line."""
    if feature.aggregate is not None:
        entity = spec.entities[feature.entity]
        what = _WORDS[feature.aggregate].format(
            rows=spec.rows_noun,
            row=spec.rows_noun.removesuffix("s"),
            of=feature.of or AMOUNT,
            nth=f"{_ordinal(feature.nth)} " * bool(feature.nth),
            half_life=duration_text(feature.half_life_us),
            gap=duration_text(feature.gap_us),
        )
        text = f"{what}, of the {entity.name}"
    elif feature.table is not None:
        (table,) = [one for one in spec.tables if one.name == feature.table]
        entity = spec.entities[table.entity]
        text = f"{feature.column} of the {entity.name} in table {table.name}"
        if table.max_age_us:
            text += f", not older than {duration_text(table.max_age_us)}"
    elif feature.calendar is not None:
        text = _CALENDAR[feature.calendar]
    elif feature.category is not None:
        words = ", ".join(spec.field(feature.category).vocabulary)
        text = f"place of {feature.category} among {words}, from 0; "
        if math.isnan(feature.default):
            text += "NaN without, or if none of these"
        else:
            text += f"{MISSING_CODE} without, {UNSEEN_CODE} if none of these"
    elif feature.hook is not None and spec.hook is not None:
        read = (*spec.hook.request, *_names(spec, spec.hook.features))
        text = f"{feature.hook} of {Path(spec.hook.path).name}"
        text += f", which reads {', '.join(read)}" if read else ""
    elif feature.inputs is not None:
        first, second = (spec.features[at].name for at in feature.inputs)
        sign = "-" if feature.derived == "difference" else "/"
        text = f"{first} {sign} {second}"
        if feature.derived == "rate_of_change":
            text += f", each for an equal time (· {feature.scale:g})"
    else:
        text = f"{feature.field} of the request"
    if feature.range is not None:
        text += "; within {:g} … {:g}".format(*feature.range)
    return text


def _ordinal(number: int) -> str:
    """Format 2 as 2nd."""
    teen = number // 10 % 10 == 1
    ending = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _names(spec: FeatureSpec, places: Iterable[int]) -> list[str]:
    return [spec.features[at].name for at in places]


def always_there(feature: Feature) -> bool:
    """Return True if a feature never needs its default."""
    coded = feature.category is not None and not math.isnan(feature.default)
    return coded or feature.calendar is not None or feature.field == AMOUNT


def window_text(feature: Feature, spec: FeatureSpec) -> str:
    """Describe the time span of a feature; empty if it uses the request alone."""
    if feature.aggregate is None:
        return ""
    entity = spec.entities[feature.entity]
    text = duration_text(entity.windows_us[feature.window])
    if entity.delay_us:
        text += f", until {duration_text(entity.delay_us)} before"
    rounding = _rounding_text(entity, feature.window)
    return f"{text}; {rounding}" if rounding else text


def _rounding_text(entity: Entity, window: int) -> str:
    """Describe to which times a window is rounded; empty if it is exact."""
    if entity.tiles is None:
        return ""
    text = f"begin rounded down to {duration_text(entity.rounding_us[window])}"
    return text + f", end to {duration_text(entity.edge_us)}" * bool(entity.delay_us)


def state_text(entity: Entity, noun: str = "purchases") -> str:
    """
    Describe the data stored of an entity for each row, and its retention.

    Args:
        entity: The entity.
        noun: Word for the product's rows.
    """
    size = ENTRY.itemsize + COLUMN_BYTES * len(entity.columns)
    extra = f" ({', '.join(entity.columns)})" if entity.columns else ""
    retention = duration_text(entity.horizon_us)
    if entity.tiles:
        least = "at least " if entity.most_bytes else ""
        return (
            f"{entity.name}: {least}{entity.cap} {noun} of {size} bytes{extra} "
            f"and up to {entity.tiles.most_tiles} tiles of "
            f"{entity.tiles.record_bytes}, at most "
            f"{entity.value_bytes:,} bytes, for {retention}"
        )
    hop = "; hop: auto, which a history decides" if entity.auto else ""
    row = noun.removesuffix("s")
    return f"{entity.name}: {size} bytes a {row}{extra}, for {retention}{hop}"


def _hop_text(entity: Entity) -> str:
    """Describe the tiles of an entity."""
    if entity.tiles is None:
        return "0"
    widths = [duration_text(width) for width, _ in entity.tiles.levels]
    return f"tiles of {', '.join(widths)}"


def needed_entities(feature: Feature, spec: FeatureSpec) -> tuple[int, ...]:
    """
    Return the entities whose state a feature needs, directly or through its inputs.
    """
    if feature.aggregate is not None:
        return (feature.entity,)
    found = set()
    for at in feature.inputs or ():
        found |= set(needed_entities(spec.features[at], spec))
    return tuple(sorted(found))


def vector_parts(feature: Feature, spec: FeatureSpec) -> dict[str, str]:
    """Split a feature into all parts on which its number depends, by name."""
    parts: dict[str, str | None] = {
        "field": feature.field,
        "category": feature.category,
        "calendar": feature.calendar,
        "aggregate": feature.aggregate,
        "of": feature.of,
        "nth": str(feature.nth or ""),
        "half_life": duration_text(feature.half_life_us) * bool(feature.half_life_us),
        "gap": duration_text(feature.gap_us) * bool(feature.gap_us),
        "derived": feature.derived,
        "hook": feature.hook,
        "default": f"{feature.default:g}",
    }
    if feature.aggregate is not None:
        entity = spec.entities[feature.entity]
        parts["entity"] = entity.name
        parts["window"] = duration_text(entity.windows_us[feature.window])
        parts["rounding"] = _rounding_text(entity, feature.window)
        parts |= {"key": entity.key, "delay": duration_text(entity.delay_us)}
    for one in spec.tables:
        if one.name == feature.table:
            parts["table"] = f"{one.name}.{feature.column}"
            parts["key"] = spec.entities[one.entity].key
            parts["not older than"] = (
                duration_text(one.max_age_us) if one.max_age_us else ""
            )
    if feature.inputs is not None:
        parts["inputs"] = ", ".join(_names(spec, feature.inputs))
    if feature.range is not None:
        parts["range"] = "{:g} … {:g}".format(*feature.range)
    if feature.hook is not None and spec.hook is not None:
        parts["code"] = spec.hook.digest[:12]
        parts["reads"] = "; ".join(_read_text(one, spec) for one in spec.hook.request)
    for field in spec.fields:
        if field.name in (feature.field, feature.category, feature.of):
            parts["decimals"] = decimals_text(field.decimals)
            parts["vocabulary"] = ", ".join(field.vocabulary)
    return {name: part for name, part in parts.items() if part}


def decimals_text(decimals: int | None) -> str:
    """Format a field's decimals as in features.yaml."""
    return EXACT if decimals is None else str(decimals)


def _read_text(name: str, spec: FeatureSpec) -> str:
    """Describe a column of the request as the hook's input."""
    if name not in spec.field_names:
        return name
    field = spec.field(name)
    number = EXACT if field.decimals is None else f"{field.decimals} decimals"
    words = (number,) if field.type == "number" else ()
    return f"{name} ({', '.join(words or field.vocabulary)})"


def bit_parts(feature: Feature) -> dict[str, str]:
    """Return the parts of a feature that only set bits of the answer."""
    parts = {
        "essential": "yes" if feature.essential else "",
        "max_age": duration_text(feature.max_age_us) if feature.max_age_us else "",
    }
    return {name: part for name, part in parts.items() if part}


What = Literal["added", "removed", "changed", "moved"]
# state: the store must hold other values. vector: the same values give other numbers.
# bits: the numbers stay, and only the degraded bits of the answer change.
Kind = Literal["state", "vector", "bits"]


class Change(msgspec.Struct, frozen=True):
    """Describe one feature that differs; `details` name parts as `old → new`."""

    feature: str
    what: What
    kind: Kind
    details: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True):
    """
    Hold the differences between two specs.

    Attributes:
        changes: Features, in the order of the new file, removed ones last.
        state: Differences in the stored values, per entity.
        same_state: True if one read of the store serves both vectors.
        same_vector: True if both produce the same vector: a model of one fits the
            other.
    """

    changes: tuple[Change, ...]
    state: tuple[str, ...]
    same_state: bool
    same_vector: bool


def compare(old: FeatureSpec, new: FeatureSpec) -> Comparison:
    """Compare two specs, feature by feature."""
    state = _state_changes(old, new)
    before = {one.name: one for one in old.features}
    after = {one.name: one for one in new.features}
    moved = _moved(
        [name for name in before if name in after],
        [name for name in after if name in before],
    )
    changes = []
    for name, feature in after.items():
        kind = _kind(feature, new, state)
        if name not in before:
            changes.append(Change(name, "added", kind, ()))
            continue
        details = _details(vector_parts(before[name], old), vector_parts(feature, new))
        if details:
            changes.append(Change(name, "changed", kind, details))
        elif bits := _details(bit_parts(before[name]), bit_parts(feature)):
            changes.append(Change(name, "changed", "bits", bits))
        if name in moved:
            changes.append(Change(name, "moved", "vector", (moved[name],)))
    for name, feature in before.items():
        if name not in after:
            kind = _kind(feature, old, state)
            changes.append(Change(name, "removed", kind, ()))
    return Comparison(
        changes=tuple(changes),
        state=tuple(text for texts in state.values() for text in texts),
        same_state=old.state_hash == new.state_hash,
        same_vector=old.spec_hash == new.spec_hash,
    )


def _kind(feature: Feature, spec: FeatureSpec, state: dict[str, list[str]]) -> Kind:
    """
    Return "state" if a changed feature needs an entity whose stored values change.
    """
    names = {spec.entities[at].name for at in needed_entities(feature, spec)}
    return "state" if names & state.keys() else "vector"


def _details(old: dict[str, str], new: dict[str, str]) -> tuple[str, ...]:
    names = [*old, *(name for name in new if name not in old)]
    return tuple(
        f"{name}: {old.get(name, 'none')} → {new.get(name, 'none')}"
        for name in names
        if old.get(name) != new.get(name)
    )


def _moved(old: list[str], new: list[str]) -> dict[str, str]:
    """Return features at a different position among those that both specs have."""
    place = {name: at for at, name in enumerate(old)}
    return {
        name: f"{place[name] + 1} → {at + 1} of {len(new)} common ones"
        for at, name in enumerate(new)
        if place[name] != at
    }


def _state_changes(old: FeatureSpec, new: FeatureSpec) -> dict[str, list[str]]:
    """Describe, per entity, the differences in its stored values."""
    stored_old, stored_new = _stored_parts(old), _stored_parts(new)
    found: dict[str, list[str]] = {}
    for name in [*stored_old, *(name for name in stored_new if name not in stored_old)]:
        if name not in stored_new or name not in stored_old:
            difference = "no longer stored" if name in stored_old else "newly stored"
            found[name] = [f"{name}: {difference}"]
            continue
        details = _details(stored_old[name], stored_new[name])
        if details:
            found[name] = [f"{name}: {detail}" for detail in details]
    if not found and old.state_hash != new.state_hash:
        # The product's name, a generation, or the order of the entities.
        for name in stored_new:
            found[name] = [f"{name}: under another key"]
    return found


def _stored_parts(spec: FeatureSpec) -> dict[str, dict[str, str]]:
    forms = {
        one.name: f"{one.name}:{one.type}:{decimals_text(one.decimals)}"
        for one in spec.fields
    }
    return {
        one.name: {
            "key": one.key,
            "delay": duration_text(one.delay_us),
            "retained for": duration_text(one.horizon_us),
            "cap": str(one.cap),
            "hop": _hop_text(one),
            "columns": ", ".join(forms.get(name, name) for name in one.columns)
            or "none",
        }
        for one in spec.entities
    }
