"""Remove old segments, with or without a running worker: `journal retain`."""

from __future__ import annotations

from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.cli.journal import seconds
from tollgate.cli.journal_options import (
    Anchor,
    Folder,
    default_anchor,
    default_folder,
)
from tollgate.cli.options import Json, Product, State


def retain(
    keep: Annotated[
        str, typer.Option(help="Retention period of segments, such as 400d.")
    ],
    folder: Folder = None,
    anchor: Anchor = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    Remove segments older than the retention period; their links stay in the chain.
    """
    from tollgate.audit.anchor import AnchorFile
    from tollgate.audit.chain import Chain
    from tollgate.audit.links import link_name, no_journal
    from tollgate.audit.retention import retain as remove
    from tollgate.audit.times import now_us

    chosen = console.settings(
        product_is_known=folder is None, product=product, state=state
    )
    place = folder or default_folder(chosen)
    before_us = now_us() - int(seconds(keep, flag="--keep") * 1e6)
    if not (place / link_name(1)).is_file():
        raise no_journal(place)
    chain = Chain(
        place,
        product=chosen.product,
        anchor=AnchorFile(anchor or default_anchor(place)),
    )
    tombstone = remove(chain, before_us=before_us)
    count = tombstone.facts["records"] if tombstone else "0"
    if as_json:
        console.print_json({"removed": int(count)})
    else:
        console.out.print(f"removed {int(count):,} decisions", highlight=False)
