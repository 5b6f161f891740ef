"""Scenarios: data that is read strictly and resized without losing its shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.paced.scenario import SCENARIOS_FILE, read_scenario, read_scenarios
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
