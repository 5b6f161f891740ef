"""Export one decision for a reviewer: `journal export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.cli.journal_options import (
    Anchor,
    Folder,
    Keys,
    default_anchor,
    default_folder,
    default_keys,
)
from tollgate.cli.options import Json, Product, State


def export(
    decision: Annotated[
        str, typer.Argument(help="Transaction id, or WRITER:NUMBER of a record.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Path of the HTML page to write.", show_default="decision.html"
        ),
    ] = None,
    customer: Annotated[
        str | None,
        typer.Option(
            help="Customer id of the purchase; if omitted, the keys of all "
            "customers are tried."
        ),
    ] = None,
    folder: Folder = None,
    keys: Keys = None,
    anchor: Anchor = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Write one decision, with its proof, as a page for a reviewer."""
    from tollgate.audit.anchor import read_anchor
    from tollgate.audit.kept import newest_archived_release
    from tollgate.audit.lookup import find_record
    from tollgate.audit.page import decision_page
    from tollgate.audit.subjects import FILE, Subjects
    from tollgate.errors import InputError
    from tollgate.repository.atomic import replace_file

    chosen = console.settings(
        product_is_known=folder is None, product=product, state=state
    )
    place = folder or default_folder(chosen)
    known = keys or default_keys(place)
    found = find_record(
        place,
        decision,
        subjects=Subjects(known) if (known / FILE).exists() else None,
        customer=customer,
        marks=read_anchor(anchor or default_anchor(place)),
    )
    archived = newest_archived_release(place, found.values["release"])
    target = out or Path("decision.html")
    try:
        replace_file(target, decision_page(found, archived).encode(), mode=0o600)
    except OSError as exc:
        raise InputError(target, f"cannot be written: {exc.strerror}") from exc
    for problem in found.evidence.problems:
        console.say(f"not as it was sealed: {problem}")
    decision, release = found.values["decision"], found.values["release"]
    if as_json:
        report = {
            "decision": decision,
            "release": release,
            "page": target,
            "problems": found.evidence.problems,
        }
        console.print_json(report)
    else:
        console.out.print(f"{decision} of {release} → {target}", highlight=False)
    if found.evidence.problems:
        raise typer.Exit(1)
