"""One batch in the feature step calls few files, and rarely changes between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tollgate
from tests.support.steps.in_process_steps import NOW_US, Pipeline, bought, request, use
from tests.support.steps.triton_classes import Request
from tollgate import compiled

REPOSITORY = Path(__file__).parents[3] / "model_repository"
ROWS = 32
# With the compiled loops, and without them.
MOST_FILES, MOST_CHANGES_OF_FILE = (15, 45) if compiled.windows else (18, 50)
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


def batch(number: int) -> list[Request]:
    """Make one request for each row, of customers and terminals of earlier batches."""
    return [
        request(
            bought(
                f"{number}-{row}",
                customer=f"customer {row // 2}",
                terminal=f"terminal {row}",
                amount=1.25 * (row + 1),
                at_us=NOW_US + number * 1_000_000 + row,
            )
        )
        for row in range(ROWS)
    ]


def test_batch_calls_few_files(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without trouble: few files, and few changes from one to another."""
    use(monkeypatch, store_url=store_url, journal_url="")
    steps = Pipeline(
        REPOSITORY / "fraud_features" / "1", REPOSITORY / "fraud_decision" / "1"
    )
    try:
        for number in range(3):
            steps.contexts(*batch(number))
        requests = batch(3)
        files = files_called(lambda: steps.features.execute(requests))
        degraded = steps.contexts(*batch(4))["degraded"]
    finally:
        steps.close()
    assert degraded.tolist() == [0] * ROWS
    assert {"/steps/feature_step.py", "/store/online_features.py"} <= set(files)
    assert len(set(files)) <= MOST_FILES, sorted(set(files))
    changes = sum(before != after for before, after in pairwise(files))
    assert changes <= MOST_CHANGES_OF_FILE, files
