"""Render the report as a static HTML page that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tollgate.audit.page_parts import section, table, tiles
from tollgate.audit.page_style import SAFE, STYLE
from tollgate.audit.times import utc_text
from tollgate.monitor.judging import ColumnResult
from tollgate.monitor.looking import ProductMonitor
from tollgate.monitor.page_charts import charts_of, days_chart, moment
from tollgate.monitor.pictures import bars, number, strip
from tollgate.monitor.tallies import DECISIONS
from tollgate.monitor.windows import ReleaseWindows, Window

_MORE_STYLE = """
:root { --trained: #9aa4ae; --seen: #2f6f9f; --holds: #bcd9c6; --unsure: #e0a73a;
  --drift: #b3261e; --untold: #dde1e5; --a: #2f6f9f; --b: #b3261e; --c: #9a6200;
  --d: #2c7a4b; --e: #7a4f9a; }
@media (prefers-color-scheme: dark) { :root { --trained: #5c6570; --seen: #7db4de;
  --holds: #2f5a40; --unsure: #e5b04f; --drift: #ff897d; --untold: #343a41;
  --a: #7db4de; --b: #ff897d; --c: #e5b04f; --d: #77c796; --e: #c49be0; } }
figure { margin: 1rem 0; max-width: 46rem; }
figcaption { font-size: .88rem; color: var(--soft); display: flex; flex-wrap: wrap;
  gap: .2rem 1rem; justify-content: space-between; }
.key span { margin-left: .9rem; white-space: nowrap; }
.key i { display: inline-block; width: .7rem; height: .7rem; margin-right: .3rem;
  border-radius: .15rem; }
svg { display: block; width: 100%; height: auto; }
svg.strip { width: auto; margin-top: .3rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--rule); } svg .line { fill: none; stroke-width: 1.6; }
svg .limit { stroke: var(--drift); stroke-dasharray: 4 4; }
.trained { fill: var(--trained); } .seen { fill: var(--seen); }
rect.holds { fill: var(--holds); } rect.unsure { fill: var(--unsure); }
rect.drift { fill: var(--drift); } rect.untold { fill: var(--untold); }
td.drift { color: var(--drift); font-weight: 600; } td.unsure { color: var(--unsure); }
td.untold, td.holds { color: var(--soft); }
h3 { margin: 1.5rem 0 .3rem; font-size: 1rem; }
.drifting { --tone: var(--drift); } .calm { --tone: var(--approve); }
"""
_HEADS = (
    *("Column", "Newest window", "PSI", "at least", "KS", "at least", "Shift, &sigma;"),
    *("Missing", "Windows, newest right"),
)


def monitor_page(monitors: Sequence[ProductMonitor]) -> str:
    """Return the results of the last looks as one HTML document."""
    drifting = [one.product for one in monitors if one.drifted]
    title = f"Drift in {', '.join(drifting)}" if drifting else "No drift"
    looked = utc_text(max(one.looked_us for one in monitors))
    parts = [part for one in monitors for part in _product(one)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(SAFE)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}{_MORE_STYLE}</style>
</head>
<body>
<header class="{"drifting" if drifting else "calm"}">
<p>tollgate monitor · looked {escape(looked)}</p>
<h1>{escape(title)}</h1>
</header>
<main>
{"".join(parts)}
</main>
</body>
</html>
"""


def _product(one: ProductMonitor) -> list[str]:
    parts = [_tiles(one)]
    for release, stream in one.streams.items():
        title = f"{one.product}: release {release}"
        parts.append(section(escape(title), _release(one, release, stream)))
    return parts


def _tiles(one: ProductMonitor) -> str:
    streams = list(one.streams.values())
    judged = sum(sum(stream.judged.values()) for stream in streams)
    drifted = sum(sum(stream.drifted.values()) for stream in streams)
    newest = moment(one.decided_us) if one.decided_us else "none"
    figures = [
        ("Product", one.product),
        ("Decisions", f"{sum(stream.mix.rows for stream in streams):,}"),
        ("Windows judged", f"{judged:,}"),
        ("Windows that drifted", f"{drifted:,}"),
        ("Newest decision", newest),
    ]
    return tiles(figures)


def _release(one: ProductMonitor, release: str, stream: ReleaseWindows) -> str:
    fates = ", ".join(f"{count:,} {fate}" for fate, count in stream.fates().items())
    text = f'<p class="soft">{stream.mix.rows:,} decisions: {escape(fates)}.</p>'
    troubled = sum(stream.troubled.values())
    if troubled:
        text += (
            f'<p class="bad">Not judged, because too many of their rows are degraded: '
            f"{troubled:,} windows and days.</p>"
        )
    if stream.problem:
        text += f'<p class="bad">Not compared: {escape(stream.problem)}.</p>'
    for words, windows in (
        ("Windows of decisions", stream.windows),
        ("Days", stream.days),
    ):
        judged = [window for window in windows if window.verdicts]
        if judged:
            text += f"<h3>{words}</h3>" + _columns(judged)
            text += _worst(judged[-1]) if windows is stream.windows else ""
    limits = one.options.limits
    text += charts_of(stream, limit=limits.psi)
    text += _mix(stream)
    if one.accuracy is not None:
        text += days_chart(one.accuracy, release)
    return text


def _columns(windows: Sequence[Window]) -> str:
    rows = []
    for at, last in enumerate(windows[-1].verdicts):
        states = [window.verdicts[at].state for window in windows]
        rows.append(
            f"<tr><th>{escape(last.name)}</th>"
            f'<td class="{last.state}">{last.state}</td>'
            + "".join(f'<td class="number">{cell}</td>' for cell in _figures(last))
            + f"<td>{strip(states)}</td></tr>"
        )
    return table(_HEADS, rows)


def _figures(one: ColumnResult) -> tuple[str, ...]:
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


def _mix(stream: ReleaseWindows) -> str:
    mix = stream.mix
    rows = [
        (name, f"{mix.decisions[at]:,}", f"{mix.share(at) * 100:.3g} %")
        for at, name in enumerate(DECISIONS)
    ]
    rows += [
        (f"degraded: {bit}", f"{count:,}", f"{count / mix.rows * 100:.3g} %")
        for bit, count in mix.degraded().items()
    ]
    rows.append(("unsure of", f"{mix.unsure:,}", f"{number(mix.unsure_share * 100)} %"))
    cells = [
        f'<tr><th>{escape(name)}</th><td class="number">{count}</td>'
        f'<td class="number">{share}</td></tr>'
        for name, count, share in rows
    ]
    return "<h3>All decisions</h3>" + table(("", "Rows", "Share"), cells)
