"""Draw the score histogram and the reliability diagram of a card."""

from __future__ import annotations

import math
from collections.abc import Sequence

from converters.card.quality_record import Bin, Quality

_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 350, 24, 206  # the plot area
Z_95 = 1.959963984540054  # standard normal, two-sided 95 %


def histogram(quality: Quality) -> str:
    """Return an SVG of the number of rows by score and class, on a logarithmic axis."""
    top = max(1, *(max(one.positives, _negatives(one)) for one in quality.bins))
    decades = math.ceil(math.log10(top)) or 1
    parts = [_frame("rows (logarithmic)", "score")]
    for decade in range(decades + 1):
        parts.append(_tick_y(_logarithmic(10**decade, decades), _short(decade)))
    for one in quality.bins:
        middle, half = _x((one.low + one.high) / 2), (_x(one.high) - _x(one.low)) / 2
        for kind, rows, left in (
            ("one", _negatives(one), middle - 0.85 * half),
            ("two", one.positives, middle),
        ):
            share = _logarithmic(rows, decades)
            parts.append(_bar(left, share=share, width=0.85 * half, kind=kind))
    parts += [_cut(at) for at in quality.levels.thresholds]
    return _svg(parts, title="Rows per tenth of the score")


def reliability(quality: Quality) -> str:
    """Return an SVG of the share of positives against the mean score, per bin."""
    parts = [_frame("share of positives", "mean score")]
    parts += [_tick_y(at / 5, f"{at / 5:g}") for at in range(6)]
    parts.append(
        f'<line class="axis" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>'
    )
    for one in quality.bins:
        if one.mean_score is None:
            continue
        x = _x(one.mean_score)
        low, high = wilson(one.positives, one.rows)
        parts.append(
            f'<line class="range" x1="{x}" y1="{_y(low)}" x2="{x}" y2="{_y(high)}"/>'
            f'<circle class="two" cx="{x}" cy="{_y(one.positives / one.rows)}" r="4"/>'
        )
    return _svg(parts, title="Share of positives against the mean score")


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """
    Return the 95 % interval of a share.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical
    inference", Journal of the American Statistical Association 22.
    """
    share, square = hits / rows, Z_95**2
    middle = (share + square / (2 * rows)) / (1 + square / rows)
    half = math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    half *= Z_95 / (1 + square / rows)
    return max(0.0, middle - half), min(1.0, middle + half)


def _negatives(one: Bin) -> int:
    return one.rows - one.positives


def _short(decade: int) -> str:
    """Format a power of ten so that it fits next to the axis."""
    mark = ("", "k", "M", "G")[decade // 3]
    return f"{10 ** (decade % 3)}{mark}"


def _logarithmic(rows: int, decades: int) -> float:
    """Return the height of a bar for a number of rows, 0 to 1."""
    # A single row must be visible, so its bar has some height.
    return (math.log10(rows) + 0.12) / (decades + 0.12) if rows else 0.0


def _x(share: float) -> float:
    return round(_LEFT + share * (_RIGHT - _LEFT), 1)


def _y(share: float) -> float:
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)


def _frame(y_title: str, x_title: str) -> str:
    ticks = "".join(
        f'<text x="{_x(at / 5)}" y="{_BOTTOM + 16}" text-anchor="middle">'
        f"{at / 5:g}</text>"
        for at in range(6)
    )
    return (
        f'<text x="4" y="14">{y_title}</text>{ticks}'
        f'<text x="{_RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">{x_title}</text>'
    )


def _tick_y(share: float, text: str) -> str:
    return (
        f'<line class="axis" x1="{_LEFT}" y1="{_y(share)}" x2="{_RIGHT}" '
        f'y2="{_y(share)}"/><text x="{_LEFT - 6}" y="{_y(share) + 4:g}" '
        f'text-anchor="end">{text}</text>'
    )


def _bar(left: float, *, share: float, width: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{_y(share)}" width="{width:.1f}" '
        f'height="{_BOTTOM - _y(share):.1f}"/>'
    )


def _cut(score: float) -> str:
    return (
        f'<line class="cut" x1="{_x(score)}" y1="{_TOP}" x2="{_x(score)}" '
        f'y2="{_BOTTOM}"/>'
    )


def _svg(parts: Sequence[str], *, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{title}</title>'
        f"{''.join(parts)}</svg>"
    )
