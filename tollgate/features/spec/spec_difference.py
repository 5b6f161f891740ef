"""Compare two specs of a product: list the changes and the work that they require."""

from __future__ import annotations

from typing import Literal

import msgspec

from tollgate.features.spec.description import (
    bit_parts,
    decimals_text,
    duration_text,
    needed_entities,
    vector_parts,
)
from tollgate.features.spec.spec_definition import Feature, FeatureSpec

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
            "columns": ", ".join(forms.get(name, name) for name in one.columns)
            or "none",
        }
        for one in spec.entities
    }
