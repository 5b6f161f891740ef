"""Pack purchases into few bytes, and compute window sums over them with NumPy."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype(
    [("id", "S16"), ("time_us", "<i8"), ("cents", "<i8"), ("fraud", "<i8")]
)
FEATURES = (
    *("amount", "during_weekend", "during_night"),
    *("customer_nb_tx_1d", "customer_avg_amount_1d"),
    *("customer_nb_tx_7d", "customer_avg_amount_7d"),
    *("customer_nb_tx_30d", "customer_avg_amount_30d"),
    *("terminal_nb_tx_1d", "terminal_risk_1d"),
    *("terminal_nb_tx_7d", "terminal_risk_7d"),
    *("terminal_nb_tx_30d", "terminal_risk_30d"),
)
DAY_US = 86_400_000_000
WINDOWS_DAYS = (1, 7, 30)
LABEL_DELAY_US = 7 * DAY_US
KEPT_CUSTOMER_US = 31 * DAY_US
KEPT_TERMINAL_US = 38 * DAY_US
_NIGHT_END_US = 7 * 3_600_000_000
_REACH_US = np.array([0, *(days * DAY_US for days in WINDOWS_DAYS)])


def entry_of(transaction_id: str, *, time_us: int, cents: int) -> bytes:
    """Pack one purchase, as yet without a label."""
    return np.array(
        (id_of(transaction_id.encode()), time_us, cents, 0), ENTRY
    ).tobytes()


def id_of(transaction_id: bytes) -> bytes:
    """Shorten an id, so that the same purchase is never stored twice."""
    return hashlib.blake2b(transaction_id, digest_size=16).digest()


def features_of(
    cents: int, *, time_us: int, customer: bytes, terminal: bytes
) -> npt.NDArray[np.float64]:
    """
    Compute the features of one purchase.

    Args:
        cents: Amount, cents.
        time_us: Time of the purchase, µs since the epoch.
        customer: The customer's packed purchases up to and including this one, by time.
        terminal: The terminal's packed purchases up to and including this one, by time.

    Returns:
        float64 [15], in the order of FEATURES.
    """
    features = np.empty(15)
    features[0] = cents / 100
    features[1] = (time_us // DAY_US + 3) % 7 >= 5  # 1 January 1970 was a Thursday
    features[2] = time_us % DAY_US < _NIGHT_END_US
    count, total = _sums(customer, "cents", time_us)
    features[3:9:2] = count
    features[4:9:2] = total / count / 100
    count, total = _sums(terminal, "fraud", time_us - LABEL_DELAY_US)
    features[9:15:2] = count
    features[10:15:2] = total / np.maximum(count, 1)
    return features


def _sums(
    members: bytes, column: str, until_us: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Count and sum a column over each window until `until_us`; int64 [3] each."""
    rows = np.frombuffer(members, ENTRY)
    edges = np.searchsorted(rows["time_us"], until_us - _REACH_US, side="right")
    running = np.concatenate(([0], np.cumsum(rows[column])))
    return edges[0] - edges[1:], running[edges[0]] - running[edges[1:]]
