"""
Where the time of single requests went, as Triton itself saw it.

A server of ours is started with a place for traces and makes none. While someone looks,
every n-th request of a product is traced: Triton notes on the monotonic clock when each
step had it in its queue, began and ended, and writes that to files of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tollgate.errors import ServerError
from tollgate.server.control import Reachable, connected

TRACE_FOLDER = "traces"  # in the state folder
TRACE_FILE = "trace.json"  # Triton adds .0, .1 and so on

_A_FILE = 1_000  # traces in each; what is not written yet is in the server's memory
_SETTLE_S = 5.0
_QUIET_S = 0.2


class Span(msgspec.Struct, frozen=True):
    """
    One model's part of a request.

    Attributes:
        model: Its name.
        at_ns: What happened -> when, on the monotonic clock; Triton's own words, such
            as QUEUE_START, COMPUTE_START, COMPUTE_END.
    """

    model: str
    at_ns: dict[str, int]


class Traced(msgspec.Struct, frozen=True):
    """
    One request.

    Attributes:
        request_id: What the caller called it; empty if nothing.
        whole: The ensemble's span.
        steps: That of each step, by its model.
    """

    request_id: str
    whole: Span
    steps: dict[str, Span]


class _Stamp(msgspec.Struct):
    name: str
    ns: int


class _Entry(msgspec.Struct):
    """One line of a trace file: a part of what is known of one model's request."""

    id: int
    model_name: str = ""
    request_id: str = ""
    parent_id: int = 0
    timestamps: list[_Stamp] = []


@contextmanager
def tracing(server: Reachable, product: str, *, every: int) -> Iterator[list[Traced]]:
    """
    Trace requests of a product while the block runs.

    Args:
        server: A running Triton on this machine.
        product: The ensemble.
        every: Of so many requests, one is traced.

    Yields:
        A list that is filled when the block ends.

    Raises:
        ServerError: It has no place for traces, or cannot be reached.
    """
    place = str(trace_settings(server, product).get("trace_file", ""))
    if not place:
        problem = f"{product}: the server was started without a place for traces"
        raise ServerError("tritonserver", problem)
    file = Path(place)
    _drop(file)
    traced: list[Traced] = []
    on: dict[str, str | list[str]] = {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": str(every),
        "log_frequency": str(_A_FILE),
    }
    try:
        trace_settings(server, product, on)
        yield traced
    finally:
        trace_settings(server, product, {"trace_level": ["OFF"]})
    traced += read_traces(_written(file))
    _drop(file)


def trace_settings(
    server: Reachable,
    name: str,
    changed: Mapping[str, str | list[str]] | None = None,
    *,
    timeout_s: float = 5.0,
) -> dict[str, Any]:
    """
    Read how requests of a model are traced, after changing it.

    Args:
        server: A running Triton.
        name: The model.
        changed: Setting -> its new value; None changes nothing.
        timeout_s: For the answer.

    Returns:
        Setting to value, or to a list of several.

    Raises:
        ServerError: Triton refused.
    """
    told = {"headers": server.admin_headers, "client_timeout": timeout_s}
    with connected(server) as client:
        if changed is None:
            answer = client.get_trace_settings(name, as_json=True, **told)
        else:
            answer = client.update_trace_settings(
                name, settings=dict(changed), as_json=True, **told
            )
    found = {key: one.get("value", []) for key, one in answer["settings"].items()}
    return {key: value[0] if len(value) == 1 else value for key, value in found.items()}


def read_traces(files: list[Path]) -> list[Traced]:
    """
    Put together what Triton wrote in pieces; requests that are not whole are left out.

    Raises:
        ServerError: A file is not one of Triton's.
    """
    found: dict[int, _Entry] = {}
    for file in files:
        try:
            entries = msgspec.json.decode(file.read_bytes(), type=list[_Entry])
        except (OSError, msgspec.MsgspecError) as error:
            raise ServerError("tritonserver", f"{file}: {error}") from error
        for entry in entries:
            known = found.setdefault(entry.id, entry)
            if known is entry:
                continue
            known.timestamps += entry.timestamps
            known.model_name = known.model_name or entry.model_name
            known.request_id = known.request_id or entry.request_id
            known.parent_id = known.parent_id or entry.parent_id
    steps: dict[int, dict[str, Span]] = {}
    for entry in found.values():
        if entry.parent_id:
            span = _span(entry)
            steps.setdefault(entry.parent_id, {})[span.model] = span
    return [
        Traced(entry.request_id, _span(entry), steps[number])
        for number, entry in sorted(found.items())
        if not entry.parent_id and number in steps
    ]


def _span(entry: _Entry) -> Span:
    return Span(entry.model_name, {one.name: one.ns for one in entry.timestamps})


def _written(file: Path) -> list[Path]:
    """Wait until the server has written all it knew; it says nothing when it has."""
    until_s = time.monotonic() + _SETTLE_S
    before: Mapping[Path, int] | None = None
    while time.monotonic() < until_s:
        sizes = {path: path.stat().st_size for path in _files(file)}
        if sizes and sizes == before:
            break
        before = sizes
        time.sleep(_QUIET_S)
    return _files(file)


def _files(file: Path) -> list[Path]:
    found = [path for path in file.parent.glob(f"{file.name}*") if path.is_file()]
    return sorted(found)


def _drop(file: Path) -> None:
    for path in _files(file):
        path.unlink(missing_ok=True)
