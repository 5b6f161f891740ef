"""
Run a device in a process that has read no command line.

The command line's parser takes 10 MiB, so `tollgate edge run` starts this module in its
place, in the same process. It gets the options as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import msgspec

from tollgate.cli import run_reported
from tollgate.edge.limits import Limits


class DeviceOptions(msgspec.Struct, frozen=True):
    """
    The options of `tollgate edge run`.

    Attributes:
        bundle: The bundle; None for the one that `edge sync` activates.
        key: Public key of those who sign bundles.
        state: The state folder.
        listen: host:port for gRPC.
        http: host:port for HTTP; None for none.
        spool_bytes: Most bytes of sealed journal.
        seal_after_s: Longest time before a record is sealed.
        limits: Beyond them the device steps down.
    """

    bundle: str | None
    key: str
    state: str
    listen: str
    http: str | None
    spool_bytes: int
    seal_after_s: float
    limits: Limits


def replace_process(options: DeviceOptions) -> None:
    """
    Become a process that runs a device; it does not return.

    The module is named by its file: `-m` would also import what lies in the folder in
    which the command runs.
    """
    # msgspec writes infinity, which is no limit, as null.
    words = (sys.executable, __file__, json.dumps(msgspec.to_builtins(options)))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, words)


def run_device(options: DeviceOptions) -> None:
    """Decide until Ctrl-C or SIGTERM."""
    from tollgate.cli.signals import stop_on_signal
    from tollgate.edge.active import Active, find_active, serve
    from tollgate.edge.device import Device

    state, key = Path(options.state), Path(options.key)

    def find() -> Active:
        if options.bundle is None:
            return find_active(state, key)
        return Active(Path(options.bundle))

    def open_device(active: Active) -> Device:
        return Device.open(
            active.path,
            key=key,
            state=state,
            spool_bytes=options.spool_bytes,
            seal_after_s=options.seal_after_s,
            limits=options.limits,
            withdrawn=active.withdrawn,
        )

    def say(device: Device, address: str) -> None:
        # The garbage collector need not scan the objects of a start again.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        made = device.manifest
        text = f"{made.release} of {made.product} on {address}; state in {state}; "
        print(f"{text}Ctrl-C ends", file=sys.stderr, flush=True)

    serve(
        find,
        open_device,
        listen=options.listen,
        http=options.http,
        stopped=stop_on_signal(),
        say=say,
    )


def main() -> None:
    """Run the device of the options in the first argument."""
    run_device(msgspec.convert(json.loads(sys.argv[1]), DeviceOptions))


if __name__ == "__main__":
    run_reported(main)
