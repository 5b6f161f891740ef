"""Times as people read them."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def now_us() -> int:
    """Read the wall clock, µs since the epoch."""
    return time.time_ns() // 1000


def utc_text(time_us: int) -> str:
    """Write µs since the epoch as RFC 3339, UTC."""
    moment = datetime.fromtimestamp(time_us / 1e6, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_us(text: str) -> int:
    """Read what `utc_text` wrote, µs since the epoch."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    return int(moment.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000
