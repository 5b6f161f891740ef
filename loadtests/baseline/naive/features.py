"""The fifteen features with pandas, as in the notebook that the model came from."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

WINDOWS_DAYS = (1, 7, 30)
LABEL_DELAY = pd.Timedelta(days=7)
# Retention of purchases: the longest window, the terminals' delay, and a day.
KEPT_CUSTOMER = pd.Timedelta(days=31)
KEPT_TERMINAL = pd.Timedelta(days=38)


def history(members: list[bytes]) -> pd.DataFrame:
    """Read the purchases of a customer or a terminal from Redis's answer."""
    frame = pd.DataFrame([json.loads(member) for member in members])
    frame["time"] = pd.to_datetime(frame["time"], unit="us")
    return frame


def features_of(
    amount: float, *, time: pd.Timestamp, customer: pd.DataFrame, terminal: pd.DataFrame
) -> dict[str, Any]:
    """
    Compute the features of one purchase.

    Args:
        customer: The customer's purchases up to and including this one.
        terminal: The terminal's purchases up to and including this one.
    """
    features: dict[str, Any] = {
        "amount": amount,
        "during_weekend": int(time.weekday() >= 5),
        "during_night": int(time.hour <= 6),
    }
    for days in WINDOWS_DAYS:
        since = time - pd.Timedelta(days=days)
        recent = customer[(customer["time"] > since) & (customer["time"] <= time)]
        features[f"customer_nb_tx_{days}d"] = len(recent)
        features[f"customer_avg_amount_{days}d"] = recent["amount"].mean()
    # The label of a purchase is known a week later.
    until = time - LABEL_DELAY
    for days in WINDOWS_DAYS:
        since = until - pd.Timedelta(days=days)
        known = terminal[(terminal["time"] > since) & (terminal["time"] <= until)]
        features[f"terminal_nb_tx_{days}d"] = len(known)
        features[f"terminal_risk_{days}d"] = known["fraud"].mean() if len(known) else 0
    return features
