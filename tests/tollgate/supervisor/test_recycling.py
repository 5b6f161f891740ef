"""A working step is restarted if it is too old or too large."""

from __future__ import annotations

from tollgate.supervisor.recycling import JITTER, Recycling
from tollgate.supervisor.stubs import Step, Stub


def stub(pid: int, *, age_s: float = 0.0, mb: float = 50.0) -> Stub:
    """Describe a stub."""
    step = Step("m", 1, f"m_0_{pid}")
    size = round(mb * 1e6)
    return Stub(pid=pid, step=step, stopped=False, age_s=age_s, resident_bytes=size)


def test_the_one_furthest_over_its_limit_goes_first() -> None:
    """A gigabyte of 300 MB before an hour and a half of one."""
    limits = Recycling(age_s=3600.0, resident_bytes=300_000_000)
    found = limits.due([stub(1, age_s=5400), stub(2, mb=1000), stub(3)])
    assert found is not None
    assert (found[0].pid, found[1]) == (2, "holds 1,000 MB")


def test_ages_are_spread_over_a_fifth() -> None:
    """None is due at 79 % of the age, all are at 100 %, some between."""
    limits = Recycling(age_s=1000.0, resident_bytes=0)
    pids = range(100)

    def due(age_s: float) -> int:
        return sum(limits.due([stub(pid, age_s=age_s)]) is not None for pid in pids)

    assert due(1000 * (1 - JITTER) - 1) == 0
    assert 20 < due(1000 * (1 - JITTER / 2)) < 80
    assert due(1000.1) == 100


def test_zero_switches_a_limit_off() -> None:
    """Neither age nor size."""
    assert Recycling(age_s=0.0, resident_bytes=0).due([stub(1, age_s=1e9)]) is None
