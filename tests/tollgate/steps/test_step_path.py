"""One batch in the feature step calls few files, and rarely changes between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import tollgate
from loadtests.feature_step import open_step, request_of
from tollgate.schema import CONTEXT, Degraded, context_dtype

ROWS = 32
MOST_FILES = 15
MOST_CHANGES_OF_FILE = 45
LIBRARY = str(Path(tollgate.__file__).parent)


def files_called(work: Callable[[], Any]) -> list[str]:
    """Return the library's file of each Python function that some work calls."""
    files: list[str] = []

    def note_call(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(LIBRARY):
            files.append(path.removeprefix(LIBRARY))

    before = sys.getprofile()
    sys.setprofile(note_call)
    try:
        work()
    finally:
        sys.setprofile(before)
    return files


def batch(number: int) -> list[Any]:
    """Make one request for each row, by customers and terminals of earlier batches."""
    rows = np.arange(ROWS)
    now_us = time.time_ns() // 1000
    columns = {
        "transaction_id": np.array([b"%d-%d" % (number, row) for row in rows]),
        "customer_id": np.array([b"customer-%d" % (row // 2) for row in rows]),
        "terminal_id": np.array([b"terminal-%d" % row for row in rows]),
        "amount": 1.25 * (rows + 1),
        "event_time": now_us - 60_000_000 + rows,
    }
    return [request_of(columns, row) for row in range(ROWS)]


def test_batch_changes_between_few_files(store_url: str) -> None:
    """A batch without any trouble: 15 files, 45 changes of file at most."""
    step = open_step(store_url, {"store_deadline_ms": "5000"})
    try:
        for number in range(3):
            step.execute(batch(number))
        requests = batch(3)
        responses: list[Any] = []
        files = files_called(lambda: responses.extend(step.execute(requests)))
    finally:
        step.finalize()
    dtype = context_dtype(("customer", "terminal"))
    contexts = [
        tensor.as_numpy().view(dtype)
        for response in responses
        for tensor in response.tensors
        if tensor.name() == CONTEXT
    ]
    assert [int(one["degraded"][0, 0]) for one in contexts] == [Degraded(0)] * ROWS
    assert len(set(files)) <= MOST_FILES, sorted(set(files))
    changes = sum(before != after for before, after in pairwise(files))
    assert changes <= MOST_CHANGES_OF_FILE, files
