"""Catalogue a product's features: definition, state, and releases that use each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from tollgate.errors import InputError, TollgateError
from tollgate.features.spec.description import (
    always_there,
    feature_text,
    needed_entities,
    state_text,
    vector_parts,
    window_text,
)
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release


def catalogue(
    spec: FeatureSpec, repository: Path, *, name: str | None, source: Path
) -> list[dict[str, Any]]:
    """
    Describe the features of a spec.

    Args:
        spec: The features.
        repository: Repository with the releases of the product to look into.
        name: One feature; all if None.
        source: File of the spec, for messages.

    Returns:
        One row per feature: feature, definition, window, default, essential, state (of
        each entity it needs) and releases that use it with exactly this definition.

    Raises:
        InputError: No feature has that name.
    """
    if name is not None and name not in spec.feature_names:
        known = ", ".join(spec.feature_names)
        raise InputError(source, f"no such feature; there are {known}", where=name)
    releases = _released_parts(spec.product, repository)
    return [
        {
            "feature": one.name,
            "definition": feature_text(one, spec),
            "window": window_text(one, spec),
            "default": None if always_there(one) else one.default,
            "essential": one.essential,
            "state": [
                state_text(spec.entities[at]) for at in needed_entities(one, spec)
            ],
            "releases": [
                release
                for release, parts in releases.items()
                if parts.get(one.name) == vector_parts(one, spec)
            ],
        }
        for one in spec.features
        if name in (None, one.name)
    ]


def _released_parts(
    product: str, repository: Path
) -> dict[str, dict[str, dict[str, str]]]:
    """Parse the features of every release; return nothing if there is no release."""
    try:
        release = read_release(repository, product=product)
        step = read_product(repository, product).features_step
    except TollgateError:
        return {}
    versions = {
        f"{release.name} (active)": release.versions,
        "previous": release.previous or {},
        "challenger": release.challenger.versions if release.challenger else {},
    }
    found = {}
    for label, pinned in versions.items():
        if step in pinned:
            used = load_spec(repository / step / str(pinned[step]) / SPEC_FILE)
            found[label] = {one.name: vector_parts(one, used) for one in used.features}
    return found


def catalogue_table(rows: list[dict[str, Any]]) -> Table:
    """
    Format the catalogue as a table; describe the state of each entity once, below it.
    """
    states = dict.fromkeys(text for row in rows for text in row["state"])
    caption = "\n".join(f"state of {text}" for text in states) or None
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    for title in ("feature", "definition", "window", "default", "state", "used by"):
        table.add_column(title, overflow="fold", no_wrap=title == "feature")
    for row in rows:
        default = "" if row["default"] is None else f"{row['default']:g}"
        if row["essential"]:
            default = f"{default} (essential)"
        entities = ", ".join(text.partition(":")[0] for text in row["state"])
        table.add_row(
            row["feature"],
            row["definition"],
            row["window"],
            default,
            entities,
            ", ".join(row["releases"]),
        )
    return table
