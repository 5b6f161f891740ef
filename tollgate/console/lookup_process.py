"""
Explain decisions in a process of its own, one line of JSON per request and response.

The console starts it with a pipe to its standard input and from its standard output. It
ends when the pipe is closed, or after five minutes without a request.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path
from typing import Any

import msgspec

from tollgate.errors import InputError, TollgateError

NICENESS = 10  # serving processes have priority
IDLE_S = 300.0


class LookupRequest(msgspec.Struct, frozen=True):
    """
    A decision to explain.

    Attributes:
        decision: Transaction id, or WRITER:NUMBER.
        folder: Folder of the product's sealed journal, which may not exist.
        keys: Folder of its subjects' keys.
        stream_url: The Redis with the decisions that are not sealed yet; empty for
            none.
    """

    product: str
    decision: str
    folder: str
    keys: str
    repository: str
    stream_url: str


class LookupResponse(msgspec.Struct, frozen=True):
    """The explanation, as `tollgate explain` prints it as JSON, or the problem."""

    explanation: dict[str, Any] | None = None
    problem: str = ""


def explain(request: LookupRequest) -> LookupResponse:
    """Explain one decision: from the sealed journal, else from the stream."""
    from tollgate.audit.review.explanation import explain_pending, explain_sealed

    folder, repository = Path(request.folder), Path(request.repository)
    try:
        try:
            found = explain_sealed(
                request.decision,
                folder,
                keys=Path(request.keys),
                repository=repository,
            )
        except InputError:
            if not request.stream_url:
                raise
            pending = explain_pending(
                request.decision,
                request.stream_url,
                folder=folder,
                product=request.product,
                repository=repository,
            )
            if pending is None:
                raise
            found = pending
    except TollgateError as error:
        return LookupResponse(problem=str(error))
    fields = msgspec.structs.asdict(found) | {"margin": found.margin}
    return LookupResponse(explanation=fields)


def main() -> None:
    """Answer requests until the pipe is closed or idle."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # where memory is short, this process ends first
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Import the heavy part before the first request, which then need not wait.
    import tollgate.audit.review.explanation  # noqa: F401

    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    while select.select([requests], [], [], IDLE_S)[0]:
        line = requests.readline()
        if not line:
            return
        try:
            response = explain(msgspec.json.decode(line, type=LookupRequest))
        except Exception as error:  # noqa: BLE001 - the next request may succeed
            # The message of an error may contain a customer's data.
            response = LookupResponse(problem=f"failed: {type(error).__name__}")
        responses.write(msgspec.json.encode(response) + b"\n")
        responses.flush()
