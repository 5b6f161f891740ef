"""
Choose which Python step to restart because its process is old or large.

A leak costs nothing when no process lives long enough. Steps are restarted one at a
time, each at a different age, so that they do not all restart in the same minute.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from tollgate.supervisor.stubs import Stub

JITTER = 0.2  # fraction of the age: each stub draws its own, fixed by its process id
APART_S = 30.0


class Recycling(msgspec.Struct, frozen=True):
    """
    Limits of age and memory for a step's process.

    Attributes:
        age_s: Age in seconds at which a step is restarted, less up to a fifth; 0 for
            never.
        resident_bytes: Resident memory in bytes above which it is restarted; 0 for no
            limit.
        apart_s: Minimum seconds between two restarts.
    """

    age_s: float = 86_400.0
    resident_bytes: int = 1 << 30
    apart_s: float = APART_S

    def due(self, stubs: Iterable[Stub]) -> tuple[Stub, str] | None:
        """Choose the stub that exceeds its limit most, and describe the limit."""
        over: list[tuple[float, Stub, str]] = []
        for stub in stubs:
            if self.resident_bytes and stub.resident_bytes > self.resident_bytes:
                size_mb = stub.resident_bytes / 1e6
                share = stub.resident_bytes / self.resident_bytes
                over.append((share, stub, f"holds {size_mb:,.0f} MB"))
            draw = random.Random(stub.pid).random()
            limit_s = self.age_s * (1 - JITTER * draw)
            if self.age_s and stub.age_s > limit_s:
                why = f"is {stub.age_s / 3600:.1f} h old"
                over.append((stub.age_s / limit_s, stub, why))
        if not over:
            return None
        _, stub, why = max(over, key=lambda one: one[0])
        return stub, why
