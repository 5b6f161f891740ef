"""Read the limits of this machine or container: shared memory, open files, memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec

from tollgate.errors import SetupError
from tollgate.server.processes.environment import SHM, SHM_NEEDED_BYTES

MIB = 1 << 20
STEPS = 3  # Python steps of a product; each has a region of shared memory
# During a switch of release or a step's restart, each exists twice for a moment.
_REGIONS = 2 * STEPS
_SPARE = 0.75  # share of the free shared memory for regions; the rest is for growth
# A batch has at most 32 rows; 32 requests of 128 KiB, the gateway's limit, are 4 MiB,
# and a region holds its inputs and its outputs.
LARGEST_REGION_BYTES = 8 * MIB
FILES_NEEDED = 256
# tritonserver with one product has some 130 files open before the first connection
# (Triton 2.51), and loading a release takes more for a moment.
_OWN_FILES, _OWN_FILES_OF_PRODUCT = 160, 30
_CGROUPS = Path("/sys/fs/cgroup")


class Resources(msgspec.Struct, frozen=True):
    """
    The resources that a server may use here.

    Attributes:
        shm_bytes: Size of /dev/shm.
        shm_free_bytes: Free space in it.
        files: Maximum number of open files of a process: RLIMIT_NOFILE, the soft limit.
        memory_bytes: Memory available without swapping: of the machine, or of the
            container if that has less.
    """

    shm_bytes: int
    shm_free_bytes: int
    files: int
    memory_bytes: int

    def region_bytes(self, products: int) -> int:
        """
        Choose the size of a Python step's region of shared memory.

        It is reserved when the step starts, so that requests need no more later.
        """
        share = int(self.shm_free_bytes * _SPARE) // (_REGIONS * products)
        return max(MIB, min(share // MIB * MIB, LARGEST_REGION_BYTES))

    def connections(self, products: int) -> int:
        """Return how many caller connections tritonserver has file descriptors for."""
        return max(0, self.files - _OWN_FILES - _OWN_FILES_OF_PRODUCT * products)

    def require(self, products: int) -> None:
        """
        Fail if a server cannot run with these resources.

        Raises:
            SetupError: Names the resource, how much there is and how much is needed.
        """
        needed = max(SHM_NEEDED_BYTES, _REGIONS * products * MIB + 4 * MIB)
        if self.shm_free_bytes < needed:
            raise SetupError(
                f"{SHM} has {self.shm_free_bytes >> 20} MiB free, the Python steps of "
                f"{products} product(s) need {needed >> 20} MiB",
                remedy="free some, or give the container more (docker run "
                "--shm-size=256m)",
            )
        least = FILES_NEEDED + _OWN_FILES_OF_PRODUCT * (products - 1)
        if self.files < least:
            raise SetupError(
                f"a process may have {self.files} files open here, a server of "
                f"{products} product(s) needs {least}",
                remedy="raise the limit (ulimit -n, docker run --ulimit "
                "nofile=65536, systemd LimitNOFILE=)",
            )

    def text(self, products: int) -> str:
        """Describe in one line what the limits allow."""
        region = self.region_bytes(products)
        return (
            f"/dev/shm {self.shm_free_bytes >> 20} of {self.shm_bytes >> 20} MiB free: "
            f"{region >> 20} MiB for each Python step, batches of 32 rows with up to "
            f"{region // 64 >> 10} KiB each; {self.files} open files: "
            f"{self.connections(products)} connections; "
            f"{self.memory_bytes >> 20} MiB of memory"
        )


def measure(
    *,
    shm: Path = SHM,
    proc: Path = Path("/proc"),
    cgroups: Path = _CGROUPS,
    hard_files: bool = False,
) -> Resources:
    """
    Measure the resources that this process and its children may use.

    Args:
        shm: The file system of POSIX shared memory.
        proc: Folder in which the kernel shows memory.
        cgroups: Folder in which the kernel shows control groups, version 1 or 2.
        hard_files: Use the hard limit of open files, for a server that raises the soft
            one.

    Raises:
        SetupError: There is no shared memory.
    """
    try:
        numbers = os.statvfs(shm)
    except OSError as error:
        raise SetupError(
            f"{shm} is missing, where Triton's Python steps exchange tensors",
            remedy="mount a tmpfs there",
        ) from error
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[hard_files]
    return Resources(
        shm_bytes=numbers.f_blocks * numbers.f_frsize,
        shm_free_bytes=numbers.f_bavail * numbers.f_frsize,
        files=1 << 20 if files == resource.RLIM_INFINITY else files,
        memory_bytes=_memory_bytes(proc, cgroups),
    )


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one, for children too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _memory_bytes(proc: Path, cgroups: Path) -> int:
    lines = (proc / "meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    found = [int(available.split()[1]) << 10]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most = (cgroups / limit).read_text().strip()
            taken = (cgroups / used).read_text().strip()
        except OSError:
            continue  # another version of control groups, or none
        if most.isdigit() and taken.isdigit():
            found.append(max(0, int(most) - int(taken)))
    return min(found)
