"""What the decision step counts, against rows that were counted by hand."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.support.steps.metric_families import PB, Page, value
from tollgate.engine.hysteresis_stage import AnsweredDecisions
from tollgate.policy.decide import PolicyDecisions
from tollgate.policy.hysteresis import Evidence, Kind, pack_evidence
from tollgate.schema import DEFAULT_OUTCOMES, Decision, Degraded, context_dtype
from tollgate.steps.decision_metrics import DecisionMetrics
from tollgate.steps.metric_buffer import MetricBuffer, export_each_second

SPEC = 7
NOW_US = 5_000_000
ENTITIES = ("customer", "terminal")


@pytest.fixture(autouse=True)
def page() -> None:
    """Empty the page."""
    Page.values.clear()
    Page.messages.clear()


def context(rows: int, **columns: object) -> Any:
    """Make context of rows that all are as usual, but for some columns."""
    made = np.zeros(rows, context_dtype(ENTITIES))
    made["spec_hash"] = SPEC
    made["arrival_us"] = NOW_US
    made["features_us"] = 1_500
    for name, one in columns.items():
        made[name] = one
    return made


def decided(
    decision: list[int], score: list[float], degraded: list[int]
) -> PolicyDecisions:
    """Make decisions."""
    rows = len(decision)
    return PolicyDecisions(
        decision=np.array(decision, np.uint8),
        score=np.array(score, np.float32),
        reason_codes=np.full(rows, b"", np.object_),
        degraded=np.array(degraded, np.uint32),
        rules=np.zeros(rows, np.uint64),
        segment=np.zeros(rows, np.uint8),
    )


@pytest.fixture
def metrics() -> Iterator[DecisionMetrics]:
    """The metrics of a step with a challenger."""
    made = DecisionMetrics(
        PB,
        labels={"product": "p"},
        releases=("one", "two"),
        spec_hash=SPEC,
        outcomes=DEFAULT_OUTCOMES,
    )
    yield made
    made.close()


APPROVE, REVIEW, DECLINE = map(int, Decision)
NAN = float("nan")


def test_each_decision_is_counted_by_release_outcome_and_source(
    metrics: DecisionMetrics,
) -> None:
    """The worst of a row's bits is its source; the challenger's rows are its own."""
    bits = [
        0,
        int(Degraded.COLD_START),
        int(Degraded.LAST_KNOWN_VECTOR),
        int(Degraded.LAST_KNOWN_VECTOR | Degraded.STORE_UNAVAILABLE),
        int(Degraded.MODEL_OUTPUT | Degraded.STORE_UNAVAILABLE),
    ]
    outcomes = [APPROVE, DECLINE, REVIEW, REVIEW, DECLINE]
    chosen = np.array([False, True, False, False, False])
    metrics.batch(
        context(5),
        decided(outcomes, [0.1, 0.9, 0.5, 0.5, NAN], bits),
        chosen=chosen,
        began_us=NOW_US + 9_000,
    )
    metrics.close()  # its thread exports, too
    reported = {
        tuple(dict(named)[key] for key in ("release", "outcome", "source")): number
        for (name, named), number in Page.values.items()
        if name == "tollgate_decisions_total" and number
    }
    assert reported == {
        ("one", "approve", "store"): 1,
        ("two", "decline", "store"): 1,
        ("one", "review", "last_known"): 1,
        ("one", "review", "defaults"): 1,
        ("one", "decline", "fallback"): 1,
    }
    assert value("tollgate_score_count", release="one") == 3  # NaN is no score
    assert value("tollgate_score_count", release="two") == 1
    assert value("tollgate_feature_seconds_count", source="last_known") == 1


def test_dry_bad_repeated_and_foreign_rows_are_no_decisions(
    metrics: DecisionMetrics,
) -> None:
    """Each is counted as what it is; foreign ones, whose request failed, as nothing."""
    rows = context(6)
    rows["dry_run"][:2] = 1
    rows["bad"][2] = 1
    rows["earlier_length"][3] = 40
    rows["spec_hash"][4] = SPEC + 1
    scores = [0.5] * 6
    metrics.batch(
        rows, decided([REVIEW] * 6, scores, [0] * 6), chosen=None, began_us=NOW_US
    )
    metrics.close()  # its thread exports, too
    counted = {
        kind: value("tollgate_rows_total", kind=kind)
        for kind in ("decided", "repeated", "dry", "bad")
    }
    assert counted == {"decided": 1, "repeated": 1, "dry": 2, "bad": 1}
    assert value("tollgate_score_count", release="one") == 1


def test_times_are_exported_in_the_buckets_of_prometheus(
    metrics: DecisionMetrics,
) -> None:
    """1.5 ms of features, 7.5 until the decision step; the buckets are cumulative."""
    for _ in range(3):
        metrics.batch(
            context(2),
            decided([APPROVE] * 2, [0.25] * 2, [0] * 2),
            chosen=None,
            began_us=NOW_US + 9_000,
        )
    metrics.close()  # its thread exports, too
    for step, below, above, seconds in (
        ("features", "0.001", "0.002", 0.0015),
        ("model", "0.007", "0.008", 0.0075),
    ):
        named = {"release": "one", "step": step}
        assert value("tollgate_step_seconds_bucket", **named, le=below) == 0
        assert value("tollgate_step_seconds_bucket", **named, le=above) == 6
        assert value("tollgate_step_seconds_bucket", **named, le="+Inf") == 6
        assert value("tollgate_step_seconds_count", **named) == 6
        total = value("tollgate_step_seconds_sum", **named)
        assert total == pytest.approx(6 * seconds)
    assert value("tollgate_batch_rows_bucket", le="1") == 0
    assert value("tollgate_batch_rows_bucket", le="2") == 3
    # One batch of the feature step, whose rows came as three to this one.
    assert value("tollgate_step_busy_seconds_total", step="features") == (
        pytest.approx(0.0015)
    )


def test_log_odds_are_those_of_the_scores(metrics: DecisionMetrics) -> None:
    """ln(s / (1 - s)) above that of a millionth, where scores of 0 count, too."""
    scores = [0.5, 0.9, 0.0]
    metrics.batch(
        context(3),
        decided([APPROVE] * 3, scores, [0] * 3),
        chosen=None,
        began_us=NOW_US,
    )
    metrics.close()  # its thread exports, too
    least = math.log(1e-6 / (1 - 1e-6))
    wanted = (0.0 - least) + (math.log(9) - least) + 0.0
    found = value("tollgate_score_log_odds_sum", release="one")
    assert found == pytest.approx(wanted, rel=1e-6)


def test_scores_below_zero_never_lower_a_counter(metrics: DecisionMetrics) -> None:
    """A number may be negative: `increment` of the page refuses to fall."""
    for scores in ([2.5, -4.0], [-1.0, -2.0]):
        metrics.batch(
            context(2),
            decided([APPROVE] * 2, scores, [0] * 2),
            chosen=None,
            began_us=NOW_US,
        )
    metrics.close()
    assert value("tollgate_score_sum", release="one") == 2.5
    assert value("tollgate_score_count", release="one") == 4


def test_what_the_answer_writes_over_is_not_lost(metrics: DecisionMetrics) -> None:
    """The step reuses the columns of scores and bits for its answer."""
    one = decided([APPROVE], [0.5], [int(Degraded.LAST_KNOWN_VECTOR)])
    metrics.batch(context(1), one, chosen=None, began_us=NOW_US)
    one.score[:] = NAN
    one.degraded[:] = 0
    metrics.close()  # its thread exports, too
    assert value("tollgate_score_count", release="one") == 1
    assert value("tollgate_feature_seconds_count", source="last_known") == 1


def test_everything_a_rate_needs_is_there_before_the_first_row(
    metrics: DecisionMetrics,
) -> None:
    """A counter that begins with 1 has no rate; zeros cost no message."""
    names = {name for name, _ in Page.values}
    assert {"tollgate_rows_total", "tollgate_decisions_total"} <= names
    assert Page.messages == []


def test_the_thread_exports_by_itself(metrics: DecisionMetrics) -> None:
    """The last rows before a pause are exported, too."""
    metrics.batch(
        context(1), decided([APPROVE], [0.5], [0]), chosen=None, began_us=NOW_US
    )
    until_s = time.monotonic() + 600
    while not value("tollgate_rows_total", kind="decided"):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_work_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its first error is logged once, without its words, and the thread goes on."""
    calls: list[int] = []
    words = "a customer's id"

    def fails() -> None:
        calls.append(1)
        raise ValueError(words)

    thread = export_each_second(fails, name="fails")
    until_s = time.monotonic() + 600
    while len(calls) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    thread.stop()
    (message,) = caplog.messages
    assert message.startswith(
        "fails goes on after an error nobody foresaw (1 in a row)"
    )
    assert words not in message


def test_a_counter_is_exported_as_its_increment() -> None:
    """Several additions are one message; nothing new is none."""
    counters = MetricBuffer(
        PB, counters={"n": "A number"}, histograms={}, labels={"product": "p"}
    )
    counters.add("n", (), number=2)
    counters.add("n", (), number=3)
    counters.export()
    counters.export()
    assert (value("n"), Page.messages) == (5, [5])


def test_rows_are_counted_by_how_they_met_the_state_of_hysteresis(
    metrics: DecisionMetrics,
) -> None:
    """An unread state is a kind of its own; other products have no such series."""
    unread = int(Degraded.HYSTERESIS_UNREAD)
    plain = decided([APPROVE] * 5, [0.1] * 5, [0, 0, 0, 0, unread])
    kinds = [Kind.SKIPPED, Kind.COUNTED, Kind.COUNTED, Kind.LATE, Kind.SKIPPED]
    packed = b"".join(pack_evidence(Evidence(kind), level=0) for kind in kinds)
    rows = AnsweredDecisions(
        **structs.asdict(plain),
        evidence=np.frombuffer(packed, np.int64).reshape(-1, 3),
    )
    for batch in (plain, rows, rows):
        metrics.batch(context(5), batch, chosen=None, began_us=NOW_US + 9_000)
    metrics.close()
    assert {
        dict(named)["kind"]: number
        for (name, named), number in Page.values.items()
        if name == "tollgate_hysteresis_rows_total"
    } == {"skipped": 2, "counted": 4, "late": 2, "unread": 2}
