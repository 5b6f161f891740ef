"""Read the clock, and convert times to and from RFC 3339 text."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def now_us() -> int:
    """Read the wall clock, µs since the epoch."""
    return time.time_ns() // 1000


def utc_text(time_us: int) -> str:
    """Format µs since the epoch as RFC 3339, UTC."""
    moment = datetime.fromtimestamp(time_us / 1e6, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_us(text: str) -> int:
    """Parse the output of `utc_text` to µs since the epoch."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    return int(moment.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000
