"""Scenarios: data that is read strictly and resized without losing its shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtests.paced.scenario import (
    SCENARIOS_FILE,
    Phase,
    Scenario,
    arrivals,
    expected_by,
    read_scenario,
    read_scenarios,
)
from tollgate.errors import InputError


def test_the_file_has_every_scenario_that_is_promised() -> None:
    """Each is there, says what it is, and is longer than its warm-up."""
    found = read_scenarios(SCENARIOS_FILE)
    assert set(found) == {
        *("steady", "ramp", "peak", "spike", "soak", "retry-storm", "slow-store"),
        *("poison-mix", "distribution-shift"),
    }
    assert all(one.says and one.seconds > one.warm_up_s for one in found.values())


def test_a_scenario_keeps_its_shape_in_another_size() -> None:
    """Rates and times grow in proportion; what happens meanwhile moves along."""
    name, peak = read_scenario("peak")
    sized = peak.at(rate=1000, seconds=12, rows=4, warm_up_s=0.5)
    assert name == "peak"
    assert (sized.peak_rate, sized.rows, sized.warm_up_s) == (1000, 4, 0.5)
    assert sized.seconds == pytest.approx(12)
    assert [phase.rate for phase in sized.phases] == [200, 200, 1000, 1000, 200]
    _, store = read_scenario("slow-store")
    trouble = store.at(seconds=60).trouble
    assert trouble is not None
    assert (trouble.at_s, trouble.seconds, trouble.delay_ms) == (20, 20, 50)
    _, shifted = read_scenario("distribution-shift")
    shift = shifted.at(seconds=6).shift
    assert shift is not None
    assert shift.at_s == pytest.approx(3)


def test_a_scenario_of_another_file_is_found_by_its_place(tmp_path: Path) -> None:
    """FILE:NAME; what is not said is as in docs/loadtests.md."""
    file = tmp_path / "ours.yaml"
    file.write_text("lunch:\n  phases: [{seconds: 3, rate: 5}]\n")
    name, lunch = read_scenario(f"{file}:lunch")
    assert (name, lunch.rows, lunch.timeout_ms, lunch.retries) == ("lunch", 1, 1000, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x: {phases: []}", r"x.*length >= 1"),
        ("x: {phases: [{seconds: 0, rate: 5}]}", r"> 0.0.*phases\[0\]\.seconds"),
        ("x: {phases: [{seconds: 3, rate: 5}], row: 2}", "unknown field `row`"),
        ("x: {phases: [{seconds: 3, rate: 5}], rows: 33}", r"<= 32.*rows"),
        ("x: {phases: [{seconds: 2, rate: 5}]}", "the warm-up of 2 s is all there is"),
        ("x: {phases: [{seconds: 3, rate: 5}], trouble: {kind: flood}}", "kind"),
        ("x", "dict|object"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    """Names the file, the field and the rule."""
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as raised:
        read_scenarios(file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_scenario_names_those_there_are() -> None:
    """So does a size that makes no sense name itself."""
    with pytest.raises(InputError, match="'x' is none of steady, ramp, peak"):
        read_scenario("x")
    with pytest.raises(InputError, match=r"missing\.yaml"):
        read_scenario("missing.yaml:x")
    steady = read_scenario("steady")[1]
    with pytest.raises(InputError, match="rows"):
        steady.at(rows=0)
    with pytest.raises(InputError, match="--seconds: the warm-up of 2 s is all"):
        steady.at(seconds=1)


# Arrivals: as many as expected, where they are expected, and at random.


def test_a_steady_rate_has_exponential_distances() -> None:
    """Mean and deviation are both 1 / rate; the same seed gives the same times."""
    steady = Scenario(phases=(Phase(seconds=100, rate=200),))
    at_s = arrivals(steady, seed=3)
    gaps_s = np.diff(at_s)
    assert (gaps_s >= 0).all()
    assert 0 < at_s[0] < at_s[-1] < 100
    assert abs(len(at_s) - 20_000) < 5 * 20_000**0.5
    assert abs(gaps_s.mean() * 200 - 1) < 0.03
    assert abs(gaps_s.std() * 200 - 1) < 0.05
    assert np.array_equal(at_s, arrivals(steady, seed=3))
    assert not np.array_equal(at_s[:9], arrivals(steady, seed=4)[:9])


def test_a_ramp_has_what_the_area_under_it_says() -> None:
    """From 0 to 400 in 100 s: 20,000 in all, a quarter of them in the first half."""
    ramp = Scenario(phases=(Phase(seconds=100, rate=1e-9, to=400),))
    at_s, expected = expected_by(ramp)
    assert expected[-1] == pytest.approx(20_000)
    assert np.interp(50, at_s, expected) == pytest.approx(5_000, rel=1e-6)
    drawn = arrivals(ramp, seed=1)
    assert abs(len(drawn) - 20_000) < 5 * 20_000**0.5
    assert abs((drawn < 50).sum() - 5_000) < 5 * 5_000**0.5


def test_phases_follow_one_another() -> None:
    """100/s, then 1,000/s, then 100/s: counts of each part are its own."""
    spike = Scenario(
        phases=tuple(Phase(seconds=10, rate=one) for one in (100, 1e3, 100))
    )
    counts, _ = np.histogram(arrivals(spike, seed=5), [0, 10, 20, 30])
    for count, expected in zip(counts.tolist(), (1e3, 1e4, 1e3), strict=True):
        assert abs(count - expected) < 5 * expected**0.5
