"""The compiled sender for a tuning: for thousands of requests a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadtests.paced.calls import Load, Results
from loadtests.paced.compiled import compile_sender, send_compiled, send_one_by_one
from loadtests.paced.requests import Bodies, bodies_from
from loadtests.requests.open_loop import F64
from loadtests.tuner.sending import PythonSender, Sender
from tollgate.errors import SetupError


class CompiledSender(msgspec.Struct, frozen=True):
    """
    Sender that runs loadtests/paced/paced.c.

    Attributes:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        rows: Rows in each request.
        folder: Folder for files; no other process may use it.
    """

    grpc_url: str
    timeout_s: float
    rows: int
    folder: Path
    name: str = "compiled"

    def at_times(self, requests: Sequence[Any], at_s: F64) -> Results:
        """See `Sender`."""
        load = Load(at_s, self._bodies(requests), self.timeout_s)
        return send_compiled(load, grpc_url=self.grpc_url, folder=self.folder)

    def one_by_one(self, requests: Sequence[Any], *, run_s: float) -> Results:
        """See `Sender`."""
        return send_one_by_one(
            self._bodies(requests),
            timeout_s=self.timeout_s,
            run_s=run_s,
            grpc_url=self.grpc_url,
            folder=self.folder,
        )

    def _bodies(self, requests: Sequence[Any]) -> Bodies:
        return bodies_from(requests, rows=self.rows, path=self.folder / "bodies.bin")


def best_sender(
    grpc_url: str,
    *,
    timeout_s: float,
    rows: int,
    folder: Path,
    report: Callable[[str], None] = lambda line: None,
) -> Sender:
    """
    Return the compiled sender, or the Python one if it cannot be compiled.

    Args:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        rows: Rows in each request.
        folder: Folder for files of the sender; no other process may use it.
        report: Called with one line when there is no compiled sender.
    """
    try:
        compile_sender(folder)
    except SetupError as error:
        report(f"{error}; until then asyncio sends, some hundred requests a second")
        return PythonSender(grpc_url, timeout_s)
    return CompiledSender(grpc_url, timeout_s, rows, folder)
