"""Two settings in turns: what their ratio is, and whether it is more than chance."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from tests.support.tuning.simulated_server import MadeUpServer, highest_per_s
from tollgate.tuning.goals import STEP
from tollgate.tuning.search import (
    FEWEST,
    MOST,
    Comparison,
    compare,
    measure_in_turns,
    ratio_of,
)
from tollgate.tuning.space import Candidate


def compared_in_turns(
    ours: Candidate, was: Candidate, *, server: MadeUpServer, seconds: float, turns: int
) -> Comparison:
    """Compare two settings on a server."""
    base, mine = measure_in_turns(
        [was, ours], look=server.look(), seconds=seconds, turns=turns
    )
    return compare(ours, was, ours=mine, was=base)


@pytest.mark.parametrize("turns", range(FEWEST, MOST + 1))
def test_the_interval_is_students(turns: int) -> None:
    """SciPy gives the same ends for the same ratios."""
    pairs = [(1.1 + 0.05 * (n % 3), 1.0) for n in range(turns)]
    ratio, low, high = ratio_of(pairs)
    logs = [math.log(ours / was) for ours, was in pairs]
    mean = sum(logs) / turns
    wanted = stats.t.interval(0.95, turns - 1, loc=mean, scale=stats.sem(logs))
    assert ratio == pytest.approx(math.exp(mean))
    assert (math.log(low), math.log(high)) == pytest.approx(wanted, rel=1e-3)


def test_without_a_rate_that_is_kept_nothing_is_certain() -> None:
    """Unless the other one never sustained any, and this one always did."""
    assert ratio_of([(10.0, 0.0)] * 3) == (math.inf, math.inf, math.inf)
    assert ratio_of([(10.0, 0.0), (10.0, 9.0), (0.0, 9.0)]) == (1.0, 0.0, math.inf)


def test_the_ratio_is_that_of_the_formula() -> None:
    """To a step of the scale; who comes first changes from turn to turn."""
    ours, was = Candidate(2500, model_instances=2), Candidate(5000)
    server = MadeUpServer()
    compared = compared_in_turns(ours, was, server=server, seconds=2.0, turns=4)
    runs = [*server.runs]
    wanted = highest_per_s(ours) / highest_per_s(was)
    assert wanted / STEP < compared.ratio < wanted * STEP
    assert compared.holds
    back = compared_in_turns(was, ours, server=server, seconds=2.0, turns=4)
    assert (back.holds, back.verdict[:5]) == (False, "worse")
    order = [one for one, _ in runs]
    firsts = [one for n, one in enumerate(order) if not n or order[n - 1] != one]
    assert firsts == [was, ours, was, ours, was]


def test_equal_settings_do_not_win() -> None:
    """Without any noise, the ratio is one, and so are both ends."""
    compared = compared_in_turns(
        Candidate(0), Candidate(0), server=MadeUpServer(), seconds=1.0, turns=3
    )
    assert (compared.ratio, compared.low, compared.high) == (1.0, 1.0, 1.0)
    assert not compared.holds
    assert compared.verdict == "within the noise"
