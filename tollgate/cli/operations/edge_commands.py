"""Decide on devices: `edge key|pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.cli.options import Repository
from tollgate.cli.repositories import open_for_reading


def key(
    private: Annotated[
        Path, typer.Argument(help="File for the private key, which signs; PEM.")
    ],
    public: Annotated[
        Path, typer.Argument(help="File for the public key, which devices have; PEM.")
    ],
) -> None:
    """Generate an Ed25519 key, with which bundles are signed and verified."""
    from tollgate.edge.bundle import make_keys

    make_keys(private, public)
    console.result(f"{private}\n{public}")


def pack(
    product: Annotated[
        str, typer.Argument(help="Product, by the name of its ensemble.")
    ],
    key: Annotated[Path, typer.Option(help="Private key to sign with: Ed25519, PEM.")],
    out: Annotated[Path, typer.Option(help="Bundle to write.")],
    pruned: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a smaller model, from `tollgate convert --prune`, for when "
            "time or memory is short."
        ),
    ] = None,
    rules: Annotated[
        bool, typer.Option(help="Let the device decide without a model, if it must.")
    ] = False,
    repository: Repository = None,
) -> None:
    """Write the active release of a product into one signed file for devices."""
    from tollgate.edge.bundle import read_private_key
    from tollgate.edge.packing import pack as pack_release

    chosen = console.settings(repository=repository, product=product)
    signing = read_private_key(key)
    with open_for_reading(chosen) as folder:
        made = pack_release(
            folder,
            product=chosen.product,
            key=signing,
            out=out,
            pruned=pruned,
            rules=rules,
        )
    console.result(
        f"{out}: {made.release} of {made.product}, sequence {made.sequence}, "
        f"{len(made.files)} files, {out.stat().st_size:,} bytes; variants "
        + ", ".join(one.name for one in made.variants)
    )
