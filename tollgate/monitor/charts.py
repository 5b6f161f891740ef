"""Render charts as inline SVG that uses the page's colours and loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

from tollgate.monitor.drift import Bins

WIDTH, HEIGHT = 620, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 34
_STRIP = 60  # maximum number of windows in a strip


class ChartLine(msgspec.Struct, frozen=True):
    """
    One line of a chart.

    Attributes:
        name: Name in the legend.
        values: Value at each position; NaN leaves a gap.
        color: CSS variable of the page's style.
        low, high: Interval of each value; empty for none.
    """

    name: str
    values: Sequence[float]
    color: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def strip(states: Sequence[str]) -> str:
    """Draw a square per window, the newest to the right."""
    last = list(states)[-_STRIP:]
    squares = "".join(
        f'<rect class="{state}" x="{at * 5}" width="4" height="14"/>'
        for at, state in enumerate(last)
    )
    counts = ", ".join(f"{last.count(one)} {one}" for one in dict.fromkeys(last))
    return (
        f'<svg class="strip" width="{5 * len(last)}" height="14" role="img" '
        f'aria-label="{len(last)} windows: {counts}">{squares}</svg>'
    )


def bars(bins: Bins, *, words: str) -> str:
    """Draw the share of rows in each bin, in training and now."""
    count = len(bins.seen)
    most = max(*bins.seen, *bins.trained, 0.01)
    room = (WIDTH - _LEFT - _RIGHT) / count
    parts = [_scale(most, as_percent=True)]
    for at, (trained, seen) in enumerate(zip(bins.trained, bins.seen, strict=True)):
        for shift, share, name in ((0.1, trained, "trained"), (0.5, seen, "seen")):
            y = _y(share, most)
            parts.append(
                f'<rect class="{name}" x="{_LEFT + (at + shift) * room:.1f}" '
                f'y="{y:.1f}" width="{room * 0.38:.1f}" '
                f'height="{HEIGHT - _BOTTOM - y:.1f}"/>'
            )
    for at, cut in enumerate(bins.cuts):
        parts.append(
            f'<text x="{_LEFT + (at + 1) * room:.1f}" y="{HEIGHT - 18}" '
            f'text-anchor="middle">{escape(number(cut))}</text>'
        )
    return _framed(
        parts, words=words, legend=(("trained", "training"), ("seen", "now"))
    )


def lines(
    series: Sequence[ChartLine],
    *,
    places: Sequence[str],
    words: str,
    most: float,
    limit: float | None = None,
    as_percent: bool = False,
) -> str:
    """
    Draw lines over windows or days.

    Args:
        series: Lines to draw.
        places: Name of each position; the first and the last are printed.
        words: Caption of the chart.
        most: Largest value of the axis; larger values are drawn at the top.
        limit: Value of a dashed line; None for none.
        as_percent: True if values are shares.
    """
    parts = [_scale(most, as_percent=as_percent)]
    if limit is not None and limit <= most:
        y = _y(limit, most)
        parts.append(f'<path class="limit" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
    for one in series:
        points = [
            (_x(at, len(one.values)), _y(min(value, most), most))
            for at, value in enumerate(one.values)
            if not math.isnan(value)
        ]
        for at, (low, high) in enumerate(zip(one.low, one.high, strict=True)):
            if not math.isnan(one.values[at]):
                x = _x(at, len(one.values))
                parts.append(
                    f'<path d="M{x:.1f} {_y(low, most):.1f}V{_y(high, most):.1f}" '
                    f'style="stroke:var({one.color});opacity:.45"/>'
                )
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if points:
            parts.append(
                f'<path class="line" d="{path}" style="stroke:var({one.color})"/>'
            )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" style="fill:var({one.color})"/>'
            for x, y in points
            if len(points) <= 80
        ]
    parts.append(_ends(places))
    return _framed(parts, words=words, legend=[(one.color, one.name) for one in series])


def stacked(series: Sequence[ChartLine], *, places: Sequence[str], words: str) -> str:
    """Draw shares that add up to 1, the first at the bottom."""
    count = len(places)
    base = [0.0] * count
    parts = [_scale(1.0, as_percent=True)]
    for one in series:
        top = [low + value for low, value in zip(base, one.values, strict=True)]
        up = [f"{_x(at, count):.1f} {_y(value, 1):.1f}" for at, value in enumerate(top)]
        down = [
            f"{_x(at, count):.1f} {_y(value, 1):.1f}" for at, value in enumerate(base)
        ]
        outline = "M" + "L".join([*up, *reversed(down)]) + "Z"
        parts.append(f'<path d="{outline}" style="fill:var({one.color})"/>')
        base = top
    parts.append(_ends(places))
    return _framed(parts, words=words, legend=[(one.color, one.name) for one in series])


def number(value: float) -> str:
    """Format a number briefly."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _x(at: int, count: int) -> float:
    room = WIDTH - _LEFT - _RIGHT
    return _LEFT + (room * at / (count - 1) if count > 1 else room / 2)


def _y(value: float, most: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / most


def _scale(most: float, *, as_percent: bool) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        value, y = most * share, _y(most * share, most)
        text = f"{value * 100:.3g} %" if as_percent else f"{value:.2g}"
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    return "".join(parts)


def _ends(places: Sequence[str]) -> str:
    if not places:
        return ""
    first = f'<text x="{_LEFT}" y="{HEIGHT - 18}">{escape(places[0])}</text>'
    if len(places) == 1:
        return first
    return (
        first + f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 18}" text-anchor="end">'
        f"{escape(places[-1])}</text>"
    )


def _framed(
    parts: Sequence[str], *, words: str, legend: Sequence[tuple[str, str]]
) -> str:
    keys = "".join(
        f'<span><i style="background:var({_variable(color)})"></i>{escape(name)}</span>'
        for color, name in legend
    )
    return (
        f'<figure><figcaption>{escape(words)}<span class="key">{keys}</span>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT - 10}" role="img" '
        f'aria-label="{escape(words)}">{"".join(parts)}</svg></figure>'
    )


def _variable(color: str) -> str:
    return color if color.startswith("--") else f"--{color}"
