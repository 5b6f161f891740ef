"""Cut a release's decisions into windows: so many in a row, and whole days."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from tollgate.monitor.judging import Limits, Verdict, judge
from tollgate.monitor.tallies import Mix, Rows, Tally
from tollgate.monitor.training import Reference

DAY_US = 86_400_000_000
# The disk has a decision 30 s after it was made, by the journal's worker; a day is
# judged when it is so much over, so that its last minutes are in it.
SETTLED_US = 600_000_000
# Where more of the rows were set apart, those that are left are no fair sample, and
# the purchases that the store missed are missing in their windows, too.
MOST_APART = 0.1
KEPT = 400  # windows of each kind that are remembered one by one


class Window(msgspec.Struct, frozen=True, eq=False):
    """
    A window that is complete.

    Attributes:
        kind: "decisions" or "day".
        number: Which of its kind, from 1 on.
        rows: Sound rows in it.
        mix: How all its rows came out.
        verdicts: Per column; none where there is nothing to compare with, or where too
            many rows were set apart.
    """

    kind: str
    number: int
    rows: int
    mix: Mix
    verdicts: list[Verdict]

    @property
    def drifted(self) -> list[Verdict]:
        """Columns that drifted, the farthest first."""
        found = [one for one in self.verdicts if one.state == "drift"]
        return sorted(found, key=lambda one: -one.found.psi)


class _Open:
    """A window that is being filled."""

    def __init__(self, reference: Reference | None) -> None:
        self.tally = Tally(reference) if reference is not None else None
        self.mix = Mix()
        self.rows = 0  # sound ones

    def add(self, rows: Rows) -> None:
        self.mix.add(rows)
        self.rows += int(rows.sound.sum())
        if self.tally is not None:
            self.tally.add(rows.take(rows.sound))


class Stream:
    """
    The decisions of one release, as they come.

    Args:
        release: Its name.
        reference: What they are compared with; or why there is nothing.
        size: Sound decisions in a window.
        limits: What is not accepted.

    Attributes:
        mix: How all of them came out.
        windows, days: The last ones that are complete.
        closed, judged, drifted: How many of each kind are complete, were judged, and
            drifted, in all.
        troubled: How many were not judged because too many rows were set apart.
    """

    def __init__(
        self, release: str, reference: Reference | str, *, size: int, limits: Limits
    ) -> None:
        self.release = release
        self.problem = reference if isinstance(reference, str) else ""
        self.reference = None if isinstance(reference, str) else reference
        self.mix = Mix()
        self.windows: deque[Window] = deque(maxlen=KEPT)
        self.days: deque[Window] = deque(maxlen=KEPT)
        self.closed = {"decisions": 0, "day": 0}
        self.judged = {"decisions": 0, "day": 0}
        self.troubled = {"decisions": 0, "day": 0}
        self.drifted = {"decisions": 0, "day": 0}
        self._size = size
        self._limits = limits
        self._open = _Open(self.reference)
        self._open_days: dict[int, _Open] = {}
        self._closed_day = -1

    @property
    def waiting(self) -> int:
        """Sound decisions in the window that is not full yet."""
        return self._open.rows

    def fates(self) -> dict[str, int]:
        """Count decisions by what became of them here; each is in one."""
        kept = self.mix.rows - self.mix.withheld
        degraded, unknown = self.mix.apart, self.mix.foreign
        if self.reference is None:
            unknown = kept - degraded
        return {
            "compared": kept - unknown - degraded,
            "degraded": degraded,
            "withheld": self.mix.withheld,
            "unknown": unknown,
        }

    def add(self, rows: Rows) -> None:
        """Count decisions, in the order in which they were made; judge full windows."""
        self.mix.add(rows)
        for day in np.unique(rows.decided_us // DAY_US).tolist():
            if day > self._closed_day:  # what comes later still is in the mix alone
                its = rows.take(rows.decided_us // DAY_US == day)
                self._open_days.setdefault(day, _Open(self.reference)).add(its)
        at = 0
        while at < len(rows):
            room = self._size - self.waiting
            sound = np.flatnonzero(rows.sound[at:])
            full = len(sound) >= room
            end = at + int(sound[room - 1]) + 1 if full else len(rows)
            self._open.add(rows.take(slice(at, end)))
            at = end
            if full:
                self._close("decisions", self._open)
                self._open = _Open(self.reference)

    def settle(self, now_us: int) -> None:
        """Judge the days that are over."""
        over = [
            day
            for day in sorted(self._open_days)
            if (day + 1) * DAY_US + SETTLED_US <= now_us
        ]
        for day in over:
            self._close("day", self._open_days.pop(day))
            self._closed_day = day

    def _close(self, kind: str, found: _Open) -> None:
        verdicts: list[Verdict] = []
        if found.mix.apart > MOST_APART * found.mix.rows:
            self.troubled[kind] += 1
        elif found.tally is not None and self.reference is not None and found.rows:
            self.judged[kind] += 1
            verdicts = judge(
                found.tally,
                self.reference,
                limits=self._limits,
                look=self.judged[kind],
            )
        self.closed[kind] += 1
        window = Window(kind, self.closed[kind], found.rows, found.mix, verdicts)
        (self.windows if kind == "decisions" else self.days).append(window)
        self.drifted[kind] += bool(window.drifted)
