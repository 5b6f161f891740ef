"""Tests of JSON bodies that differ in values and not in length."""

from __future__ import annotations

import json

import numpy as np
import pytest

from loadtests.baseline.json_bodies import json_bodies
from tollgate.load.traffic import fixed_width


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_bodies_say_what_the_columns_hold(rows: int) -> None:
    """A JSON reader gets every value back, from a cent to the largest amount."""
    draw = np.random.default_rng(rows)
    count = 12 * rows
    cents = draw.integers(0, 10**5, count)
    cents[:4] = [0, 5, 100, 999_999_999]
    columns = {
        "transaction_id": fixed_width(draw.integers(10**12, size=count), digits=12),
        "customer_id": fixed_width(draw.integers(10**5, size=count), digits=5),
        "terminal_id": fixed_width(draw.integers(10**6, size=count), digits=6),
        "amount": cents / 100,
        "event_time": draw.integers(10**15, 2 * 10**15, count),
    }
    bodies = json_bodies(columns, rows=rows)
    assert len(bodies) == 12
    read = [json.loads(body.tobytes()) for body in bodies]
    purchases = read if rows == 1 else [one for body in read for one in body]
    assert {len(body) for body in read if rows > 1} <= {rows}
    for name, column in columns.items():
        values = [one[name] for one in purchases]
        wanted = column.tolist()
        if column.dtype.kind == "S":
            wanted = [one.decode() for one in wanted]
        assert values == wanted, name
