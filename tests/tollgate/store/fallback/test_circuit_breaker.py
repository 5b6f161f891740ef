"""When the breaker opens, probes and closes; on a clock of the test's own."""

from __future__ import annotations

import pytest

from tollgate.store.fallback.circuit_breaker import (
    BreakerRules,
    BreakerState,
    CircuitBreaker,
)

RULES = BreakerRules(
    failures_in_a_row=3,
    recent_calls=10,
    failed_share=0.5,
    probe_interval_s=0.25,
    probe_jitter=0.2,
)


class Clock:
    """A clock that moves on command."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock of the breaker."""
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    """A closed breaker, whose chance is always in the middle."""
    return CircuitBreaker(clock, lambda: 0.5, rules=RULES)


def open_up(breaker: CircuitBreaker) -> None:
    """Let as many calls fail as it takes."""
    for _ in range(RULES.failures_in_a_row):
        breaker.failed()
    assert breaker.state is BreakerState.OPEN


def test_opens_after_failures_in_a_row(breaker: CircuitBreaker) -> None:
    """The third in a row, and not the second; a success in between starts again."""
    assert [breaker.failed(), breaker.failed()] == [False, False]
    breaker.succeeded()
    assert [breaker.failed(), breaker.failed()] == [False, False]
    assert breaker.allows()
    assert breaker.failed()
    assert not breaker.allows()
    assert breaker.opened == 1


def test_opens_when_half_of_the_recent_calls_failed(breaker: CircuitBreaker) -> None:
    """Every other call fails: five of ten open it, although never two in a row."""
    for _ in range(4):
        assert not breaker.failed()
        breaker.succeeded()
    breaker.succeeded()
    assert breaker.failed()
    assert breaker.state is BreakerState.OPEN


def test_a_few_late_calls_do_not_open_it(breaker: CircuitBreaker) -> None:
    """Two of ten, over and over, are no reason."""
    for _ in range(50):
        assert not breaker.failed()
        for _ in range(4):
            breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED


def test_an_answered_probe_lets_a_call_through_that_decides(
    breaker: CircuitBreaker,
) -> None:
    """It closes when that call succeeds, and is as new then."""
    open_up(breaker)
    breaker.probed(False)
    assert not breaker.allows()
    breaker.probed(True)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert [breaker.failed(), breaker.failed()] == [False, False]


def test_one_failure_opens_a_half_open_breaker(breaker: CircuitBreaker) -> None:
    """A store that answers probes but no calls costs one batch per interval."""
    open_up(breaker)
    breaker.probed(True)
    assert breaker.failed()
    assert breaker.state is BreakerState.OPEN
    assert breaker.until_probe_s() == pytest.approx(RULES.probe_interval_s)


def test_probes_come_at_the_interval(breaker: CircuitBreaker, clock: Clock) -> None:
    """A quarter of a second after it opened, and after each probe."""
    open_up(breaker)
    assert breaker.until_probe_s() == pytest.approx(0.25)
    clock.now_s += 0.2
    assert breaker.until_probe_s() == pytest.approx(0.05)
    clock.now_s += 1.0
    assert breaker.until_probe_s() == 0.0
    breaker.probed(False)
    assert breaker.until_probe_s() == pytest.approx(0.25)


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 0.2), (0.5, 0.25), (0.999, 0.3)])
def test_jitter_varies_the_interval_by_its_share(
    clock: Clock, chance: float, wait_s: float
) -> None:
    """Both ways, by a fifth at most."""
    breaker = CircuitBreaker(clock, lambda: chance, rules=RULES)
    open_up(breaker)
    assert breaker.until_probe_s() == pytest.approx(wait_s, abs=1e-3)
