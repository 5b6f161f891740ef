"""Generate the purchases that continue a history, without end."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.history import History
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

ID_DIGITS = 12  # longer than the history's ids, so that they sort after them
_DAY_US = 86_400_000_000

I64 = npt.NDArray[np.int64]


class Traffic(msgspec.Struct, frozen=True, eq=False):
    """
    A history that repeats itself: the same purchases, later, under new ids.

    Each customer continues to buy as often and at the same terminals. So entity values
    keep the length that the history gave them, however long the load lasts.

    Attributes:
        entity_id: Ids by entity key; fixed width "S" [H] each.
        cents: Amounts; int64 [H].
        time_us: Times of the purchases; int64 [H].
        period_us: Shift of the times for each repetition.
    """

    entity_id: dict[str, npt.NDArray[np.bytes_]]
    cents: I64
    time_us: I64
    period_us: int

    def columns(self, start: int, count: int) -> dict[str, npt.NDArray[np.generic]]:
        """
        Return the purchases `start` to `start + count` after the history's end.

        Returns:
            Columns of a request: ids "S" of one width each, amounts, times.
        """
        number = np.arange(start, start + count, dtype=np.int64)
        lap, row = np.divmod(number, len(self.time_us))
        return {
            TRANSACTION_ID: fixed_width(number, digits=ID_DIGITS),
            **{key: ids[row] for key, ids in self.entity_id.items()},
            AMOUNT: self.cents[row] / 100.0,
            EVENT_TIME: self.time_us[row] + (lap + 1) * self.period_us,
        }


def traffic_of(history: History, *, days: int) -> Traffic:
    """Make traffic from a history of whole days; its ids have one width per column."""
    return Traffic(
        entity_id={
            key: np.array(column, dtype=np.bytes_)
            for key, column in history.entity_id.items()
        },
        cents=history.cents,
        time_us=history.event_time_us,
        period_us=days * _DAY_US,
    )


def fixed_width(
    number: npt.NDArray[np.int64], *, digits: int
) -> npt.NDArray[np.bytes_]:
    """Write numbers in decimal with leading zeros; "S" [N]."""
    powers = 10 ** np.arange(digits - 1, -1, -1, dtype=np.int64)
    figures = (number[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    return np.ascontiguousarray(figures).view(f"S{digits}")[:, 0]
