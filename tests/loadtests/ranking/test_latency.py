"""Requests go to a real server at their rate; the search ends between two rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from loadtests.ranking.bench import ShopStore, open_bench
from loadtests.ranking.latency import (
    LatencyRun,
    highest_rate,
    measure_latency,
    mixed_users,
    users_in_turn,
)
from tollgate.load.results import count_rows

RUN = LatencyRun(
    rate=100.0,
    sent=100,
    answered=100,
    degraded=0,
    hits=0.0,
    p50_ms=1.0,
    p95_ms=79.0,
    p99_ms=99.0,
    max_ms=100.0,
    server_cpu=0.5,
    sender_cpu=0.01,
    load=0.1,
)


def limited_to(most: float, *, lost_above: float = 1e9):
    """A server whose answers are slow above a rate, and get lost above another."""
    return lambda rate: replace(
        RUN,
        rate=rate,
        p95_ms=79.0 if rate <= most else 81.0,
        answered=100 if rate <= lost_above else 99,
    )


@pytest.mark.parametrize("most", [100, 114, 115, 200, 333, 900])
def test_the_search_finds_the_last_rate_that_meets_the_goal(most: int) -> None:
    best, runs = highest_rate(limited_to(most), first=100.0)
    assert best is not None
    assert best.rate <= most < best.rate * 1.16
    assert runs[0].rate == 100


def test_a_rate_with_lost_answers_does_not_meet_the_goal() -> None:
    best, _ = highest_rate(limited_to(900, lost_above=200), first=100.0)
    assert best is not None
    assert best.rate <= 200
    none, runs = highest_rate(limited_to(50), first=100.0)
    assert none is None
    assert len(runs) == 1


def test_each_user_comes_before_any_comes_again() -> None:
    users = users_in_turn(["a", "b", "c"], seed=1)
    for _ in range(3):
        assert {next(users) for _ in range(3)} == {"a", "b", "c"}


@pytest.mark.slow
def test_lists_of_a_server_are_counted(
    repository: Path, store: ShopStore, tmp_path: Path
) -> None:
    with open_bench(repository, store, folder=tmp_path, form="ensemble") as bench:
        prepared, others = (
            users_in_turn(ids, seed=1) for ids in (store.prepared, store.others)
        )
        users = mixed_users(prepared, others, share=0.5, seed=1)
        run = measure_latency(bench, users, rate=20.0, seconds=2.0, name="test")
    assert (run.sent, run.answered, run.degraded) == (40, 40, 0)
    assert 0 < run.p50_ms <= run.p95_ms <= run.p99_ms <= run.max_ms
    assert run.server_cpu > 0
    assert run.hits == pytest.approx(0.5, abs=0.1)


def test_lists_and_refused_rows_of_an_answer_are_counted() -> None:
    """Against an answer that this test encodes; a cold start is no fault."""
    response = service_pb2.ModelInferResponse()
    for name, values in (
        ("items", np.array([b"a", b"b", b"", b""], np.object_)),
        ("degraded", np.array([4, 2 + 4], np.uint32)),
        ("error", np.array([b"", b"user_id: empty"], np.object_)),
    ):
        response.outputs.add(name=name)
        raw = values.tobytes()
        if values.dtype == np.object_:
            raw = serialize_byte_tensor(values).item()
        response.raw_output_contents.append(raw)
    assert count_rows(response.SerializeToString()) == (1, 1, 1, 0, 0, 2)
