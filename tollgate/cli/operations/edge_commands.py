"""Decide on devices: `edge key|pack|run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.cli.free_ports import require_free_places
from tollgate.cli.options import Repository
from tollgate.cli.repositories import open_for_reading
from tollgate.cli.signals import stop_on_signal


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
    repository: Repository = None,
) -> None:
    """Write the active release of a product into one signed file for devices."""
    from tollgate.edge.bundle import read_private_key
    from tollgate.edge.packing import pack as pack_release

    chosen = console.settings(repository=repository, product=product)
    signing = read_private_key(key)
    with open_for_reading(chosen) as folder:
        made = pack_release(folder, product=chosen.product, key=signing, out=out)
    console.result(
        f"{out}: {made.release} of {made.product}, sequence {made.sequence}, "
        f"{len(made.files)} files, {out.stat().st_size:,} bytes"
    )


def run(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle that `tollgate edge pack` wrote.")
    ],
    key: Annotated[
        Path, typer.Option(help="Public key of those who sign bundles: Ed25519, PEM.")
    ],
    state: Annotated[
        Path, typer.Option(help="Folder of windows and journal; created if missing.")
    ],
    listen: Annotated[
        str, typer.Option(help="address:port for gRPC.")
    ] = "127.0.0.1:8001",
    spool_mib: Annotated[
        int,
        typer.Option(
            help="Most MiB of sealed journal; beyond that the oldest is deleted.", min=4
        ),
    ] = 64,
    seal_after: Annotated[
        float,
        typer.Option(help="Longest time before a record is sealed, seconds.", min=1),
    ] = 300.0,
) -> None:
    """Decide on this device, over gRPC, until Ctrl-C or SIGTERM."""
    from tollgate.edge.device import Device
    from tollgate.edge.service import DeviceServer

    require_free_places({"--listen": listen})
    stopped = stop_on_signal()
    with (
        Device.open(
            bundle,
            key=key,
            state=state,
            spool_bytes=spool_mib << 20,
            seal_after_s=seal_after,
        ) as device,
        DeviceServer(device, address=listen) as server,
    ):
        made = device.manifest
        console.say(
            f"{made.release} of {made.product} on {listen.rpartition(':')[0]}:"
            f"{server.port}; state in {state}; Ctrl-C ends"
        )
        stopped.wait()
