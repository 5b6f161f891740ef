"""
Decide on a device, and sync it: `edge run|sync`.

A device has little memory, so this module imports no other command, and no table or
progress bar; `app` is a command line with these commands alone.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli.command import Command, example
from tollgate.cli.free_ports import require_free_places
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError

RUN_EXAMPLE = "fraud.bundle --key release.pub --state device"
SYNC_EXAMPLE = "--store s3://bucket/edge --group tills --key release.pub --state device"

PublicKey = Annotated[
    Path, typer.Option(help="Public key of those who sign bundles: Ed25519, PEM.")
]
DeviceState = Annotated[
    Path, typer.Option(help="Folder of windows and journal; created if missing.")
]


def run(
    key: PublicKey,
    state: DeviceState,
    bundle: Annotated[
        Path | None,
        typer.Argument(
            help="Bundle that `tollgate edge pack` wrote.",
            show_default="the one that `edge sync` activates",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="address:port for gRPC.")
    ] = "127.0.0.1:8001",
    http: Annotated[
        str | None,
        typer.Option(help="address:port for HTTP with JSON.", show_default="none"),
    ] = None,
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
    late_ms: Annotated[
        float,
        typer.Option(help="Time for a decision; many later ones step down a variant."),
    ] = 5.0,
    resident_mib: Annotated[
        float, typer.Option(help="Resident memory above which to step down.")
    ] = 120.0,
    battery_percent: Annotated[
        float,
        typer.Option(help="Charge of a battery in use below which to step down."),
    ] = 20.0,
) -> None:
    """Decide on this device, over gRPC and HTTP, until Ctrl-C or SIGTERM."""
    from tollgate.cli.operations.device_process import DeviceOptions, replace_process
    from tollgate.edge.limits import Limits

    limits = Limits(
        late_ms=late_ms, resident_mib=resident_mib, battery_percent=battery_percent
    )
    limits.check()
    places = {"--listen": listen}
    if http is not None:
        places["--http"] = http
    require_free_places(places)
    replace_process(
        DeviceOptions(
            bundle=None if bundle is None else str(bundle),
            key=str(key),
            state=str(state),
            listen=listen,
            http=http,
            spool_bytes=spool_mib << 20,
            seal_after_s=seal_after,
            limits=limits,
        )
    )


def sync(
    store: Annotated[
        str, typer.Option(help="Object store: a folder, or such as s3://bucket/edge.")
    ],
    group: Annotated[str, typer.Option(help="Group of this device.")],
    key: PublicKey,
    state: DeviceState,
    device: Annotated[
        str | None,
        typer.Option(
            help="Name of this device in its group.", show_default="the host's name"
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(help="Pause between polls, such as 30s.", show_default="once"),
    ] = None,
) -> None:
    """
    Pull the release of this device, and push its records; exit status 1 if one failed.

    With --every, until Ctrl-C or SIGTERM. Failures are then tried again.
    """
    from tollgate.edge.sync import Sync
    from tollgate.features.spec.spec_document import duration_us
    from tollgate.worker import Worker

    try:
        every_s = duration_us(every) / 1e6 if every is not None else None
    except ValueError as error:
        raise InputError("--every", str(error)) from error
    name = socket.gethostname() if device is None else device
    stopped = stop_on_signal()
    with Sync(store, group=group, device=name, folder=state, key=key) as syncing:
        if every_s is None:
            if not syncing.step():
                raise typer.Exit(1)
            return
        _print(f"{name} syncs with {store}, group {group}; Ctrl-C ends")
        Worker(
            "edge-sync", syncing.step, pause_s=every_s, at_once=True, stopped=stopped
        ).run()


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


app = typer.Typer(name="tollgate", pretty_exceptions_enable=False)
_edge = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
_edge.command("run", cls=Command, epilog=example("edge run", RUN_EXAMPLE))(run)
_edge.command("sync", cls=Command, epilog=example("edge sync", SYNC_EXAMPLE))(sync)
app.add_typer(_edge, name="edge")


@app.callback()
def _group() -> None:
    """Make a group: Typer runs a lone command without its name."""
