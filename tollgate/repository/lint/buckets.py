"""Check that a histogram can count how many answers came within an objective."""

from __future__ import annotations

from collections.abc import Sequence

# Triton's default, ms: docs/user_guide/metrics of triton-inference-server/server.
DEFAULT_MS = (100.0, 500.0, 2000.0, 5000.0)
_NEAR = 0.1  # of the objective: a closer boundary gives the same share


def blind(buckets_ms: Sequence[float], objective_ms: float) -> bool:
    """Return whether no boundary lies within a tenth of the objective."""
    return not any(
        abs(bucket - objective_ms) <= _NEAR * objective_ms for bucket in buckets_ms
    )
