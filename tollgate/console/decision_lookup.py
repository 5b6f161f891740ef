"""
Explain one decision of the journal in a child process of low priority.

The look-up reads the sealed journal, which grows without bound, so it must not run in
the process that supervises the server: a child has its own memory and a lower priority,
and is ended after a time limit. One look-up runs at a time.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence

import msgspec

from tollgate.errors import InputError

LIMIT_S = 15.0
MOST_ID_CHARACTERS = 256
_MOST_PROBLEM = 500

Command = Callable[[str, str], Sequence[str]]


class BusyError(InputError):
    """Another look-up is running."""


class DecisionLookup:
    """
    Look decisions up, one at a time.

    Args:
        command: Returns the command line that explains a decision as JSON on standard
            output, for a product and the id of a decision.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._running = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def explain(self, product: str, decision: str) -> bytes:
        """
        Explain a decision; the result is the JSON that the command prints.

        Args:
            decision: Transaction id, or WRITER:NUMBER.

        Raises:
            InputError: The id is invalid, the decision was not found, or the look-up
                took too long.
            BusyError: Another look-up is running.
        """
        if not decision or len(decision) > MOST_ID_CHARACTERS or "\0" in decision:
            raise InputError(
                "id", f"is not 1 to {MOST_ID_CHARACTERS} characters of a decision's id"
            )
        if not self._running.acquire(blocking=False):
            raise BusyError("id", "another look-up is running; try again in a moment")
        try:
            return self._explain(product, decision)
        finally:
            self._running.release()

    def close(self) -> None:
        """End a look-up that is running."""
        child = self._child
        if child is not None:
            child.kill()

    def _explain(self, product: str, decision: str) -> bytes:
        with subprocess.Popen(
            list(self._command(product, decision)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "1000"},
        ) as child:
            self._child = child
            try:
                out, err = child.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                problem = f"was not found within {LIMIT_S:g} s; `tollgate explain` "
                raise InputError(
                    decision, problem + "searches without a limit"
                ) from None
            finally:
                self._child = None
        if child.returncode == 0:
            return _checked(out)
        lines = err.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        said = lines[-1].removeprefix("tollgate: ").strip()[:_MOST_PROBLEM]
        raise InputError(decision, said)


def _checked(out: bytes) -> bytes:
    """Return the output if it is one JSON object, so that the page can rely on it."""
    try:
        return msgspec.json.encode(msgspec.json.decode(out, type=dict))
    except msgspec.MsgspecError as error:
        raise InputError("explanation", f"cannot be read: {error}") from error
