"""Cut the decisions of a release into windows: a fixed number of rows, or a day."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.monitor.drift import ColumnResult, DriftLimits, judge
from tollgate.monitor.shown_lists import ListCounts, ListFigures, ListReader
from tollgate.monitor.tallies import ColumnCounts, DecisionMix, MonitoredRows
from tollgate.monitor.training_baseline import Reference, learn_reference
from tollgate.schema import DEFAULT_OUTCOMES, Outcomes

DAY_US = 86_400_000_000
# The journal worker writes a decision to disk within 30 s. A day is judged this long
# after its end, so that its last minutes are included.
SETTLED_US = 600_000_000
# If more rows than this share are excluded as degraded, the others are no fair sample:
# their windows also lack the purchases that the store missed.
MOST_APART = 0.1
MAX_WINDOWS = 400  # number of windows of each kind that are stored


class Window(msgspec.Struct, frozen=True, eq=False):
    """
    A complete window.

    Attributes:
        kind: "decisions" or "day".
        number: Number of the window among those of its kind, from 1 on.
        rows: Number of its valid rows.
        mix: Counts of all its decisions.
        verdicts: Results per column; empty without a reference, or if too many rows
            were excluded as degraded.
        lists: Figures of its lists; None of a product that decides.
    """

    kind: str
    number: int
    rows: int
    mix: DecisionMix
    verdicts: list[ColumnResult]
    lists: ListFigures | None = None

    @property
    def drifted(self) -> list[ColumnResult]:
        """Return the columns that drifted, the farthest first."""
        found = [one for one in self.verdicts if one.state == "drift"]
        return sorted(found, key=lambda one: -one.found.psi)


class _OpenWindow:
    """A window that is not complete yet."""

    def __init__(self, reference: Reference | None, reader: ListReader | None) -> None:
        known = reference is not None and reference.rows > 0
        self.tally = ColumnCounts(reference) if reference and known else None
        self.lists = ListCounts(reader.tenth) if reader is not None else None
        self.mix = DecisionMix()
        self.rows = 0  # valid rows

    def add(self, rows: MonitoredRows) -> None:
        self.mix.add(rows)
        self.rows += int(rows.valid.sum())
        if self.tally is not None:
            self.tally.add(rows.take(rows.valid))
        if self.lists is not None and rows.lists is not None:
            self.lists.add(rows.lists)


class ReleaseWindows:
    """
    Decisions of one release, cut into windows.

    Args:
        reference: Training distribution to compare with, or the reason why there is
            none.
        size: Number of valid decisions in a window.
        outcomes: Words of the release's decisions.
        reader: Reads the lists of a product that ranks; None for another product.

    Attributes:
        baseline: Number of rows of the first window, if it became the reference.
        mix: Counts of all its decisions.
        windows, days: Newest complete windows of each kind.
        closed, judged, drifted: Total number of windows of each kind that are complete,
            were judged, and drifted.
        troubled: Number of windows not judged because too many rows were excluded as
            degraded.
    """

    def __init__(
        self,
        release: str,
        reference: Reference | str,
        *,
        size: int,
        limits: DriftLimits,
        outcomes: Outcomes = DEFAULT_OUTCOMES,
        reader: ListReader | None = None,
    ) -> None:
        self.release = release
        self.outcomes = outcomes
        self.reader = reader
        self.baseline = 0
        self.problem = reference if isinstance(reference, str) else ""
        self.reference = None if isinstance(reference, str) else reference
        self.mix = DecisionMix()
        self.windows: deque[Window] = deque(maxlen=MAX_WINDOWS)
        self.days: deque[Window] = deque(maxlen=MAX_WINDOWS)
        self.closed = {"decisions": 0, "day": 0}
        self.judged = {"decisions": 0, "day": 0}
        self.troubled = {"decisions": 0, "day": 0}
        self.drifted = {"decisions": 0, "day": 0}
        self._size = size
        self._limits = limits
        self._first: list[npt.NDArray[np.float32]] = []  # values to learn from
        self._open = _OpenWindow(self.reference, reader)
        self._open_days: dict[int, _OpenWindow] = {}
        self._closed_day = -1

    @property
    def pending(self) -> int:
        """Return the number of valid decisions in the open window."""
        return self._open.rows

    def fates(self) -> dict[str, int]:
        """Count decisions by their use here; each counts once."""
        with_consent = self.mix.rows - self.mix.withheld
        degraded, unknown = self.mix.apart, self.mix.foreign
        if self.reference is None:
            unknown = with_consent - degraded
        fates = {
            "compared": with_consent - unknown - degraded,
            "degraded": degraded,
            "withheld": self.mix.withheld,
            "unknown": unknown,
        }
        if self.reader is None:
            return fates
        baseline = self.pending if self._learns else self.baseline
        fates["compared"] -= baseline
        return fates | {"baseline": baseline}

    @property
    def _learns(self) -> bool:
        """Return whether the open window becomes the reference."""
        return self.reference is not None and not self.reference.rows

    def add(self, rows: MonitoredRows) -> None:
        """Count decisions in order of time, and judge windows that become full."""
        self.mix.add(rows)
        for day in np.unique(rows.decided_us // DAY_US).tolist():
            if day > self._closed_day:  # later rows: in the mix only
                its = rows.take(rows.decided_us // DAY_US == day)
                if day not in self._open_days:
                    self._open_days[day] = _OpenWindow(self.reference, self.reader)
                self._open_days[day].add(its)
        at = 0
        while at < len(rows):
            room = self._size - self.pending
            valid = np.flatnonzero(rows.valid[at:])
            full = len(valid) >= room
            end = at + int(valid[room - 1]) + 1 if full else len(rows)
            part = rows.take(slice(at, end))
            self._open.add(part)
            if self._learns:
                self._first.append(part.values[part.valid])
            at = end
            if full:
                self._close("decisions", self._open)
                self._learn()
                self._open = _OpenWindow(self.reference, self.reader)

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

    def _learn(self) -> None:
        """Make the first window the reference of the later ones."""
        if self._learns and self.reference is not None:
            values = np.concatenate(self._first)
            self.reference = learn_reference(self.reference, values)
            self.baseline = len(values)
            self._first = []

    def _close(self, kind: str, found: _OpenWindow) -> None:
        verdicts: list[ColumnResult] = []
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
        lists = found.lists.figures() if found.lists is not None else None
        window = Window(kind, self.closed[kind], found.rows, found.mix, verdicts, lists)
        (self.windows if kind == "decisions" else self.days).append(window)
        self.drifted[kind] += bool(window.drifted)
