"""Inspect and compute features: `tollgate features build|replay|show|diff`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from rich.table import Table

from tollgate.cli import console, table_files
from tollgate.cli.history_files import read_history_file
from tollgate.cli.options import Arrival, HistoryFile, Json, Product
from tollgate.errors import InputError, TollgateError

if TYPE_CHECKING:
    from tollgate.features.spec.description import Comparison
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.history import History
    from tollgate.settings import Settings


Spec = Annotated[
    Path | None,
    typer.Option(
        help="Path of the features.yaml to use.",
        show_default="that of the product's release",
    ),
]

_OTHER_STATE = 1  # exit status of a comparison: materialize first


def show(
    name: Annotated[
        str | None, typer.Argument(help="Feature to show; all if omitted.")
    ] = None,
    spec: Spec = None,
    product: Product = None,
    repository: Annotated[
        str | None,
        typer.Option(
            help="Model repository with the releases to list.",
            show_default="model_repository",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """
    Show each feature's definition, the data it needs, and the releases that use it.
    """
    from tollgate.features.spec.feature_spec import load_draft

    chosen = console.settings(product=product, repository=repository)
    source = _chosen_spec(spec, chosen)
    folder = chosen.repository_path
    rows = catalogue(load_draft(source), folder, name=name, source=source)
    if as_json:
        console.print_json(rows)
    else:
        console.out.print(catalogue_table(rows))


def _chosen_spec(path: Path | None, chosen: Settings) -> Path:
    """
    Return the user's features.yaml, or that of the product's release.

    Raises:
        RepositoryError: The repository has no such product or release.
    """
    from tollgate.features.spec.feature_spec import SPEC_FILE
    from tollgate.repository.releases.served_versions import read_served

    if path is not None:
        return path
    console.require_products(chosen, chosen.products)
    served = read_served(chosen.repository_path, chosen.product)
    return served.file(served.product.features_step, name=SPEC_FILE)


def diff(
    old: Annotated[Path, typer.Argument(help="Path of the old features.yaml.")],
    new: Annotated[
        Path, typer.Argument(help="Path of the new features.yaml, of the same product.")
    ],
    as_json: Json = False,
) -> None:
    """
    Compare two features.yaml: which features differ, and whether state must be rebuilt.

    Exit status 0: one read of the store serves both; 1: materialize another state
    first; 2: a file cannot be used.
    """

    from tollgate.features.spec.description import compare
    from tollgate.features.spec.feature_spec import load_spec

    found = compare(load_spec(old), load_spec(new))
    if as_json:
        console.print_json(found)
    else:
        _print_comparison(found)
    if not found.same_state:
        raise typer.Exit(_OTHER_STATE)


def _print_comparison(found: Comparison) -> None:
    from rich.table import Table

    if found.changes:
        table = Table("feature", "", "changes", "how", box=None, pad_edge=False)
        for one in found.changes:
            table.add_row(one.feature, one.what, one.kind, "; ".join(one.details))
        console.out.print(table)
    for text in found.state:
        console.result(f"state of {text}")
    if not found.same_state:
        verdict = "another state: materialize it under its own keys first"
    elif found.same_vector:
        verdict = "the same vector from the same state: models fit both"
    else:
        verdict = "compatible: the same state, so one read of the store serves both"
    console.result(verdict)


def build(
    history: HistoryFile,
    out: Annotated[Path, typer.Argument(help="Path of the Parquet file to write.")],
    spec: Spec = None,
    product: Product = None,
    table: table_files.TableFiles = None,
    dtype: Annotated[
        Literal["float64", "float32"],
        typer.Option(
            help="Type of the feature columns; float32 gives the vector as served."
        ),
    ] = "float64",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to copy from the history, such as one to report "
            "errors by; may be repeated.",
            metavar="COLUMN",
        ),
    ] = None,
    arrival: Arrival = None,
) -> None:
    """Compute the features of a whole history, as training sees them."""
    import polars as pl

    from tollgate.features.offline import build as compute
    from tollgate.features.offline import feature_columns
    from tollgate.simulate import write

    source = _chosen_spec(spec, console.settings(product=product))
    _try_hook(source)
    loaded, purchases, _ = resolve_features(source, history, arrival=arrival)
    taken = {one.name: rows for one, rows in table_files.read_tables(table, loaded)}
    with console.progress("computing features") as advance:
        features = compute(loaded, purchases, tables=taken, progress=advance)
    columns: dict[str, object] = {
        "transaction_id": [one.decode() for one in purchases.transaction_id],
        **{
            key: [one.decode() for one in ids]
            for key, ids in purchases.entity_id.items()
        },
        "event_time": purchases.event_time_us.view("datetime64[us]"),
        "label": purchases.label,
    }
    columns |= feature_columns(loaded.feature_names, features.astype(dtype))
    if keep:
        columns |= _copied_columns(history, keep, taken=columns)
    write(pl.DataFrame(columns), out)
    console.say(f"{len(purchases):,} rows of {features.shape[1]} features → {out}")


def resolve_features(
    spec: Path, history: Path, *, arrival: str | None
) -> tuple[FeatureSpec, History, dict[str, str]]:
    """
    Read features and history; choose and print the hop of each entity with `hop: auto`.

    Returns:
        The features, the history, and the chosen hops by entity.
    """
    from tollgate.features.hop_choice import resolve_hops
    from tollgate.features.spec.feature_spec import load_draft

    purchases = read_history_file(history, spec=load_draft(spec), arrival=arrival)
    loaded, choices = resolve_hops(spec, purchases)
    for one in choices:
        console.say(f"{one.text}; write it into {spec} to serve these features")
    return loaded, purchases, {one.entity: one.hop for one in choices}


def _try_hook(spec: Path) -> None:
    """Test the hook before anything is trained with it, and print its cost."""
    from tollgate.repository.models.hook_trial import BUDGET_US, prove_hook

    took_us = prove_hook(spec)
    if took_us is not None:
        text = f"hook: {took_us:.0f} µs for 32 rows (at most {BUDGET_US:.0f})"
        console.say(f"{text}; a row alone is as in any batch")


_EVER_US = 2**62  # µs since the epoch: after every purchase


def replay(
    history: HistoryFile,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--from",
            formats=["%Y-%m-%d"],
            help="First day to compare; by default the history's first.",
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Day after the last day to compare; by default to the history's end.",
        ),
    ] = None,
    spec: Spec = None,
    product: Product = None,
    table: table_files.TableFiles = None,
    store_url: Annotated[
        str | None,
        typer.Option(help="URL of the Redis to fill, instead of a temporary one."),
    ] = None,
    batch_rows: Annotated[int, typer.Option(help="Events per store call.")] = 1_000,
    arrival: Arrival = None,
    as_json: Json = False,
) -> None:
    """
    Replay a history through the online path; compare each bit with the offline path.
    """
    from tollgate.feature_parity import compare_with_offline
    from tollgate.replay import purchases_in_reach

    source = _chosen_spec(spec, console.settings(product=product))
    loaded, whole, _ = resolve_features(source, history, arrival=arrival)
    from_us = int(np.min(whole.event_time_us, initial=_EVER_US))
    if since is not None:
        from_us = _us(since.date())
    purchases = purchases_in_reach(
        whole,
        spec=loaded,
        from_us=from_us,
        until_us=_EVER_US if until is None else _us(until.date()),
    )
    tables = table_files.read_tables(table, loaded)
    with console.progress("replaying") as advance:
        found = compare_with_offline(
            loaded,
            purchases,
            tables,
            read_from_us=from_us,
            store_url=store_url,
            batch_rows=batch_rows,
            progress=advance,
        )
    if as_json:
        counts = {"vectors": found.read, "differing": found.differing}
        console.print_json({**counts, "late": found.late})
    else:
        text = f"{found.read:,} vectors read online, {found.differing:,} differ"
        late = f"; {found.late:,} came too late and are not compared"
        console.result(f"{text} from offline{late if found.late else ''}")
    if found.differing or not found.read:
        raise typer.Exit(1)


def _us(day: date) -> int:
    return int(np.datetime64(day, "us").astype(np.int64))


def _copied_columns(
    path: Path, names: list[str], *, taken: Mapping[str, object]
) -> dict[str, object]:
    """Read further columns of a history's file; its rows are in the same order."""
    from tollgate.history.table import read_table

    table = read_table(path)
    for name in names:
        if name not in table.columns:
            raise InputError("--keep", f"{path} has no column {name!r}")
        if name in taken:
            raise InputError("--keep", f"{name!r} is there already")
    return {name: table[name] for name in names}


def catalogue(
    spec: FeatureSpec, repository: Path, *, name: str | None, source: Path
) -> list[dict[str, Any]]:
    """
    Describe the features of a spec.

    Args:
        repository: Repository with the releases of the product to look into.
        name: One feature; all if None.

    Returns:
        One row per feature: feature, definition, window, default, essential, state (of
        each entity it needs) and releases that use it with exactly this definition.

    Raises:
        InputError: No feature has that name.
    """
    from tollgate.features.spec.description import (
        always_there,
        feature_text,
        needed_entities,
        state_text,
        vector_parts,
        window_text,
    )

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
                state_text(spec.entities[at], spec.rows_noun)
                for at in needed_entities(one, spec)
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
    from tollgate.features.spec.description import vector_parts
    from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
    from tollgate.repository.product_models import read_product
    from tollgate.repository.releases.release_file import read_release

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
    """Format the catalogue as a table; describe each entity's state once, below it."""
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
