"""Tests of describing a machine."""

from __future__ import annotations

import os
import platform

import pytest

from tollgate.load.surroundings import hardware_of

CPU = "processor\t: {n}\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu {flag} sse\n\n"


@pytest.mark.parametrize(
    ("flag", "expected"), [("hypervisor", ", virtual"), ("vme", "")]
)
def test_hardware_is_one_line_of_words(flag: str, expected: str) -> None:
    """Kind and number of processors, memory, and whether it is a virtual machine."""
    count = len(os.sched_getaffinity(0))
    cpuinfo = "".join(CPU.format(n=n, flag=flag) for n in range(count))
    text = hardware_of(cpuinfo, "MemTotal:       25165824 kB\n")
    assert text == (
        f"{count} x Some CPU @ 2 GHz, 24 GiB of memory{expected}, "
        f"Linux {platform.release()}"
    )


def test_processors_that_may_not_be_used_are_told() -> None:
    """A limit on this process changes every figure."""
    count = len(os.sched_getaffinity(0))
    cpuinfo = "".join(CPU.format(n=n, flag="") for n in range(count + 2))
    assert f"{count} usable" in hardware_of(cpuinfo, "")
