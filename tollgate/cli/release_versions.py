"""List versions of a product's model and whether each is valid: `release versions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.cli import console
from tollgate.cli.options import Json, Repository
from tollgate.cli.release import Product, State
from tollgate.cli.repositories import open_for_reading

if TYPE_CHECKING:
    from tollgate.settings import Settings

_RELEASED = "released"


class Row(msgspec.Struct, frozen=True):
    """
    A version of the model.

    Attributes:
        version: Its number.
        state: "released", "sound", "incomplete" or "bad".
        releases: Releases that contain it.
        reason: Why it is not sound; empty when it is.
        moved_to: Folder that a bad version was moved to; empty while it is at its
            number.
    """

    version: int
    state: str
    releases: list[str] = []
    reason: str = ""
    moved_to: str = ""


def versions(
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    List the versions of the model: released, sound, incomplete or bad.

    For a version that no release names, the server of --state reports the state if it
    serves this repository; otherwise the command checks the version here.
    """
    from rich.markup import escape
    from rich.table import Table

    chosen = console.settings(repository=repository, product=product, state=state)
    with open_for_reading(chosen) as folder:
        rows = _rows(chosen, folder)
    if as_json:
        console.print_json(rows)
        return
    table = Table("version", "", "releases", "why", box=None)
    for row in rows:
        where = f"moved to {row.moved_to}" if row.moved_to else ""
        why = "; ".join(filter(None, (row.reason, where)))
        table.add_row(str(row.version), row.state, ", ".join(row.releases), escape(why))
    console.out.print(table)


def _rows(chosen: Settings, folder: Path) -> list[Row]:
    from tollgate.repository.product import read_product
    from tollgate.repository.quarantine import list_quarantined, releases_by_version
    from tollgate.repository.versions import list_versions

    step = read_product(folder, chosen.product).model_step
    named = releases_by_version(folder, product=chosen.product, step=step)
    rows = [
        Row(one.version, "bad", [], one.reason, str(one.folder))
        for one in list_quarantined(folder / step)
    ]
    reported = _reported(chosen)
    for version in list_versions(folder, step):
        if version in named:
            rows.append(Row(version, _RELEASED, named[version]))
        else:
            rows.append(reported.get(version) or _validated(chosen, folder, version))
    return sorted(rows, key=lambda row: (row.version, row.moved_to))


def _reported(chosen: Settings) -> dict[int, Row]:
    """Request the findings of the local server, which knows the copies in progress."""
    from tollgate.errors import ServerError
    from tollgate.server.address import find_server
    from tollgate.supervisor.replicas import query_versions

    found = find_server(chosen.state_path)
    if found is None or found.repository_name != chosen.repository_name:
        return {}
    try:
        detected = query_versions(found.side_port_url)
    except ServerError:
        return {}
    return {
        one.version: Row(one.version, one.state, [], one.reason)
        for one in detected
        if one.product == chosen.product and not one.moved_to
    }


def _validated(chosen: Settings, folder: Path, version: int) -> Row:
    from tollgate.supervisor.judging import validate_in_subprocess

    verdict = validate_in_subprocess(folder, product=chosen.product, version=version)
    return Row(version, verdict.state, [], verdict.reason)
