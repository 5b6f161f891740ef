"""Write no faster than one may, so that decisions do not wait for Redis."""

from __future__ import annotations

import time


class Pace:
    """
    Spreads calls over time.

    Args:
        rate_per_s: Most events a second; 0 for no bound.
    """

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s

    def begin(self) -> float:
        """Note when a call begins; seconds."""
        return time.monotonic()

    def end(self, begun_s: float, events: int) -> None:
        """Wait until a call of so many events has taken its time."""
        if self._rate_per_s:
            left_s = begun_s + events / self._rate_per_s - time.monotonic()
            time.sleep(max(0.0, left_s))
