"""Layers: cut where docs/budget.md cuts them, and judged by their 99th percentile."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.errors import ServerError
from tollgate.latency_budget.layers import MEASURED, Queues, Split, judge, split
from tollgate.latency_budget.step_batches import Batches
from tollgate.load.results import ANSWERED, CALL, NO_ANSWER, Results
from tollgate.repository.slo import Layers

QUEUES = Queues(features_ms=4.0, decision_ms=0.5)


def batches(*rows: tuple[int, float, float, tuple[int, ...]]) -> Batches:
    """Step, begin and end in ms, and the requests of each batch."""
    pairs = [(one, place) for place, batch in enumerate(rows) for one in batch[3]]
    return Batches(
        steps=("f", "m", "d", *(["c"] if any(one[0] == 3 for one in rows) else [])),
        step=np.array([one[0] for one in rows], np.int64),
        start_us=np.array([round(one[1] * 1e3) for one in rows], np.int64),
        end_us=np.array([round(one[2] * 1e3) for one in rows], np.int64),
        rows=np.array([len(one[3]) for one in rows], np.int64),
        request=np.array([one for one, _ in pairs], np.int64),
        batch=np.array([place for _, place in pairs], np.int64),
        lost=0,
    )


def sent(*latency_ms: float, late_ms: float = 0.0) -> Results:
    """Requests that were due at 10 ms and sent a little later."""
    count = len(latency_ms)
    answered = np.isfinite(latency_ms)
    calls = np.zeros(count, CALL)
    calls["due_us"] = 10_000
    calls["late_us"] = round(late_ms * 1e3)
    calls["took_us"] = np.where(answered, latency_ms, 1_000.0) * 1e3
    calls["rows"] = calls["decided"] = 1
    calls["kind"][~answered] = 1
    return Results(calls, (ANSWERED, NO_ANSWER), {})


def layers_of(reported: Batches, results: Results, *, first: int = 0) -> Split:
    """Split the requests with an answer."""
    return split(
        reported, results, counted=results.answered, queues=QUEUES, first=first
    )


def test_the_layers_of_a_request_add_up() -> None:
    """Sent at 11, taken at 16, scored at 18, decided from 24 to 27, answered at 30 ms.

    Of the 5 ms until it was taken 4 were the queue; of the 6 ms between the steps the
    decision's queue was 0.5.
    """
    reported = batches((0, 16, 18, (0,)), (1, 20, 22, (0,)), (2, 24, 27, (0,)))
    found = layers_of(reported, sent(20.0, late_ms=1.0))
    assert "candidates" not in found.layers_ms
    assert [round(float(one[0]), 6) for one in found.layers_ms.values()] == [
        *(1.0, 6.0, 5.5, 3.5, 3.0)
    ]
    assert sum(float(one[0]) for one in found.layers_ms.values()) == pytest.approx(19)
    # As the contract has it: the queue, and from the arrival to the decision.
    assert found.in_server_ms.round(6).tolist() == [4.0 + 27 - 16]


def test_candidates_are_a_layer_of_a_product_that_ranks() -> None:
    """Of the features from 16 to 18 ms, the candidates begin at 16.5."""
    reported = batches(
        *((0, 16, 18, (0,)), (1, 20, 22, (0,)), (2, 24, 27, (0,))),
        (3, 16.5, 18.1, (0,)),
    )
    found = layers_of(reported, sent(20.0, late_ms=1.0))
    spent = {name: round(float(one[0]), 6) for name, one in found.layers_ms.items()}
    assert spent == {
        "request": 1.0,
        "features": 4.5,
        "candidates": 1.5,
        "model": 5.5,
        "post_processing": 3.5,
        "response": 3.0,
    }
    assert list(spent) == list(MEASURED)
    assert found.in_server_ms.round(6).tolist() == [4.0 + 27 - 16]


def test_only_the_mean_of_the_way_is_known() -> None:
    """Sent at 10, taken at 15 and 19: what one waited longer is in its features."""
    reported = batches(
        *((0, 15, 16, (0,)), (0, 19, 20, (1,)), (2, 22, 23, (0,)), (2, 26, 27, (1,)))
    )
    found = layers_of(reported, sent(15.0, 20.0))
    assert found.layers_ms["request"].round(6).tolist() == [3.0, 3.0]
    assert found.layers_ms["features"].round(6).tolist() == [3.0, 7.0]
    # Their mean is exact: the queue of 4 ms, and the 8 ms from arrival to decision.
    assert found.in_server_ms.mean() == pytest.approx(4.0 + 8.0)


def test_nothing_takes_less_than_no_time() -> None:
    """Two ways of 1 and 19 ms, of which 4 on average are the queue: 1 and 11 are left.

    Of 1 and 3 ms between the steps the decision's queue is a quarter.
    """
    reported = batches(
        *((0, 11, 12, (0,)), (0, 29, 30, (1,)), (2, 13, 14, (0,)), (2, 33, 34, (1,)))
    )
    found = layers_of(reported, sent(15.0, 30.0))
    assert found.layers_ms["request"].round(6).tolist() == [1.0, 11.0]
    assert found.layers_ms["features"].round(6).tolist() == [1.0, 9.0]
    assert found.layers_ms["model"].round(6).tolist() == [0.75, 2.25]
    assert found.layers_ms["post_processing"].round(6).tolist() == [1.25, 1.75]
    assert found.in_server_ms.round(6).tolist() == [3.0, 13.0]


def test_a_queue_longer_than_the_way_takes_all_of_it() -> None:
    """Others' requests waited longer than ours: no layer is less than nothing."""
    reported = batches((0, 12, 13, (0,)), (2, 14, 15, (0,)))
    found = layers_of(reported, sent(10.0))
    assert found.layers_ms["request"].tolist() == [0.0]
    assert found.layers_ms["features"].round(6).tolist() == [3.0]


def test_incomplete_requests_are_left_out() -> None:
    """Not answered, requested again, reported by one step only, not ours."""
    reported = batches(
        (0, 16, 18, (0, 1, 2, 3, 9)),
        (0, 19, 20, (2,)),
        (2, 24, 27, (0, 1, 2)),
        *((0, 5, 6, (4,)), (2, 7, 8, (4,))),  # before it was sent
    )
    found = layers_of(reported, sent(20.0, np.inf, 20.0, 20.0, 20.0))
    assert len(found.in_server_ms) == 1
    with pytest.raises(
        ServerError, match="no answered request has a batch of every step"
    ):
        layers_of(reported, sent(np.inf))


def test_a_warm_up_counts_for_the_mean_alone() -> None:
    """Triton counted it, too; its layers are nobody's."""
    reported = batches(
        *((0, 17, 18, (0,)), (2, 19, 20, (0,)), (0, 15, 16, (1,)), (2, 17, 18, (1,)))
    )
    found = layers_of(reported, sent(12.0, 12.0), first=1)
    assert found.layers_ms["request"].round(6).tolist() == [2.0]
    with pytest.raises(ServerError):
        layers_of(reported, sent(12.0, 12.0), first=2)


def test_a_layer_is_broken_by_its_tail_and_the_way_by_its_mean() -> None:
    """Half of 200 requests are taken 4 ms later than the others."""
    rows = [
        (step, begin + 4 * (one % 2), end + 4 * (one % 2), (one,))
        for one in range(200)
        for step, begin, end in ((0, 15, 16), (2, 17, 18))
    ]
    found = layers_of(batches(*rows), sent(*[30.0] * 200))
    request, features, *_ = judge(found, Layers(request=3.1, features=6.9))
    assert (request.layer, features.layer) == ("request", "features")
    assert request.mean_ms == request.judged_ms == pytest.approx(3.0)
    assert (request.p50_ms, request.p99_ms) == (None, None)
    assert features.p50_ms == pytest.approx(5.0)
    assert features.p99_ms == features.judged_ms == pytest.approx(7.0)
    assert (request.broken, features.broken) == (False, True)
    request, *_ = judge(found, Layers(request=2.9, features=6.9))
    assert request.broken
