"""Name and remove the shared memory of Triton and its Python steps."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tollgate.server.processes.environment import SHM


def region_prefix(state: Path) -> str:
    """Return the name prefix of a state folder's shared-memory regions."""
    numbers = state.stat()
    text = f"{numbers.st_dev}:{numbers.st_ino}:{state}"
    return f"tollgate_{hashlib.sha256(text.encode()).hexdigest()[:12]}_"


def remove_regions(state: Path, *, shm: Path = SHM) -> None:
    """Remove the shared memory that a killed server of this folder left behind."""
    for region in shm.glob(f"{region_prefix(state)}*"):
        region.unlink(missing_ok=True)
