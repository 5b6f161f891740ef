"""Read the start and end times of a rule."""

from __future__ import annotations

import re

import numpy as np

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z)?\Z")


def read_time_us(text: str) -> int | None:
    """
    Read `2026-03-01` or `2026-03-01T06:00:00Z`, UTC.

    Returns:
        µs since the epoch; None for any other text.
    """
    if not _TIME.match(text):
        return None
    try:
        return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64))
    except ValueError:
        return None
