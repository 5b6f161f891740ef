"""The compiled sender for a tuning: for thousands of requests a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.open_loop import F64
from loadtests.paced.calls import Load, Results
from loadtests.paced.compiled import compile_sender, send_compiled, send_one_by_one
from loadtests.paced.requests import Bodies, bodies_from
from loadtests.tuner.sending import Answered, PythonSender, Sender
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

    def at_times(self, requests: Sequence[Any], at_s: F64) -> Answered:
        """See `Sender`."""
        load = Load(at_s, self._bodies(requests), self.timeout_s)
        told, _ = send_compiled(
            load, grpc_url=self.grpc_url, folder=self.folder, began=lambda at: None
        )
        return self._answered(told)

    def one_by_one(self, requests: Sequence[Any], *, run_s: float) -> Answered:
        """See `Sender`."""
        told = send_one_by_one(
            self._bodies(requests),
            timeout_s=self.timeout_s,
            run_s=run_s,
            grpc_url=self.grpc_url,
            folder=self.folder,
        )
        return self._answered(told)

    def _bodies(self, requests: Sequence[Any]) -> Bodies:
        return bodies_from(requests, rows=self.rows, path=self.folder / "bodies.bin")

    def _answered(self, told: Results) -> Answered:
        calls = told.calls
        whole = (calls["kind"] == 0) & (calls["decided"] == self.rows)
        late_us = calls["late_us"].astype(np.float64)
        return Answered(
            at_s=calls["due_us"] / 1e6,
            latency_s=np.where(whole, calls["took_us"] / 1e6, np.inf),
            late_s=np.where(late_us < 0, self.timeout_s, late_us / 1e6),
        )


def best_sender(
    grpc_url: str,
    *,
    timeout_s: float,
    rows: int,
    folder: Path,
    told: Callable[[str], None],
) -> Sender:
    """
    Return the compiled sender, or the Python one if it cannot be compiled.

    Args:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        rows: Rows in each request.
        folder: Folder for files of the sender; no other process may use it.
        told: Called with one line when there is no compiled sender.
    """
    try:
        compile_sender(folder)
    except SetupError as error:
        told(f"{error}; until then asyncio sends, some hundred requests a second")
        return PythonSender(grpc_url, timeout_s)
    return CompiledSender(grpc_url, timeout_s, rows, folder)
