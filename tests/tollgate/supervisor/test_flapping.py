"""When mending ends."""

from __future__ import annotations

from tollgate.supervisor.flapping import Flapping

LIVED_S = 5.0


def test_what_dies_young_again_and_again_is_given_up() -> None:
    """The first death does not count, and two more are one less than too many."""
    flapping = Flapping(most=2, lived_s=LIVED_S)
    told = []
    for at in (0.0, 2.0, 4.0, 6.0):
        told.append(flapping.failed("a", now_s=at))
        flapping.mended("a", now_s=at + 1)
    assert told[:3] == ["", "", ""]
    assert told[3] == "a failed 3 times in a row within 5 s of being mended"


def test_what_lives_in_between_is_mended_for_ever() -> None:
    """Each part is counted by itself, and a life of five seconds ends the row."""
    flapping = Flapping(most=2, lived_s=LIVED_S)
    now_s = 0.0
    for _ in range(20):
        for young in range(3):
            assert flapping.failed("a", now_s=now_s) == "", young
            assert flapping.failed("b", now_s=now_s) == ""
            flapping.mended("a", now_s=now_s)
            flapping.mended("b", now_s=now_s)
            now_s += 1.0
        now_s += LIVED_S


def test_what_cannot_be_mended_at_all_is_given_up_however_long_it_takes() -> None:
    """A server that takes a minute to fail to start dies young too."""
    flapping = Flapping(most=2, lived_s=LIVED_S)
    told = [flapping.failed("a", now_s=60.0 * attempt) for attempt in range(4)]
    assert [bool(why) for why in told] == [False, False, False, True]
