"""Bound the rows in flight: of all callers, and of one."""

from __future__ import annotations

from collections import Counter

from tollgate.door.refusal import Refusal

_RETRY_LATER = {"retry-after": "1"}


class Admission:
    """
    Count rows in flight; a request has one row from its first byte on.

    Args:
        most_rows: Maximum number of rows in flight.
        most_of_caller: Maximum number of rows in flight of one caller.
    """

    def __init__(self, *, most_rows: int, most_of_caller: int) -> None:
        self._most_rows = most_rows
        self._most_of_caller = most_of_caller
        self._of_caller: Counter[str] = Counter()
        self.rows = 0

    def admit(self, caller: str, rows: int) -> None:
        """
        Add rows of a caller.

        Raises:
            Refusal: Too many rows are in flight; nothing was added.
        """
        if self.rows + rows > self._most_rows:
            problem = f"{self.rows} rows are in flight, and {self._most_rows} may be"
            raise Refusal(503, f"overloaded: {problem}", headers=_RETRY_LATER)
        own = self._of_caller[caller]
        if own + rows > self._most_of_caller:
            problem = f"{own} rows of {caller} are in flight, and "
            problem += f"{self._most_of_caller} may be"
            raise Refusal(429, problem, headers=_RETRY_LATER)
        self.rows += rows
        self._of_caller[caller] = own + rows

    def release(self, caller: str, rows: int) -> None:
        """Take rows away that are answered or given up."""
        self.rows -= rows
        self._of_caller[caller] -= rows
        if not self._of_caller[caller]:
            del self._of_caller[caller]
