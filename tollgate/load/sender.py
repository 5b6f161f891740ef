"""Open a sender of requests: the compiled one if possible, else asyncio."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tollgate.errors import SetupError
from tollgate.load.arrivals import F64
from tollgate.load.asyncio_sender import AsyncioSender
from tollgate.load.bodies import Load
from tollgate.load.compiled_sender import CompiledSender, compile_sender
from tollgate.load.results import Results


class Sender(Protocol):
    """Interface of the senders."""

    @property
    def name(self) -> str:
        """Return a name of one or two words."""

    def send(
        self, load: Load, *, began: Callable[[float], None] = lambda moment_s: None
    ) -> Results:
        """
        Send each request when it is due, without waiting for any answer.

        A caller retries at once when an attempt failed or had no answer within the
        timeout. Its latency counts from when the first attempt was due.

        Args:
            began: Called at the beginning, with the time on time.perf_counter.
        """

    def at_times(self, requests: Sequence[bytes], at_s: F64) -> Results:
        """Send each when it is due, ascending from 0, without waiting for answers."""

    def one_by_one(self, requests: Sequence[bytes], *, run_s: float) -> Results:
        """Send each when the one before is answered, for `run_s` seconds."""


def best_sender(
    grpc_url: str,
    *,
    timeout_s: float,
    folder: Path,
    report: Callable[[str], None] = lambda line: None,
) -> Sender:
    """
    Return the compiled sender, or the asyncio one if that cannot be compiled.

    Args:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        folder: Folder for files of the sender; no other process may use it.
        report: Called with one line when there is no compiled sender.
    """
    try:
        compile_sender(folder)
    except SetupError as error:
        report(f"{error}; until then asyncio sends, some hundred requests a second")
        return AsyncioSender(grpc_url, timeout_s)
    return CompiledSender(grpc_url, timeout_s, folder)


@contextmanager
def open_sender(
    grpc_url: str,
    *,
    timeout_s: float,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Sender]:
    """
    Open the compiled sender, or asyncio where there is no compiler.

    Args:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        report: Called with one line when there is no compiled sender.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-send-") as name:
        folder = Path(name)
        yield best_sender(grpc_url, timeout_s=timeout_s, folder=folder, report=report)
