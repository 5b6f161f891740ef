"""When to stop mending something that will not stay mended."""

from __future__ import annotations

from collections import defaultdict, deque

MOST = 8
WITHIN_S = 60.0


class Flapping:
    """
    Counts how often each part was mended lately.

    Args:
        most: Mendings of one part within `within_s` that are still taken.
        within_s: How long a mending counts.
    """

    def __init__(self, *, most: int = MOST, within_s: float = WITHIN_S) -> None:
        self._most = most
        self._within_s = within_s
        self._mended_s: defaultdict[str, deque[float]] = defaultdict(deque)

    def mended(self, part: str, *, now_s: float) -> str:
        """
        Count a mending.

        Args:
            part: What was mended.
            now_s: A monotonic clock.

        Returns:
            Why to give up; empty to go on.
        """
        times = self._mended_s[part]
        times.append(now_s)
        while times[0] <= now_s - self._within_s:
            times.popleft()
        if len(times) <= self._most:
            return ""
        return f"{part} failed {len(times)} times within {self._within_s:g} s"
