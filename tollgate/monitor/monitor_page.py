"""
Render the report as a static HTML page that loads nothing and runs no script.

Charts are inline SVG in the colours of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

from tollgate.audit.chain.links import utc_text
from tollgate.monitor.accuracy import LEVELS, DailyAccuracy, LabelCounts, day_text
from tollgate.monitor.decision_windows import ReleaseWindows, Window
from tollgate.monitor.drift import Bins, ColumnResult
from tollgate.monitor.journal_monitor import ProductMonitor
from tollgate.monitor.tallies import DECISIONS
from tollgate.templating import render

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


# Draw the charts of a release: over its windows, and over days of purchases.

_COLORS = ("--a", "--b", "--c", "--d", "--e")
_SHOWN = 120  # windows
_DAYS = 90


def charts_of(stream: ReleaseWindows, *, limit: float) -> str:
    """Draw drift, decisions, confidence and degraded rows over windows."""
    windows = list(stream.windows)[-_SHOWN:]
    if not windows:
        return ""
    places = [moment(window.mix.last_us) for window in windows]
    return (
        _drift(windows, places, limit=limit)
        + _decisions(windows, places)
        + _trouble(windows, places)
    )


def _drift(windows: Sequence[Window], places: Sequence[str], *, limit: float) -> str:
    names = _farthest(windows)
    if not names:
        return ""
    series = [
        ChartLine(name, [_psi(window, name) for window in windows], color)
        for name, color in zip(names, _COLORS, strict=False)
    ]
    highest = max(psi for line in series for psi in line.values if not math.isnan(psi))
    most = max(2 * limit, min(highest, 20 * limit))
    words = f"PSI by window; dashed: the limit, {limit:g}"
    return lines(series, places=places, words=words, most=most, limit=limit)


def _farthest(windows: Sequence[Window]) -> list[str]:
    """Return the names of the score and of the features farthest from training."""
    farthest: dict[str, float] = {}
    for window in windows:
        for one in window.verdicts:
            if one.state != "untold":
                psi = one.found.psi + (1e9 if one.kind == "score" else 0)
                farthest[one.name] = max(farthest.get(one.name, 0.0), psi)
    return sorted(farthest, key=lambda name: -farthest[name])[: len(_COLORS)]


def _psi(window: Window, name: str) -> float:
    for one in window.verdicts:
        if one.name == name:
            return one.found.psi
    return float("nan")


def _decisions(windows: Sequence[Window], places: Sequence[str]) -> str:
    colors = ("--approve", "--review", "--decline")
    series = [
        ChartLine(name, [window.mix.share(at) for window in windows], color)
        for at, (name, color) in enumerate(zip(DECISIONS, colors, strict=True))
    ]
    return stacked(series, places=places, words="decisions by window")


def _trouble(windows: Sequence[Window], places: Sequence[str]) -> str:
    series = [
        ChartLine("unsure of", [window.mix.unsure_share for window in windows], "--a"),
        ChartLine(
            "degraded",
            [window.mix.apart / max(window.mix.rows, 1) for window in windows],
            "--b",
        ),
    ]
    known = [value for line in series for value in line.values if value == value]
    words = "rows with no probability above 0.8, and rows set apart, by window"
    most = max(0.01, *known) if known else 0.01
    return lines(series, places=places, words=words, most=most, as_percent=True)


def days_chart(found: DailyAccuracy, release: str) -> str:
    """Draw precision and recall by day of purchase; say which decisions count."""
    rule = found.rule
    lag_days = rule.lag_us / 86_400e6
    days = found.days.get(release, {})
    old = {day: days[day] for day in sorted(days)[-_DAYS:] if days[day].known.any()}
    whole = found.total(release)
    text = (
        "<h3>Accuracy by day of purchase</h3>"
        f'<p class="soft">Each decision is judged {lag_days:g} days after its '
        "purchase, by the labels that were known by then: "
        f"{whole.labelled:,} decisions with {whole.frauds:,} frauds; "
        f"{whole.young:,} are younger and not judged yet, {whole.late:,} got a label "
        "later. " + _in_time(found) + "</p>"
    )
    if not old:
        return text
    places = [day_text(day) for day in old]
    return text + "".join(
        _level(name, level, list(old.values()), places)
        for name, level in LEVELS.items()
    )


def _level(
    name: str, level: int, days: Sequence[LabelCounts], places: Sequence[str]
) -> str:
    series = []
    for word, color, found in (
        ("precision", "--a", [day.precision(level) for day in days]),
        ("recall", "--b", [day.recall(level) for day in days]),
    ):
        series.append(
            ChartLine(
                word,
                [one.value for one in found],
                color,
                [one.low for one in found],
                [one.high for one in found],
            )
        )
    flagged = "reviews and declines" if name == "review" else "declines"
    words = f"{flagged}, by day; bars: 95 %"
    return lines(series, places=places, words=words, most=1.0, as_percent=True)


def _in_time(found: DailyAccuracy) -> str:
    share = found.in_time
    if share != share:
        return "It is not known yet whether labels come in time."
    return f"{share * 100:.1f} % of the labels of older decisions came in time."


def moment(time_us: int) -> str:
    """Format a time for display."""
    return utc_text(time_us)[:19].replace("T", " ")


def monitor_page(monitors: Sequence[ProductMonitor]) -> str:
    """Return the newest results of the monitor as one HTML document."""
    drifting = [one.product for one in monitors if one.drifted]
    return render(
        "tollgate/monitor/templates/monitor.html.j2",
        {
            "title": f"Drift in {', '.join(drifting)}" if drifting else "No drift",
            "drifting": bool(drifting),
            "looked": utc_text(max(one.looked_us for one in monitors)),
            "products": [
                {
                    "name": one.product,
                    "figures": _figures(one),
                    "releases": [
                        _release(one, release, windows)
                        for release, windows in one.streams.items()
                    ],
                }
                for one in monitors
            ],
        },
    )


def _figures(one: ProductMonitor) -> list[tuple[str, str]]:
    """Return the key figures of a product."""
    streams = list(one.streams.values())
    judged = sum(sum(stream.judged.values()) for stream in streams)
    drifted = sum(sum(stream.drifted.values()) for stream in streams)
    newest = moment(one.decided_us) if one.decided_us else "none"
    return [
        ("Product", one.product),
        ("Decisions", f"{sum(stream.mix.rows for stream in streams):,}"),
        ("Windows judged", f"{judged:,}"),
        ("Windows that drifted", f"{drifted:,}"),
        ("Newest decision", newest),
    ]


def _release(
    one: ProductMonitor, release: str, stream: ReleaseWindows
) -> dict[str, object]:
    """Return the values that the template needs of a release; charts are SVG."""
    return {
        "name": release,
        "decisions": stream.mix.rows,
        "fates": ", ".join(f"{n:,} {fate}" for fate, n in stream.fates().items()),
        "troubled": sum(stream.troubled.values()),
        "problem": stream.problem,
        "groups": [
            *_group("Windows of decisions", stream.windows, with_charts=True),
            *_group("Days", stream.days, with_charts=False),
        ],
        "charts": charts_of(stream, limit=one.options.limits.psi),
        "counts": _counts(stream),
        "accuracy": "" if one.accuracy is None else days_chart(one.accuracy, release),
    }


def _group(
    title: str, windows: Sequence[Window], *, with_charts: bool
) -> list[dict[str, object]]:
    """Return the judged windows as one group, or no group if there are none."""
    judged = [window for window in windows if window.verdicts]
    if not judged:
        return []
    columns = [
        {
            "name": last.name,
            "state": last.state,
            "figures": _distances(last),
            "strip": strip([window.verdicts[at].state for window in judged]),
        }
        for at, last in enumerate(judged[-1].verdicts)
    ]
    charts = _worst(judged[-1]) if with_charts else ""
    return [{"title": title, "columns": columns, "charts": charts}]


def _distances(one: ColumnResult) -> tuple[str, ...]:
    """Return the distances of a column from training, and its share of missing."""
    missing = f"{one.missing * 100:.3g} %"
    if one.state == "untold":
        return ("", "", "", "", "", missing)
    return (
        f"{one.found.psi:.3f}",
        f"{one.least.psi:.3f}",
        f"{one.found.ks:.3f}",
        f"{one.least.ks:.3f}",
        f"{one.sigmas:+.2f}",
        missing,
    )


def _worst(window: Window) -> str:
    """Draw the score, and the columns that drifted most in the newest window."""
    score = [one for one in window.verdicts if one.kind == "score"]
    shown = [one for one in window.drifted if one.kind != "score"][:3]
    return "".join(
        bars(one.bins, words=f"{one.name}: share of rows by value, newest window")
        for one in (*score, *shown)
        if one.bins is not None
    )


def _counts(stream: ReleaseWindows) -> list[tuple[str, str, str]]:
    """Return the rows and the share of each decision and each degraded bit."""
    mix = stream.mix
    return [
        *(
            (name, f"{mix.decisions[at]:,}", f"{mix.share(at) * 100:.3g} %")
            for at, name in enumerate(DECISIONS)
        ),
        *(
            (f"degraded: {bit}", f"{count:,}", f"{count / mix.rows * 100:.3g} %")
            for bit, count in mix.degraded().items()
        ),
        ("unsure of", f"{mix.unsure:,}", f"{number(mix.unsure_share * 100)} %"),
    ]
