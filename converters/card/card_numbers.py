"""Format the numbers of a model card in one consistent way."""

from __future__ import annotations

UNKNOWN = "n/a"


def count(found: int | None) -> str:
    """Format a count."""
    return UNKNOWN if found is None else f"{found:,}"


def share(found: float | None) -> str:
    """Format a share of 1 as per cent, with four digits."""
    return UNKNOWN if found is None else f"{100 * found:.4g} %"


def measure(found: float | None) -> str:
    """Format a quality figure, with four decimals."""
    return UNKNOWN if found is None else f"{found:.4f}"


def value(found: float) -> str:
    """Format a feature's value, with six digits."""
    return f"{found:.6g}"


def delta(found: float | None) -> str:
    """Format a difference of probabilities, with three digits."""
    return UNKNOWN if found is None else f"{found:.3g}"


def speed(us: float) -> str:
    """Format µs."""
    return f"{us:.2f}"


def bounds(found: tuple[float, float] | None) -> str:
    """Format an interval."""
    return UNKNOWN if found is None else f"{found[0]:.4f} to {found[1]:.4f}"
