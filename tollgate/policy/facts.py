"""Define the input of a policy: the known values of each row."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


class RowFacts(msgspec.Struct, frozen=True, eq=False):
    """
    Known values of N rows when they are decided.

    Attributes:
        probabilities: One column per label of the policy; float32 [N, K].
        features: Inputs of the model; float32 [N, F].
        cents: Amounts; int64 [N].
        degraded: Degraded bits of the rows so far; uint32 [N].
        event_time_us: Time of the purchase; int64 [N].
        list_hits: Bit i is set when the i-th list of the policy holds the row's id;
            uint32 [N].
        fields: Declared fields of the request by name, as whole numbers and hashes,
            MISSING where a row has none; int64 [N] each.
    """

    probabilities: F32
    features: F32
    cents: I64
    degraded: U32
    event_time_us: I64
    list_hits: U32
    fields: Mapping[str, I64]
