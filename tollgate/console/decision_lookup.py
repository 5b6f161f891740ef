"""
Explain one decision of the journal, in a child process of low priority.

A look-up reads the sealed journal, which grows without bound, so it must not run in the
process that supervises the server. The child has its own memory and a lower priority.
It is started when a browser opens the console, answers one request at a time, ends when
it is idle, and is killed when a request takes too long.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tollgate.console.lookup_process import LookupRequest, LookupResponse
from tollgate.errors import InputError

LIMIT_S = 15.0
MOST_ID_CHARACTERS = 256
# Use the package of this environment, not that of the working folder.
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from tollgate.console.lookup_process import main; main()"
)


class BusyError(InputError):
    """Another look-up is running."""


class DecisionLookup:
    """
    Look decisions up, one at a time.

    Args:
        state: The state folder, with the sealed journals.
        stream_url: Returns the Redis with decisions that are not sealed yet; empty for
            none.
    """

    def __init__(
        self, state: Path, *, repository: Path, stream_url: Callable[[], str]
    ) -> None:
        self._journals = state.resolve() / "journal"
        self._repository = str(repository.resolve())
        self._stream_url = stream_url
        self._running = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the child unless it runs, so that the first look-up is quick."""
        if self._running.acquire(blocking=False):
            try:
                self._started()
            finally:
                self._running.release()

    def explain(self, product: str, decision: str) -> bytes:
        """
        Explain a decision, as the JSON of `tollgate explain`.

        Args:
            decision: Transaction id, or WRITER:NUMBER.

        Raises:
            InputError: The id is invalid, the decision was not found, or the look-up
                took too long.
            BusyError: Another look-up is running.
        """
        if not decision or len(decision) > MOST_ID_CHARACTERS:
            problem = f"is not 1 to {MOST_ID_CHARACTERS} characters"
            raise InputError("id of the decision", problem)
        if not self._running.acquire(blocking=False):
            raise BusyError(decision, "another look-up is running; try again")
        try:
            response = self._send(product, decision)
        finally:
            self._running.release()
        if response.explanation is None:
            raise InputError(decision, response.problem.removeprefix(f"{decision}: "))
        return msgspec.json.encode(response.explanation)

    def close(self) -> None:
        """End the child, and with it a look-up that is running."""
        child = self._child
        if child is not None:
            _end(child)

    def _send(self, product: str, decision: str) -> LookupResponse:
        folder = self._journals / product
        request = LookupRequest(
            product=product,
            decision=decision,
            folder=str(folder),
            keys=str(folder.with_name(f"{product}.keys")),
            repository=self._repository,
            stream_url=self._stream_url(),
        )
        line = msgspec.json.encode(request) + b"\n"
        child = self._started()
        assert child.stdin is not None
        try:
            child.stdin.write(line)
            child.stdin.flush()
            answer = _read_line(child, time.monotonic() + LIMIT_S)
            return msgspec.json.decode(answer, type=LookupResponse)
        except TimeoutError:
            _end(child)
            problem = f"was not found within {LIMIT_S:g} s; `tollgate explain` "
            raise InputError(decision, problem + "searches without a limit") from None
        except (OSError, ValueError) as error:  # ended, or closed meanwhile
            _end(child)
            raise InputError(decision, "the look-up ended; try again") from error

    def _started(self) -> subprocess.Popen[bytes]:
        """Return the child; start it if there is none or it has ended."""
        if self._child is None or self._child.poll() is not None:
            if self._child is not None:
                _end(self._child)
            self._child = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._child


def _read_line(child: subprocess.Popen[bytes], until_s: float) -> bytes:
    """Read a line of the child; empty if it ended; TimeoutError when it is too late."""
    assert child.stdout is not None
    found = b""
    while not found.endswith(b"\n"):
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([child.stdout], [], [], left_s)[0]:
            raise TimeoutError
        part = os.read(child.stdout.fileno(), 1 << 16)
        if not part:
            break
        found += part
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
