"""
Which Python step to start anew because it is old or large.

A leak costs nothing when no process lives long enough. One step at a time, and each
at an age of its own, so that they do not all go in the same minute.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from tollgate.supervisor.stubs import Stub

JITTER = 0.2  # of the age: each stub's own draw, fixed by its process id
APART_S = 30.0


class Recycling(msgspec.Struct, frozen=True):
    """
    How old and how large a step may grow.

    Attributes:
        age_s: Age at which a step is started anew, less up to a fifth; 0 for never.
        resident_bytes: Resident memory above which it is; 0 for any.
        apart_s: Least seconds between two.
    """

    age_s: float = 86_400.0
    resident_bytes: int = 1 << 30
    apart_s: float = APART_S

    def due(self, stubs: Iterable[Stub]) -> tuple[Stub, str] | None:
        """Choose the stub that is over its limit most, and say by what."""
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
