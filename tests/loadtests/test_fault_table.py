"""The outcome of a run with a fault, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.faults import (
    WHOLE_IN_A_ROW,
    StoreComparison,
    StoreFault,
    outcome_of,
    to_markdown,
)
from tollgate.load.results import ANSWERED, CALL, NO_ANSWER, Results
from tollgate.schema import Degraded

FAULT = StoreFault("gone", "the store is gone", behind_proxy=False)
EQUAL = StoreComparison(True, values=1_200, different=0)


def run(bits: list[int], *, failed: tuple[int, ...] = ()) -> Results:
    """One request per second from second 0 on; request n takes n ms."""
    count = len(bits)
    calls = np.zeros(count, CALL)
    calls["due_us"] = np.arange(count) * 1_000_000
    calls["took_us"] = np.arange(count) * 1_000
    calls["bits"] = bits
    calls["rows"] = calls["decided"] = 1
    calls["kind"][list(failed)] = 1
    return Results(calls, (ANSWERED, NO_ANSWER), {})


def test_only_what_was_due_during_the_fault_is_counted() -> None:
    """From its begin to before its end; a row with both bits counts as defaulted."""
    known, default = int(Degraded.LAST_KNOWN_VECTOR), int(Degraded.STORE_UNAVAILABLE)
    bits = [default, 0, known, known | default, default, 0, known, known]
    sent = run(bits, failed=(4, 7))
    outcome = outcome_of(FAULT, sent, edges=(1.0, 6.0), comparison=EQUAL)
    assert outcome.sent == 5
    assert outcome.answered == 4
    assert outcome.failed == 1
    assert outcome.degraded == 3
    assert outcome.last_known == 1
    assert outcome.defaulted == 2
    assert outcome.p50_ms == 3.0
    assert outcome.p99_ms == 5.0
    assert outcome.recovered_s is None


def test_recovery_is_the_first_of_many_whole_answers() -> None:
    """A few whole ones before another degraded one are not it."""
    whole = WHOLE_IN_A_ROW
    bits = [2, 2, 2, 0, 0, 2, *[0] * whole, 2, 0]
    outcome = outcome_of(FAULT, run(bits), edges=(0.0, 2.5), comparison=EQUAL)
    # Request 6 is the first of the row: due at 6 s, answered 6 ms later.
    assert outcome.recovered_s == pytest.approx(6 - 2.5 + 0.006)
    assert outcome.late_after == 1


def test_an_answer_without_a_decision_is_not_whole() -> None:
    """It ends a row of whole ones."""
    whole = WHOLE_IN_A_ROW
    bits = [0] * (2 + 2 * whole)
    sent = run(bits, failed=(whole,))
    outcome = outcome_of(FAULT, sent, edges=(0.0, 1.5), comparison=EQUAL)
    assert outcome.recovered_s == pytest.approx(whole + 1 - 1.5 + (whole + 1) / 1e3)


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (EQUAL, "yes: 1,200 values"),
        (StoreComparison(True, values=12, different=3), "no: 3 of 12 differ"),
        (StoreComparison(True, values=0, different=0), "no: 0 of 0 differ"),
        (
            StoreComparison(False, values=12, different=0),
            "no: the spool does not empty",
        ),
    ],
)
def test_the_table_tells_whether_the_features_are_equal(
    comparison: StoreComparison, words: str
) -> None:
    """Only when the spool is empty, and there is something to compare."""
    outcome = outcome_of(FAULT, run([2, 2, 2]), edges=(0.0, 2.0), comparison=comparison)
    text = to_markdown([outcome], "Where and when.")
    row = text.splitlines()[2]
    assert row.startswith("| the store is gone | 2 | 2 | 2 | 2, 0 | 0 | 0.0 | 1.0 |")
    assert row.endswith(f"| never | 0 | {words} |")
    assert text.endswith("\nWhere and when.\n")
