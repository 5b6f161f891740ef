"""
Run models in another release's onnxruntime; `target_runtime` starts it.

A message is a line of JSON followed by numbers or a model as bytes. The environment
contains only numpy and onnxruntime, so this module must not import anything else.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from converters.parity.session import RUNTIME, Session, SessionError, in_batches
from converters.sources.wire import receive, send, take_streams


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Encode a message."""
    return json.dumps(head).encode() + b"\n" + body


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """
    Decode a message.

    Raises:
        ValueError: The bytes are no message.
    """
    head, _, body = message.partition(b"\n")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError(f"a message begins with {found!r}")
    return found, body


def answer(head: dict[str, Any], body: bytes, models: list[Session]) -> bytes:
    """
    Handle a request.

    Args:
        head: `do` is `load` (a model), `run` (rows of a `shape`, `size` at a time,
            through model number `at`) or `runtime`.
        body: The model, or rows [N, F] of a `dtype`.
        models: Models loaded so far.

    Raises:
        SessionError: The model cannot be loaded or run.
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
