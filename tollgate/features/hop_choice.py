"""Choose the hop of entities with `hop: auto` from a history."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import yaml

from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import (
    Entity,
    FeatureSpec,
    load_draft,
    load_with_hops,
)
from tollgate.features.windows.capacity import (
    highest_count,
    overflowing,
    reach_text,
    require_within_cap,
)

if TYPE_CHECKING:
    from tollgate.history import History


class HopChoice(msgspec.Struct, frozen=True):
    """
    The hop of one entity.

    Attributes:
        entity: Its name.
        hop: `0`, or a width.
        reason: The highest count of an id within its widest window, and the cap.
    """

    entity: str
    hop: str
    reason: str

    @property
    def text(self) -> str:
        """Return the line to print."""
        return f"{self.entity}: hop: {self.hop}, because {self.reason}"


def resolve_hops(
    path: Path, history: History
) -> tuple[FeatureSpec, tuple[HopChoice, ...]]:
    """
    Read a features.yaml with the hops that a history needs.

    An entity with `hop: auto` gets 0 if the store holds every event that a window of
    the history counts, and otherwise the smallest hop whose values are small enough.

    Args:
        path: The file.
        history: N purchases in any order.

    Returns:
        The features, with the hashes of a file that has these hops written in, and the
        choice for each entity with `hop: auto`.

    Raises:
        SpecError: The file cannot be used.
        InputError: An id exceeds the cap, and the entity cannot have a hop.
    """
    draft = load_draft(path)
    choices = tuple(_choice(one, history) for one in draft.entities if one.auto)
    hops = {one.entity: one.hop for one in choices}
    return load_with_hops(path, hops), choices


def write_with_hops(path: Path, folder: Path, hops: Mapping[str, str]) -> Path:
    """
    Copy a features.yaml with its hook into a folder, with other hops written in.

    Args:
        hops: The hop of each entity that has `hop: auto` in the file.

    Returns:
        The copy.
    """
    text = path.read_text("utf-8")
    root: Any = yaml.compose(text, yaml.SafeLoader)
    found = {
        name.value: hop
        for part, entities in root.value
        if part.value == "entities"
        for name, entity in entities.value
        for key, hop in entity.value
        if key.value == "hop"
    }
    for name, node in reversed(found.items()):
        if name in hops:
            begin, end = node.start_mark.index, node.end_mark.index
            text = text[:begin] + hops[name] + text[end:]
    copy = folder / path.name
    copy.write_text(text, "utf-8")
    hook = path.with_name(HOOK_FILE)
    if hook.exists():
        shutil.copyfile(hook, folder / HOOK_FILE)
    return copy


def _choice(entity: Entity, history: History) -> HopChoice:
    """Choose the hop of one entity."""
    code = history.entity_codes(entity.key)
    rows = np.lexsort((history.event_time_us, code))
    code, time_us = code[rows], history.event_time_us[rows]
    count = f"{highest_count(entity, code, time_us):,} events within"
    count += f" {reach_text(entity)}"
    stored = f"the store holds {entity.cap:,}"
    if not len(overflowing(entity, code, time_us)):
        reason = f"no id has more than {count}; {stored} of each"
        return HopChoice(entity=entity.name, hop="0", reason=reason)
    if not entity.fit.hop or entity.fit.without_cap:
        require_within_cap(
            entity,
            code,
            time_us,
            ids=history.entity_id[entity.key],
            transaction_id=history.transaction_id,
            rows=rows,
            source=history.source,
        )
    reason = f"an id has up to {count}; without a hop {stored} of each"
    return HopChoice(entity=entity.name, hop=entity.fit.hop, reason=reason)
