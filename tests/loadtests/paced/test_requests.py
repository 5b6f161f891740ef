"""Bodies: the traffic's next purchases, by name, and what a scenario changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Phase, Scenario, Shift
from tollgate.load.bodies import Bodies, unframe
from tollgate.load.traffic import Traffic, fixed_width
from tollgate_client.wire import texts_of

COUNT = 600
HOUR_US = 3_600_000_000


@pytest.fixture
def traffic() -> Traffic:
    """Fifty purchases that come again and again."""
    number = np.arange(50)
    return Traffic(
        entity_id={
            "customer_id": fixed_width(number % 7, digits=5),
            "terminal_id": fixed_width(number % 11, digits=6),
        },
        cents=100 + number,
        time_us=1_700_000_000_000_000 + number * HOUR_US,
        period_us=100 * HOUR_US,
    )


def scenario(**changed: Any) -> Scenario:
    """Ten seconds of something."""
    return Scenario(phases=(Phase(seconds=10, rate=60),), **changed)


def write(folder: Path, traffic: Traffic, what: Scenario, *, first: int = 0) -> Bodies:
    """Write COUNT requests at even distances."""
    return write_bodies(
        folder / "bodies",
        traffic,
        scenario=what,
        at_s=np.arange(COUNT) / 60,
        first=first,
        seed=1,
    )


def messages(bodies: Bodies) -> list[Any]:
    """Read them as a server would."""
    content = bodies.path.read_bytes()
    assert len(content) == bodies.offsets[-1]
    return [
        service_pb2.ModelInferRequest.FromString(
            unframe(content[bodies.offsets[place] : bodies.offsets[place + 1]])
        )
        for place in range(len(bodies.offsets) - 1)
    ]


def column(requests: list[Any], name: str) -> list[Any]:
    """Collect one input of all rows."""
    values: list[Any] = []
    for request in requests:
        place = [one.name for one in request.inputs].index(name)
        raw = request.raw_input_contents[place]
        kinds = {"amount": "<f8", "event_time": "<i8"}
        if name in kinds:
            values += np.frombuffer(raw, kinds[name]).tolist()
        else:
            values += texts_of(raw)
    return values


def test_requests_are_the_next_purchases_by_number(
    tmp_path: Path, traffic: Traffic
) -> None:
    """Values, names, rows and deadlines, over more than one lap of the traffic."""
    bodies = write(tmp_path, traffic, scenario(rows=3, timeout_ms=250), first=30)
    requests = messages(bodies)
    expected = traffic.columns(30, COUNT * 3)
    for name in ("transaction_id", "customer_id", "terminal_id"):
        assert column(requests, name) == [one.decode() for one in expected[name]]
    for name in ("amount", "event_time"):
        assert column(requests, name) == expected[name].tolist()
    assert [int(one.id) for one in requests] == list(range(COUNT))
    assert {one.parameters["deadline_us"].int64_param for one in requests} == {250_000}
    assert not bodies.poisoned.any()


def test_poison_breaks_as_many_rows_as_told(tmp_path: Path, traffic: Traffic) -> None:
    """Every poisoned row has one of three faults, and no other row has any."""
    bodies = write(tmp_path, traffic, scenario(rows=2, poison=0.2))
    requests = messages(bodies)
    amounts, times = column(requests, "amount"), column(requests, "event_time")
    negative, missing = np.less(amounts, 0), np.isnan(amounts)
    early = np.equal(times, 0)
    assert min(negative.sum(), missing.sum(), early.sum()) > 0
    bad = (negative | missing | early).reshape(-1, 2).sum(axis=1)
    assert bad.tolist() == bodies.poisoned.tolist()
    assert abs(bad.sum() - 0.2 * 2 * COUNT) < 5 * (0.2 * 0.8 * 2 * COUNT) ** 0.5


def test_a_shift_begins_when_it_is_told(tmp_path: Path, traffic: Traffic) -> None:
    """Amounts fourfold from 5 s on, terminals exchanged; nothing before."""
    shift = Shift(at_s=5, amount_times=4, elsewhere=0.5)
    requests = messages(write(tmp_path, traffic, scenario(shift=shift)))
    plain = traffic.columns(0, COUNT)
    times = np.array(column(requests, "amount")) / plain["amount"]
    assert np.allclose(times[:300], 1.0)
    assert np.allclose(times[300:], 4.0)
    usual = [one.decode() for one in plain["terminal_id"]]
    moved = np.not_equal(column(requests, "terminal_id"), usual)
    assert not moved[:300].any()
    assert 90 < moved[300:].sum() < 190  # half, of whom 1 in 11 stays where he was
    assert sorted(column(requests, "terminal_id")) == sorted(usual)
