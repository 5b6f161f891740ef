"""Hold the newest events of users, as the store or a table has them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class UserHistory(msgspec.Struct, frozen=True, eq=False):
    """
    The newest events of the users of N rows, the newest first.

    Attributes:
        time_us: Time of each event, µs; int64 [N, H], 0 after the last event.
        columns: Values of each event by field, as in the store: numbers in units of
            their last decimal, categories as hashes; int64 [N, H], MISSING (of
            tollgate.schema) after the last event and where the event has no value.
        count: Number of events of each row; int64 [N], at most H.
        known: False where the store did not answer and no earlier value was held: the
            user may have events; bool [N].
    """

    time_us: I64
    columns: Mapping[str, I64]
    count: I64
    known: npt.NDArray[np.bool_]
