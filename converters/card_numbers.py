"""Numbers as a card shows them, the same everywhere."""

from __future__ import annotations

UNKNOWN = "n/a"


def count(found: int | None) -> str:
    """Show how many."""
    return UNKNOWN if found is None else f"{found:,}"


def share(found: float | None) -> str:
    """Show a share of 1 as per cent, to four digits."""
    return UNKNOWN if found is None else f"{100 * found:.4g} %"


def measure(found: float | None) -> str:
    """Show a quality figure, to four decimals."""
    return UNKNOWN if found is None else f"{found:.4f}"


def value(found: float) -> str:
    """Show a feature's value, to six digits."""
    return f"{found:.6g}"


def delta(found: float | None) -> str:
    """Show a difference of probabilities, to three digits."""
    return UNKNOWN if found is None else f"{found:.3g}"


def speed(us: float) -> str:
    """Show µs."""
    return f"{us:.2f}"


def bounds(found: tuple[float, float] | None) -> str:
    """Show an interval."""
    return UNKNOWN if found is None else f"{found[0]:.4f} to {found[1]:.4f}"
