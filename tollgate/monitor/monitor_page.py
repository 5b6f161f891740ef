"""
Render the report as a static HTML page that loads nothing and runs no script.

Charts are inline SVG in the colours of the page (templates/charts.html.j2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from tollgate.audit.chain.links import utc_text
from tollgate.monitor.accuracy import (
    FLAGGED_FROM,
    DailyAccuracy,
    LabelCounts,
    day_text,
)
from tollgate.monitor.decision_windows import ReleaseWindows, Window
from tollgate.monitor.drift import ColumnResult
from tollgate.monitor.journal_monitor import ProductMonitor
from tollgate.monitor.tallies import UNSURE
from tollgate.templating import render

_STRIP = 60  # maximum number of windows in a strip


class ChartLine(msgspec.Struct, frozen=True):
    """
    One line of a chart.

    Attributes:
        name: Name in the legend.
        values: Value at each position; NaN leaves a gap.
        color: CSS variable of the page's style.
        low, high: Interval of each value, or the base of a stacked one; empty for none.
    """

    name: str
    values: Sequence[float]
    color: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @property
    def points(self) -> list[tuple[int, float]]:
        """Return position and value where there is one."""
        return [
            (at, value) for at, value in enumerate(self.values) if not math.isnan(value)
        ]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """
    A chart of the page.

    Attributes:
        kind: `stacked` lines are shares that add up to 1, each from `low` to `values`.
        words: Caption of the chart.
        series: Its lines, or its bars in training and now.
        places: Name of each position; of lines, the first and the last are printed.
        most: Largest value of the axis; larger values are drawn at the top.
        limit: Value of a dashed line; None for none.
        as_percent: True if values are shares.
    """

    kind: Literal["bars", "lines", "stacked"]
    words: str
    series: Sequence[ChartLine]
    places: Sequence[str]
    most: float = 1.0
    limit: float | None = None
    as_percent: bool = True


def number(value: float) -> str:
    """Format a number briefly."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


# Draw the charts of a release: over its windows, and over days of purchases.

_COLORS = ("--a", "--b", "--c", "--d", "--e")
_SHOWN = 120  # windows
_DAYS = 90


def charts_of(stream: ReleaseWindows, *, limit: float) -> list[Chart]:
    """Return drift, decisions, confidence and degraded rows over windows."""
    windows = list(stream.windows)[-_SHOWN:]
    if not windows:
        return []
    places = [moment(window.mix.last_us) for window in windows]
    return [
        *_drift(windows, places, limit=limit),
        _decisions(windows, places, words=stream.outcomes.words),
        *_lists(windows, places),
        _trouble(windows, places),
    ]


def _drift(
    windows: Sequence[Window], places: Sequence[str], *, limit: float
) -> list[Chart]:
    names = _farthest(windows)
    if not names:
        return []
    series = [
        ChartLine(name, [_psi(window, name) for window in windows], color)
        for name, color in zip(names, _COLORS, strict=False)
    ]
    highest = max(psi for line in series for _, psi in line.points)
    chart = Chart(
        kind="lines",
        words=f"PSI by window; dashed: the limit, {limit:g}",
        series=series,
        places=places,
        most=max(2 * limit, min(highest, 20 * limit)),
        limit=limit,
        as_percent=False,
    )
    return [chart]


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


def _decisions(
    windows: Sequence[Window], places: Sequence[str], *, words: Sequence[str]
) -> Chart:
    colors = ("--mild", "--middle", "--severe")
    shares = [[window.mix.share(at) for window in windows] for at in range(len(colors))]
    none = [0.0] * len(windows)
    edges = itertools.accumulate(
        shares,
        lambda base, own: [a + b for a, b in zip(base, own, strict=True)],
        initial=none,
    )
    series = [
        ChartLine(name, high, color, low)
        for name, color, (low, high) in zip(
            words, colors, itertools.pairwise(edges), strict=True
        )
    ]
    return Chart(
        kind="stacked", words="decisions by window", series=series, places=places
    )


def _lists(windows: Sequence[Window], places: Sequence[str]) -> list[Chart]:
    """Return the charts of lists over windows, and of the items shown newest."""
    found = [window.lists for window in windows]
    if found[-1] is None:
        return []
    shares = (
        ("without history", "without_history"),
        ("short", "short"),
        ("history not read", "fallback"),
        ("items explored", "explored"),
        ("coverage", "coverage"),
    )
    series = [
        ChartLine(
            name,
            [float("nan") if one is None else getattr(one, field) for one in found],
            color,
        )
        for (name, field), color in zip(shares, _COLORS, strict=True)
    ]
    tenths = found[-1].tenths
    even = [1 / len(tenths)] * len(tenths)
    return [
        Chart(
            kind="lines",
            words="lists, items shown and items of the catalogue, by window",
            series=series,
            places=places,
            most=max([0.01, *(value for line in series for _, value in line.points)]),
        ),
        Chart(
            kind="bars",
            words="items shown, by the training's events with more popular items",
            series=(
                ChartLine("events in training", even, "--trained"),
                ChartLine("shown in the newest window", tenths, "--seen"),
            ),
            places=[f"{tenth / len(tenths):.0%}" for tenth in range(1, len(tenths))],
            most=max(*tenths, *even),
        ),
    ]


def _trouble(windows: Sequence[Window], places: Sequence[str]) -> Chart:
    degraded = [window.mix.apart / max(window.mix.rows, 1) for window in windows]
    series = [ChartLine("degraded", degraded, "--b")]
    words = "rows set apart, by window"
    if any(window.mix.confident for window in windows):
        unsure = [window.mix.unsure_share for window in windows]
        series.insert(0, ChartLine("unsure of", unsure, "--a"))
        words = f"rows with no probability above {UNSURE:g}, and {words}"
    return Chart(
        kind="lines",
        words=words,
        series=series,
        places=places,
        most=max([0.01, *(value for line in series for _, value in line.points)]),
    )


def _accuracy(found: DailyAccuracy, release: str) -> dict[str, object]:
    """Return precision and recall by day of purchase, and which decisions count."""
    days = found.days.get(release, {})
    old = {day: days[day] for day in sorted(days)[-_DAYS:] if days[day].known.any()}
    return {
        "lag_days": found.rule.lag_us / 86_400e6,
        "counts": found.total(release),
        "in_time": _in_time(found),
        "charts": [
            _level(
                " or ".join(found.outcomes(release).words[level:]),
                level,
                list(old.values()),
                [day_text(day) for day in old],
            )
            for level in FLAGGED_FROM
            if old
        ],
    }


def _level(
    flagged: str, level: int, days: Sequence[LabelCounts], places: Sequence[str]
) -> Chart:
    series = [
        ChartLine(
            word,
            [one.value for one in found],
            color,
            [one.low for one in found],
            [one.high for one in found],
        )
        for word, color, found in (
            ("precision", "--a", [day.precision(level) for day in days]),
            ("recall", "--b", [day.recall(level) for day in days]),
        )
    ]
    words = f"{flagged}, by day; bars: 95 %"
    return Chart(kind="lines", words=words, series=series, places=places)


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
    if drifting:
        title, tone = f"Drift in {', '.join(drifting)}", "drifting"
    elif any(_judged(one) for one in monitors):
        title, tone = "No drift", "calm"
    else:  # nothing was compared, which is no good news
        title, tone = "No window judged yet", "open"
    return render(
        "tollgate/monitor/templates/monitor.html.j2",
        {
            "title": title,
            "tone": tone,
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


def _judged(one: ProductMonitor) -> int:
    """Return how many windows of a product were compared with training."""
    return sum(sum(stream.judged.values()) for stream in one.streams.values())


def _figures(one: ProductMonitor) -> list[tuple[str, str]]:
    """Return the key figures of a product."""
    streams = list(one.streams.values())
    drifted = sum(sum(stream.drifted.values()) for stream in streams)
    newest = moment(one.decided_us) if one.decided_us else "none"
    return [
        ("Product", one.product),
        ("Decisions", f"{sum(stream.mix.rows for stream in streams):,}"),
        ("Windows judged", f"{_judged(one):,}"),
        ("Windows that drifted", f"{drifted:,}"),
        ("Newest decision", newest),
    ]


def _release(
    one: ProductMonitor, release: str, stream: ReleaseWindows
) -> dict[str, object]:
    """Return the values that the template needs of a release."""
    return {
        "name": release,
        "decisions": stream.mix.rows,
        "fates": ", ".join(f"{n:,} {fate}" for fate, n in stream.fates().items()),
        "troubled": sum(stream.troubled.values()),
        "problem": stream.problem,
        "groups": [
            *_group("Windows of decisions", stream, stream.windows, with_charts=True),
            *_group("Days", stream, stream.days, with_charts=False),
        ],
        "charts": charts_of(stream, limit=one.options.limits.psi),
        "counts": _counts(stream),
        "accuracy": one.accuracy and _accuracy(one.accuracy, release),
    }


def _group(
    title: str,
    stream: ReleaseWindows,
    windows: Sequence[Window],
    *,
    with_charts: bool,
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
            "states": [window.verdicts[at].state for window in judged[-_STRIP:]],
        }
        for at, last in enumerate(judged[-1].verdicts)
    ]
    before = "training" if stream.reader is None else "first window"
    charts = _worst(judged[-1], before) if with_charts else []
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


def _worst(window: Window, before: str) -> list[Chart]:
    """Return the bins of the score, and of the columns that drifted most."""
    score = [one for one in window.verdicts if one.kind == "score"]
    shown = [one for one in window.drifted if one.kind != "score"][:3]
    return [
        Chart(
            kind="bars",
            words=f"{one.name}: share of rows by value, newest window",
            series=(
                ChartLine(before, bins.trained, "--trained"),
                ChartLine("now", bins.seen, "--seen"),
            ),
            places=[number(cut) for cut in bins.cuts],
            most=max(*bins.seen, *bins.trained, 0.01),
        )
        for one in (*score, *shown)
        if (bins := one.bins) is not None
    ]


def _counts(stream: ReleaseWindows) -> list[tuple[str, str, str]]:
    """Return the rows and the share of each decision and each degraded bit."""
    mix = stream.mix
    unsure = (
        f"no probability of {UNSURE:g} or more",
        f"{mix.unsure:,}",
        f"{number(mix.unsure_share * 100)} %",
    )
    return [
        *(
            (name, f"{mix.decisions[at]:,}", f"{mix.share(at) * 100:.3g} %")
            for at, name in enumerate(stream.outcomes.words)
        ),
        *(
            (f"degraded: {bit}", f"{count:,}", f"{count / mix.rows * 100:.3g} %")
            for bit, count in mix.degraded().items()
        ),
        *([unsure] if stream.reader is None else []),
    ]
