"""A part that fails again right after its repair is given up."""

from __future__ import annotations

from tollgate.supervisor.recovery import Flapping

LIVED_S = 5.0


def test_a_part_that_repeatedly_dies_young_is_given_up() -> None:
    """The first death does not count, and two more are one less than too many."""
    flapping = Flapping(most=2, lived_s=LIVED_S)
    reasons = []
    for at in (0.0, 2.0, 4.0, 6.0):
        reasons.append(flapping.failed("a", now_s=at))
        flapping.repaired("a", now_s=at + 1)
    assert reasons[:3] == ["", "", ""]
    assert reasons[3] == "a failed 3 times in a row within 5 s of being repaired"


def test_a_part_that_lives_in_between_is_always_repaired() -> None:
    """Each part is counted by itself, and a life of five seconds ends the row."""
    flapping = Flapping(most=2, lived_s=LIVED_S)
    now_s = 0.0
    for _ in range(20):
        for young in range(3):
            assert flapping.failed("a", now_s=now_s) == "", young
            assert flapping.failed("b", now_s=now_s) == ""
            flapping.repaired("a", now_s=now_s)
            flapping.repaired("b", now_s=now_s)
            now_s += 1.0
        now_s += LIVED_S


def test_a_part_that_cannot_be_repaired_is_given_up() -> None:
    """A server that takes a minute to fail to start dies young too."""
    flapping = Flapping(most=2, lived_s=LIVED_S)
    reasons = [flapping.failed("a", now_s=60.0 * attempt) for attempt in range(4)]
    assert [bool(one) for one in reasons] == [False, False, False, True]
