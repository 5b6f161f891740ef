"""
Measure the cost of tracing in the decision step, and of batch reports in each step.

    python -m loadtests.trace_cost [--runs 3]

The decision step writes most of the spans of a request.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tollgate.schema import MAX_ID_BYTES, context_dtype
from tollgate.steps.tracing import StepTraces
from tollgate.tracing.batches import BatchTeller
from tollgate.tracing.spans import SpanWriter

_BATCH = 8  # requests of one row
_BATCHES = 2_000
_WARM_UP = 200
_HEADER = "00-" + "ab" * 16 + "-" + "cd" * 8
_PLAIN = '{"deadline_us": 45000}'
_BRINGS = '{"deadline_us": 45000, "traceparent": "%s"}'
_CASES = {
    "no trace context, rate 0": (_PLAIN, 0),
    "no trace context, rate 1000": (_PLAIN, 1000),
    "a context that is not recorded": (_BRINGS % f"{_HEADER}-00", 0),
    "a context that is recorded": (_BRINGS % f"{_HEADER}-01", 0),
}


class _Asked(msgspec.Struct, frozen=True):
    """A request with the parts that tracing reads."""

    text: str

    def parameters(self) -> str:
        """Return its parameters, as Triton gives them."""
        return self.text

    def request_id(self) -> str:
        """Return the id that its caller gave it."""
        return "000001234"


def main(arguments: Sequence[str]) -> int:
    """Print CPU per request, or batch, of each case, µs, run by run."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.trace_cost")
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args(arguments).runs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spans"
        os.mkfifo(path)
        end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        for _ in range(runs):
            for name, (text, rate) in _CASES.items():
                middle, late = np.percentile(_measure(path, end, text, rate), [50, 99])
                print(f"{name:32} p50 {middle:6.2f} µs of CPU  p99 {late:6.2f} µs")
            for name, pipe in (("nobody looks", Path("none")), ("a batch, told", path)):
                middle, late = np.percentile(_measure_batches(pipe, end), [50, 99])
                print(f"{name:32} p50 {middle:6.2f} µs of CPU  p99 {late:6.2f} µs")
        os.close(end)
    return 0


def _measure_batches(path: Path, end: int) -> list[float]:
    """Report batch after batch to the reader, if any; return µs of CPU of each."""
    teller = BatchTeller(str(path), step="fraud_decision")
    requests = [_Asked(_PLAIN)] * _BATCH
    taken = []
    for _ in range(_BATCHES + _WARM_UP):
        began_s = time.process_time()
        if teller.wanted():
            teller.tell(requests, rows=_BATCH, began_us=1)
        taken.append((time.process_time() - began_s) * 1e6)
        with contextlib.suppress(BlockingIOError):
            os.read(end, 1 << 20)
    teller.close()
    return taken[_WARM_UP:]


def _measure(path: Path, end: int, text: str, rate: int) -> list[float]:
    """Trace batch after batch; return µs of CPU per request of each."""
    context = np.zeros(_BATCH, context_dtype(("customer", "terminal")))
    ids = np.array([b"t-%d" % place for place in range(_BATCH)], f"S{MAX_ID_BYTES}")
    context["transaction_id"] = ids.view(f"V{MAX_ID_BYTES}")
    context["transaction_id_length"] = 3
    outputs = {
        "decision": np.full((_BATCH, 1), b"approve", np.object_),
        "release": np.full((_BATCH, 1), b"fraud-1", np.object_),
        "degraded": np.zeros((_BATCH, 1), np.uint32),
        "error": np.full((_BATCH, 1), b"", np.object_),
    }
    writer = SpanWriter(path)
    traces = StepTraces(writer, product="fraud", model="fraud_decision", rate=rate)
    requests = [_Asked(text)] * _BATCH
    bounds = list(range(_BATCH + 1))
    taken = []
    for _ in range(_BATCHES + _WARM_UP):
        began_s = time.process_time()
        traces.begin(1)
        traces.part("policy")
        traces.part("journal")
        traces.decided(requests, context, outputs=outputs, bounds=bounds, began_us=1)
        taken.append((time.process_time() - began_s) / _BATCH * 1e6)
        with contextlib.suppress(BlockingIOError):
            os.read(end, 1 << 20)
    writer.close()
    return taken[_WARM_UP:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
