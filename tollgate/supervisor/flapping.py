"""When to stop mending something that will not stay mended."""

from __future__ import annotations

MOST = 8
LIVED_S = 5.0


class Flapping:
    """
    Counts how often in a row each part died young, or could not be mended at all.

    However often something is killed, it is worth mending as long as it works in
    between. What dies again at once, eight times, will do so the ninth time too.

    Args:
        most: Young deaths of one part in a row that are still mended.
        lived_s: How long a mended part must live for its death to be a new one.
    """

    def __init__(self, *, most: int = MOST, lived_s: float = LIVED_S) -> None:
        self._most = most
        self._lived_s = lived_s
        self._young: dict[str, int] = {}
        # When each part was mended last; not there while the last mending failed.
        self._mended_s: dict[str, float] = {}

    def failed(self, part: str, *, now_s: float) -> str:
        """
        Count a death, before it is mended.

        Args:
            part: What died.
            now_s: A monotonic clock.

        Returns:
            Why to give up; empty to go on.
        """
        first = part not in self._young
        mended_s = self._mended_s.pop(part, None)
        lived = mended_s is not None and now_s - mended_s >= self._lived_s
        young = 0 if first or lived else self._young[part] + 1
        self._young[part] = young
        if young <= self._most:
            return ""
        return (
            f"{part} failed {young} times in a row within {self._lived_s:g} s of "
            "being mended"
        )

    def mended(self, part: str, *, now_s: float) -> None:
        """Note that a part works again."""
        self._mended_s[part] = now_s

    def forget(self, part: str) -> None:
        """Count from the beginning again."""
        self._young.pop(part, None)
