"""
Decide on a device: `edge run`.

A device has little memory, so this module imports no other command, and no table or
progress bar; `app` is a command line with this command alone.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli.command import Command, example
from tollgate.cli.free_ports import require_free_places
from tollgate.cli.signals import stop_on_signal

EXAMPLE = "fraud.bundle --key release.pub --state device"


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
    """Decide on this device, over gRPC, until Ctrl-C or SIGTERM."""
    from tollgate.edge.device import Device
    from tollgate.edge.service import DeviceServer
    from tollgate.edge.variants import Limits

    require_free_places({"--listen": listen})
    stopped = stop_on_signal()
    with (
        Device.open(
            bundle,
            key=key,
            state=state,
            spool_bytes=spool_mib << 20,
            seal_after_s=seal_after,
            limits=Limits(
                late_ms=late_ms,
                resident_mib=resident_mib,
                battery_percent=battery_percent,
            ),
        ) as device,
        DeviceServer(device, address=listen) as server,
    ):
        # The garbage collector need not scan the objects of the start again.
        gc.collect()
        gc.freeze()
        made = device.manifest
        place = f"{listen.rpartition(':')[0]}:{server.port}"
        print(
            f"{made.release} of {made.product} on {place}; state in {state}; "
            "Ctrl-C ends",
            file=sys.stderr,
            flush=True,
        )
        stopped.wait()


app = typer.Typer(name="tollgate", pretty_exceptions_enable=False)
_edge = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
_edge.command("run", cls=Command, epilog=example("edge run", EXAMPLE))(run)
app.add_typer(_edge, name="edge")


@app.callback()
@_edge.callback()
def _groups() -> None:
    """Make groups of both: Typer runs a lone command without its name."""
