"""Limits of a machine, over files and limits made by hand."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import SetupError
from tollgate.server.processes.resources import Resources, measure

MIB = 1 << 20
ENOUGH = Resources(
    shm_bytes=256 * MIB, shm_free_bytes=256 * MIB, files=4096, memory_bytes=1 << 30
)


@pytest.mark.parametrize(
    ("free_mib", "products", "region_mib"),
    [(16, 1, 2), (24, 2, 1), (64, 1, 8), (64, 2, 4), (4096, 1, 8), (24, 3, 1)],
)
def test_regions_of_all_steps_fit_twice_with_room(
    free_mib: int, products: int, region_mib: int
) -> None:
    """As during a switch of release; a quarter of the free memory is left."""
    here = msgspec.structs.replace(ENOUGH, shm_free_bytes=free_mib * MIB)
    here.require(products)
    assert here.region_bytes(products) == region_mib * MIB
    assert 2 * 3 * products * region_mib <= free_mib - 4 * (free_mib >= 16)


@pytest.mark.parametrize(
    ("free_mib", "files", "products", "words"),
    [
        (15, 4096, 1, "/dev/shm has 15 MiB free"),
        (20, 4096, 3, "need 22 MiB"),
        (256, 255, 1, "255 files open"),
        (256, 256, 2, "256 files open"),
    ],
)
def test_a_start_that_cannot_work_is_refused(
    free_mib: int, files: int, products: int, words: str
) -> None:
    """The words name the resource, the figure and the need."""
    here = msgspec.structs.replace(ENOUGH, shm_free_bytes=free_mib * MIB, files=files)
    with pytest.raises(SetupError, match=words):
        here.require(products)


def test_memory_is_the_containers_where_that_has_less(tmp_path: Path) -> None:
    """Control groups of version 2 and 1, and none; "max" is no limit."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  4096 kB\n")
    (tmp_path / "memory").mkdir()

    def found() -> int:
        return measure(shm=tmp_path, proc=tmp_path, cgroups=tmp_path).memory_bytes

    assert found() == 4096 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert found() == 4096 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert found() == 600_000
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("300000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("100000\n")
    assert found() == 200_000


def test_shared_memory_is_what_the_file_system_says(tmp_path: Path) -> None:
    """As statvfs(3) has it; a missing one is refused."""
    numbers = os.statvfs(tmp_path)
    found = measure(shm=tmp_path)
    assert found.shm_bytes == numbers.f_blocks * numbers.f_frsize
    assert found.files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with pytest.raises(SetupError, match="mount a tmpfs"):
        measure(shm=tmp_path / "nothing")


def test_the_soft_limit_of_open_files_goes_up_to_the_hard_one() -> None:
    """In a process of its own, and for what it starts."""
    program = """
import resource, subprocess
from tollgate.server.processes.resources import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 700))
raise_file_limit()
print(subprocess.run("ulimit -n", shell=True, capture_output=True).stdout.decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "700"
