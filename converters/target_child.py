"""
Run models in another release's onnxruntime; started by `converters.target`.

A message is a line of JSON and, after it, numbers or a model as bytes. The
environment has numpy and onnxruntime alone, so nothing else may be imported here.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from converters.session import RUNTIME, Session, SessionError, in_batches
from converters.sources.wire import receive, send, take_streams


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Write a message."""
    return json.dumps(head).encode() + b"\n" + body


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """
    Read a message.

    Raises:
        ValueError: It is none.
    """
    head, _, body = message.partition(b"\n")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError(f"a message begins with {found!r}")
    return found, body


def answer(head: dict[str, Any], body: bytes, models: list[Session]) -> bytes:
    """
    Do what is asked.

    Args:
        head: `do` is `load` (a model), `run` (rows of a `shape`, `size` at a time,
            through model number `at`) or `runtime`.
        body: The model, or rows [N, F] of a `dtype`.
        models: Those loaded so far.

    Raises:
        SessionError: The model cannot be loaded, or not be run.
    """
    if head["do"] == "load":
        models.append(Session(body))
        return pack({"at": len(models) - 1})
    if head["do"] == "run":
        rows = np.frombuffer(body, dtype=head["dtype"]).reshape(head["shape"])
        found = in_batches(models[head["at"]].run, rows, size=head["size"])
        return pack({"shape": found.shape}, found.tobytes())
    return pack({"runtime": RUNTIME})


def main() -> None:
    """Serve until standard input ends."""
    requests, replies = take_streams()
    models: list[Session] = []
    while message := receive(requests):
        try:
            reply = answer(*unpack(message), models)
        except SessionError as error:
            reply = pack({"problem": str(error)})
        send(replies, reply)


if __name__ == "__main__":
    main()
