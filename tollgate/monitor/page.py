"""Render the report as a static HTML page that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence

from tollgate.audit.times import utc_text
from tollgate.monitor.judging import ColumnResult
from tollgate.monitor.looking import ProductMonitor
from tollgate.monitor.page_charts import charts_of, days_chart, moment
from tollgate.monitor.pictures import bars, number, strip
from tollgate.monitor.tallies import DECISIONS
from tollgate.monitor.windows import ReleaseWindows, Window
from tollgate.templating import render


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
