"""Format the tables of a challenger report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from tollgate.schema import Decision

if TYPE_CHECKING:
    from tollgate.challenger.intervals import Interval
    from tollgate.challenger.report import ReleaseSummary, TrialReport

_NAMES = tuple(level.name.lower() for level in Decision)
_STYLES = {"holds": "green", "unsure": "yellow", "broken": "red", "waits": "dim"}
_SHADOW_TIMES = "time of a batch in the worker"
_SERVER_TIMES = "time in the server"


def report_tables(report: TrialReport) -> Iterator[Any]:
    """Build the tables, below a line that names the releases under comparison."""
    trial = report.trial
    share = f" at {trial.percent:g} %" if trial.mode == "canary" else ""
    yield (
        f"{trial.mode}{share}: {trial.challenger} next to {trial.champion} since "
        f"{trial.began}; {report.rows:,} rows decided by both, "
        f"{report.us_per_row:,.0f} µs a row off the path; intervals at 95 %"
    )
    if report.unfit:
        yield f"{report.unfit:,} rows left out: other features or fields"
    yield _gates(report)
    yield _parts(report)
    yield _matrix(report)
    yield _sides(report)
    yield (
        f"score: PSI {_plain(report.psi)}, KS {_plain(report.ks)}, both over the rows "
        "that both decided"
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    return table


def _gates(report: TrialReport) -> Table:
    table = _table("gate", "", "found", "allowed", "rows")
    for one in report.verdicts:
        text = _percent if one.gate.endswith("_share") else _plain
        limit = f"{one.limit:.3g}"
        if one.gate.endswith("_share"):
            limit = f"{one.limit * 100:.3g} %"
        state = f"[{_STYLES[one.state]}]{one.state}[/]"
        table.add_row(one.gate, state, text(one.found), limit, f"{one.rows:,}")
    return table


def _parts(report: TrialReport) -> Table:
    table = _table(
        "rows", "", "decided otherwise", "of the money", "stricter", "milder", "score"
    )
    for one in report.parts:
        table.add_row(
            escape(one.name),
            f"{one.rows:,}",
            _percent(one.flips),
            _percent(one.money),
            f"{one.stricter:,} ({_money(one.stricter_cents)})",
            f"{one.milder:,} ({_money(one.milder_cents)})",
            _plain(one.shift),
        )
    return table


def _matrix(report: TrialReport) -> Table:
    trial = report.trial
    table = _table(f"{trial.champion} ╲ {trial.challenger}", *_NAMES)
    for at, name in enumerate(_NAMES):
        table.add_row(
            name,
            *(
                f"{rows:,} ({_money(report.cents[at][other])})"
                for other, rows in enumerate(report.matrix[at])
            ),
        )
    return table


def _sides(report: TrialReport) -> Table:
    one, other = report.champion, report.challenger
    table = _table("share", one.release, other.release, "difference")
    table.add_row("rows", f"{one.rows:,}", f"{other.rows:,}", "")
    for name in (*_NAMES, "errors", "degraded"):
        table.add_row(
            name,
            _percent(_share(one, name)),
            _percent(_share(other, name)),
            _percent(report.differences[name]),
        )
    table.add_row("mean score", _plain(one.score), _plain(other.score), "")
    mode = report.trial.mode
    times = [_SERVER_TIMES, _SERVER_TIMES]
    if mode != "canary":
        times[mode == "shadow"] = _SHADOW_TIMES
    table.add_row("times are", *times, "")
    table.add_row("p50, ms", _plain(one.p50_ms), _plain(other.p50_ms), "")
    table.add_row("p99, ms", _plain(one.p99_ms), _plain(other.p99_ms), "")
    return table


def _share(side: ReleaseSummary, name: str) -> Interval:
    if name in side.shares:
        return side.shares[name]
    return side.errors if name == "errors" else side.degraded


def _percent(found: Interval) -> str:
    return _interval_text(found, by=100, unit=" %")


def _plain(found: Interval) -> str:
    return _interval_text(found, by=1, unit="")


def _interval_text(found: Interval, *, by: int, unit: str) -> str:
    if math.isnan(found.value):
        return "-"
    ends = " to ".join(f"{end * by:.3g}" for end in (found.low, found.high))
    return f"{found.value * by:.3g}{unit} ({ends})"


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
