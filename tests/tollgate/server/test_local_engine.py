"""The engine of the committed products decides rows without a server or a store."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from tollgate.schema import Degraded
from tollgate.server.local_engine import open_engine

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000


def purchases(count: int) -> dict[str, list[object]]:
    """Make purchases of one customer."""
    return {
        "transaction_id": [f"t{row}" for row in range(count)],
        "customer_id": ["alice"] * count,
        "terminal_id": [f"m{row}" for row in range(count)],
        "amount": [12.5] * count,
        "event_time": [NOW_US] * count,
    }


def test_rows_are_decided_on_defaults_without_a_store() -> None:
    """A bad row has its error; the others are decided, in the name of the release."""
    rows = purchases(70)
    rows["amount"][40] = -1.0
    with open_engine(REPOSITORY, product="fraud") as engine:
        found = engine.decide(rows)
    good = np.arange(70) != 40
    assert set(found["release"].tolist()) == {b"fraud-1"}
    assert set(found["decision"][good].tolist()) <= {b"approve", b"review", b"decline"}
    assert np.isfinite(found["score"][good]).all()
    unavailable = found["degraded"][good] & np.uint32(Degraded.STORE_UNAVAILABLE)
    assert unavailable.all()
    assert found["decision"][40] == b""
    assert np.isnan(found["score"][40])
    assert found["error"][40].startswith(b"amount: -1.0")


def test_credit_is_decided_with_some_of_its_fields() -> None:
    """A declared field may be left out; its rows are marked."""
    rows = {
        "transaction_id": ["a", "b"],
        "amount": [5_000.0, 80_000.0],
        "event_time": [NOW_US, NOW_US],
        "income": [3_000.0, float("nan")],
        "purpose": ["car", ""],
    }
    with open_engine(REPOSITORY, product="credit") as engine:
        found = engine.decide(rows)
    assert (found["degraded"] & np.uint32(Degraded.FIELD_MISSING)).all()
    assert found["error"].tolist() == [b"", b""]


def test_no_rows_give_empty_columns() -> None:
    """The outputs are there."""
    with open_engine(REPOSITORY, product="fraud") as engine:
        found = engine.decide({name: [] for name in purchases(1)})
    assert sorted(found) == sorted(
        ("decision", "score", "reason_codes", "degraded", "error", "release")
    )
    assert all(len(column) == 0 for column in found.values())


def test_a_required_column_is_named() -> None:
    """It is missing in the call, not in a row."""
    rows = purchases(2)
    del rows["terminal_id"]
    with (
        open_engine(REPOSITORY, product="fraud") as engine,
        pytest.raises(KeyError, match="terminal_id"),
    ):
        engine.decide(rows)
