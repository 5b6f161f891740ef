"""Decide when to stop restarting a part that keeps failing."""

from __future__ import annotations

MOST = 8
LIVED_S = 5.0


class Flapping:
    """
    Count how often in a row each part died young or could not be repaired.

    A part that works in between is worth a restart, however often it is killed. A part
    that dies again at once eight times will do so the ninth time too.

    Args:
        most: Number of early deaths of one part in a row after which it is still
            restarted.
        lived_s: Seconds that a repaired part must live so that its next death starts a
            new count.
    """

    def __init__(self, *, most: int = MOST, lived_s: float = LIVED_S) -> None:
        self._most = most
        self._lived_s = lived_s
        self._young: dict[str, int] = {}
        # Time of each part's last repair; no entry while its last repair failed.
        self._repaired_s: dict[str, float] = {}

    def failed(self, part: str, *, now_s: float) -> str:
        """
        Count a failure, before the part is repaired.

        Args:
            part: The part that failed.
            now_s: Time on a monotonic clock, seconds.

        Returns:
            Reason to give up; empty to go on.
        """
        first = part not in self._young
        repaired_s = self._repaired_s.pop(part, None)
        lived = repaired_s is not None and now_s - repaired_s >= self._lived_s
        young = 0 if first or lived else self._young[part] + 1
        self._young[part] = young
        if young <= self._most:
            return ""
        return (
            f"{part} failed {young} times in a row within {self._lived_s:g} s of "
            "being repaired"
        )

    def repaired(self, part: str, *, now_s: float) -> None:
        """Record that a part works again."""
        self._repaired_s[part] = now_s

    def forget(self, part: str) -> None:
        """Reset the count of a part."""
        self._young.pop(part, None)
