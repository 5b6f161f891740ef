"""The search on a server that is a formula: it finds what can be worked out by hand."""

from __future__ import annotations

import pytest

from tests.support.tuning.simulated_server import (
    LIMITS,
    MadeUpServer,
    highest_per_s,
    seen,
)
from tollgate.tuning.goals import (
    STEP,
    AlsoAlone,
    HighestRate,
    QuickestAnswer,
    RunFigures,
)
from tollgate.tuning.search import CandidateResult, plan_rounds, search, tune
from tollgate.tuning.space import THROUGHPUT, Candidate, candidates

BASE = Candidate(delay_us=5000)


@pytest.mark.parametrize("near", [0.0, 40.0, 250.0, 300.0, 2000.0])
def test_the_highest_rate_is_found_to_one_step(near: float) -> None:
    """Wherever it begins."""
    server = MadeUpServer()
    found = HighestRate(LIMITS).look(
        server.drive(BASE), seconds=1.0, near=near, floor=0.0
    )
    assert found.merit <= highest_per_s(BASE) < found.merit * STEP
    assert found.best is not None
    assert found.best.rate_per_s == found.merit


def test_a_rate_below_the_floor_is_not_searched() -> None:
    """Two runs at most, one when it is not a matter of chance."""
    server = MadeUpServer()
    found = HighestRate(LIMITS).look(
        server.drive(BASE), seconds=1.0, near=1000.0, floor=800.0
    )
    assert (found.merit, found.best, len(found.runs)) == (0.0, None, 1)


def test_one_bad_moment_does_not_count() -> None:
    """A run that breaks the promise by little is repeated."""
    server = MadeUpServer()
    whole, asked = server.drive(BASE), []

    def unlucky(rate_per_s: float, seconds: float) -> RunFigures:
        asked.append(rate_per_s)
        first = asked.count(rate_per_s) == 1
        return seen(rate_per_s, p99_ms=30.0) if first else whole(rate_per_s, seconds)

    goal = HighestRate(LIMITS)
    found = goal.look(unlucky, seconds=1.0, near=0.0, floor=0.0)
    calm = goal.look(whole, seconds=1.0, near=0.0, floor=0.0)
    assert found.merit == calm.merit


def test_one_after_the_other_is_judged_by_answers_in_a_second() -> None:
    """There is no rate to be found."""
    run = seen(120.0, p99_ms=9.0)
    found = QuickestAnswer().look(
        lambda rate, seconds: run, seconds=1.0, near=0.0, floor=0.0
    )
    assert (found.merit, found.best) == (120.0, run)


def test_the_comparison_looks_at_lone_requests_too() -> None:
    """Once for each of the two in each turn; the search spares that."""
    server = MadeUpServer()
    alone = AlsoAlone(HighestRate(LIMITS))
    tuned = tune(
        server.look(),
        BASE,
        [Candidate(2500)],
        seconds=1.0,
        turns=3,
        again=server.look(alone),
    )
    assert tuned.compared is not None
    for turn in tuned.compared.turns:
        for candidate, found in zip((Candidate(2500), BASE), turn, strict=True):
            assert found.alone is not None
            assert found.alone.rate_per_s == 0.0
            # No queue at rate 0: the delay and the work.
            assert found.alone.p99_ms == candidate.delay_us / 1e3 + 3.0
    assert all(one.found.alone is None for one in tuned.tried)


def test_rounds_leave_a_third_and_take_twice_as_long() -> None:
    """Until three are left."""
    rounds = [(one.seconds, one.keep) for one in plan_rounds(16, seconds=3.0)]
    assert rounds == [(3.0, 6), (6.0, 2), (12.0, 1)]
    assert [one.keep for one in plan_rounds(1, seconds=3.0)] == [1]


def test_the_search_finds_the_best_of_all() -> None:
    """Worked out by hand: delay 2.5 ms, prefers 8, two instances of the model."""
    server = MadeUpServer()
    others = candidates(THROUGHPUT, BASE, most=60, cores=2, seed=1)
    reported: list[CandidateResult] = []
    tried = search(
        BASE,
        others,
        look=server.look(),
        rounds=plan_rounds(len(others), seconds=1.0),
        report=reported.append,
    )
    best = max(highest_per_s(one) for one in others)
    assert highest_per_s(tried[0].candidate) > best / STEP
    assert {one.candidate for one in tried} == {BASE, *others}
    # A hopeless one is not looked at for long; the good ones are, and the base.
    runs = [one for one, _ in server.runs]
    hopeless = [
        one for one in others if highest_per_s(one) < 0.75 * highest_per_s(BASE)
    ]
    assert hopeless
    assert max(map(runs.count, hopeless)) <= 2
    longest = max(seconds for _, seconds in server.runs)
    last = {one for one, seconds in server.runs if seconds == longest}
    assert BASE in last
    assert len(last) <= 4
    assert len(reported) > len(tried)


def test_a_tuning_holds_what_is_better_and_drops_what_is_not() -> None:
    """The winner is the best by the formula; what is hopeless is not compared."""
    better = [Candidate(2500), Candidate(2500, model_instances=2)]
    noisy = MadeUpServer(noise=0.05, seed=1)
    tuned = tune(noisy.look(), BASE, better, seconds=1.0, turns=5)
    assert tuned.winner == better[1]
    worse = Candidate(5000, features_instances=2)
    lost = tune(noisy.look(), BASE, [worse], seconds=1.0, turns=5)
    assert (lost.winner, lost.compared) == (None, None)


def test_the_better_form_is_recommended_from_either_side() -> None:
    """The best of each form and the base take the same turns."""
    fused = [Candidate(5000, form="fused", fused_queue_delay_us=us) for us in (0, 1000)]
    better = Candidate(2500)
    server = MadeUpServer(noise=0.02, seed=1)
    tuned = tune(server.look(), BASE, [better, *fused], seconds=1.0, turns=4)
    assert tuned.winner == fused[1]
    assert tuned.compared is not None
    assert tuned.forms is not None
    assert (tuned.compared.base, tuned.forms.base) == (BASE, better)
    ratio = highest_per_s(fused[1]) / highest_per_s(better)
    assert ratio / STEP < tuned.forms.ratio < ratio * STEP
    back = tune(server.look(), fused[1], [BASE, better], seconds=1.0, turns=4)
    assert (back.winner, back.forms and back.forms.holds) == (None, False)


def test_better_settings_of_the_served_form_win_over_an_equal_form() -> None:
    """Another form takes a restart, so it has to be better than they are."""
    served = Candidate(2500, model_instances=2)
    fused = Candidate(5000, form="fused")
    assert highest_per_s(BASE) < highest_per_s(fused) < highest_per_s(served)
    tuned = tune(MadeUpServer().look(), BASE, [served, fused], seconds=1.0, turns=3)
    assert tuned.winner == served
    assert tuned.forms is not None
    assert (tuned.forms.candidate, tuned.forms.base) == (fused, served)
    assert not tuned.forms.holds


def test_equal_settings_win_by_chance_no_oftener_than_an_interval_says() -> None:
    """Each of 20 tunings has one chance in 40: two are hardly ever seen."""
    equal = Candidate(5000, decision_instances=2)
    wins = 0
    for seed in range(20):
        server = MadeUpServer(noise=0.1, seed=seed)
        tuned = tune(server.look(), BASE, [equal], seconds=1.0, turns=5)
        wins += tuned.winner is not None
    assert wins <= 2
