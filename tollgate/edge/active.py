"""Serve the active bundle of a device, and change to the next one that is activated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from tollgate.edge.device import Device
from tollgate.edge.grpc_port import GrpcPort
from tollgate.edge.http_port import HttpPort
from tollgate.edge.sync import read_active
from tollgate.errors import InputError, TollgateError

log = logging.getLogger(__name__)

_LOOK_S = 0.5


class Active(msgspec.Struct, frozen=True):
    """A bundle's file, and the highest sequence that a rollback took back."""

    path: Path
    withdrawn: int = 0


def find_active(state: Path, key: Path) -> Active:
    """
    Find the bundle that `tollgate edge sync` activated.

    Raises:
        InputError: There is none yet, or its file is damaged.
    """
    found = read_active(state, key)
    if found is None:
        problem = "no bundle is active: name one, or pull one with `tollgate edge sync`"
        raise InputError(state, problem)
    path, group, _ = found
    return Active(path, group.withdrawn)


def serve(
    find: Callable[[], Active],
    open_device: Callable[[Active], Device],
    *,
    listen: str,
    http: str | None = None,
    stopped: threading.Event,
    say: Callable[[Device, str], None],
) -> None:
    """
    Decide until `stopped` is set.

    When another bundle is active, the requests in flight are answered, the device is
    closed, and opens again with that bundle: its decisions are on disk by then. If the
    new bundle cannot be opened, the one before goes on.

    Args:
        listen: host:port for gRPC; port 0 for any free one.
        http: host:port for HTTP; None for none.
        say: Called with the device and its addresses each time that it is ready.

    Raises:
        TollgateError: The first bundle cannot be opened, or the port cannot be used.
    """
    wanted = running = find()
    refused: Path | None = None
    while not stopped.is_set():
        with ExitStack() as stack:
            try:
                device = stack.enter_context(open_device(wanted))
            except TollgateError as error:
                if wanted == running:
                    raise
                log.error("%s is not served: %s", wanted.path, error)
                refused, wanted = wanted.path, running
                continue
            if wanted != running:
                running, refused = wanted, None
            server = stack.enter_context(GrpcPort(device, address=listen))
            listen = f"{listen.rpartition(':')[0]}:{server.port}"
            if http is not None:
                pages = stack.enter_context(HttpPort(device, address=http))
                http = f"{http.rpartition(':')[0]}:{pages.port}"
            problem = ""
            say(device, listen if http is None else f"{listen}, HTTP on {http}")
            while wanted.path in (running.path, refused) and not stopped.wait(_LOOK_S):
                try:
                    wanted, problem = find(), ""
                except InputError as error:
                    if problem != str(error):  # once, not twice a second
                        problem = str(error)
                        log.error("the active bundle is unknown: %s", problem)
