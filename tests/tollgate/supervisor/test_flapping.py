"""When mending ends."""

from __future__ import annotations

from tollgate.supervisor.flapping import Flapping


def test_the_third_in_a_minute_is_one_too_many() -> None:
    """Each part is counted by itself, and a mending is forgotten after a while."""
    flapping = Flapping(most=2, within_s=60.0)
    told = [
        flapping.mended(part, now_s=at)
        for part, at in (("a", 0), ("b", 1), ("a", 30), ("a", 60), ("a", 61), ("b", 62))
    ]
    assert told == ["", "", "", "", "a failed 3 times within 60 s", ""]
