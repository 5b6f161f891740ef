"""Format the tables and the report of `monitor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from tollgate.monitor.accuracy import DailyAccuracy
    from tollgate.monitor.looking import ProductMonitor
    from tollgate.monitor.windows import ReleaseWindows

_STYLES = {"holds": "green", "unsure": "yellow", "drift": "red", "untold": "dim"}
_KINDS = {"decisions": "windows", "day": "days"}


def monitor_tables(monitors: Sequence[ProductMonitor]) -> Iterator[Any]:
    """Build the tables: the judged windows of each release, then the newest window."""
    for one in monitors:
        if not one.streams:
            yield f"{escape(one.product)}: no decision was read"
        for release, stream in one.streams.items():
            yield _summary_text(one.product, release, stream)
            judged = [window for window in stream.windows if window.verdicts]
            if judged:
                yield _newest(judged[-1].verdicts)
        if one.accuracy is not None:
            yield _accuracy(one.accuracy, list(one.streams))


def monitor_report(monitors: Sequence[ProductMonitor]) -> list[dict[str, Any]]:
    """Convert the tables' content to objects for programs, one per product."""
    return [
        {
            "product": one.product,
            "releases": [
                {
                    "release": release,
                    "decisions": stream.mix.rows,
                    "fates": stream.fates(),
                    "problem": stream.problem,
                    "waiting": stream.pending,
                    "windows": {
                        kind: {
                            "judged": stream.judged[kind],
                            "drifted": stream.drifted[kind],
                            "not_judged": stream.troubled[kind],
                        }
                        for kind in _KINDS
                    },
                    "newest_window": _newest_report(stream),
                    "accuracy": _accuracy_report(one.accuracy, release),
                }
                for release, stream in one.streams.items()
            ],
        }
        for one in monitors
    ]


def _newest_report(stream: ReleaseWindows) -> list[dict[str, Any]]:
    judged = [window for window in stream.windows if window.verdicts]
    return [
        {
            "column": one.name,
            "kind": one.kind,
            "state": one.state,
            "psi": one.found.psi,
            "psi_at_least": one.least.psi,
            "ks": one.found.ks,
            "sigmas": one.sigmas,
            "missing": one.missing,
        }
        for one in (judged[-1].verdicts if judged else ())
    ]


def _accuracy_report(
    found: DailyAccuracy | None, release: str
) -> dict[str, Any] | None:
    if found is None:
        return None
    whole = found.total(release)
    return {
        "labelled": whole.labelled,
        "frauds": whole.frauds,
        "young": whole.young,
        "precision": whole.precision(1).value,
        "recall": whole.recall(1).value,
        "precision_of_declines": whole.precision(2).value,
        "recall_of_declines": whole.recall(2).value,
    }


def _summary_text(product: str, release: str, stream: ReleaseWindows) -> str:
    fates = ", ".join(f"{count:,} {fate}" for fate, count in stream.fates().items())
    parts = [
        f"{escape(product)} {escape(release)}: {stream.mix.rows:,} decisions ({fates})"
    ]
    for kind, words in _KINDS.items():
        if stream.judged[kind]:
            style = "red" if stream.drifted[kind] else "green"
            parts.append(
                f"[{style}]{stream.drifted[kind]:,}[/] of {stream.judged[kind]:,} "
                f"{words} drifted"
            )
        if stream.troubled[kind]:
            parts.append(
                f"{words} not judged, too many degraded rows: {stream.troubled[kind]:,}"
            )
    if not any(stream.closed.values()) and not stream.problem:
        parts.append(f"{stream.pending:,} in the first window, which is not full yet")
    return "; ".join(parts)


def _newest(verdicts: Sequence[Any]) -> Table:
    heads = ("newest window", "", "PSI", "at least", "KS", "shift", "missing")
    table = _table(heads)
    for one in verdicts:
        figures = (
            f"{one.found.psi:.3f}",
            f"{one.least.psi:.3f}",
            f"{one.found.ks:.3f}",
            f"{one.sigmas:+.2f}",
        )
        # Half a week has no weekend: its figures would raise false alarms.
        shown = figures if one.state != "untold" else ("",) * len(figures)
        state = f"[{_STYLES[one.state]}]{one.state}[/]"
        table.add_row(escape(one.name), state, *shown, f"{one.missing:.2%}")
    return table


def _accuracy(found: DailyAccuracy, releases: Sequence[str]) -> Table:
    heads = (
        *("labelled in time", "rows", "frauds", "young", "precision", "recall"),
        *("of declines", "recall"),
    )
    table = _table(heads)
    for release in releases:
        whole = found.total(release)
        shares = [
            measure(level).value
            for level in (1, 2)
            for measure in (whole.precision, whole.recall)
        ]
        table.add_row(
            escape(release),
            *(f"{count:,}" for count in (whole.labelled, whole.frauds, whole.young)),
            *("" if share != share else f"{share:.3f}" for share in shares),
        )
    return table


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for at, name in enumerate(heads):
        table.add_column(name, justify="right" if at else "left")
    return table
