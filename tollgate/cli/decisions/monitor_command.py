"""Report drift and accuracy from the sealed journal: `tollgate monitor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.decisions.journal_commands import Folder, Keys
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import Json, Repository, State
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.monitor.accuracy import DailyAccuracy
    from tollgate.monitor.decision_windows import ReleaseWindows
    from tollgate.monitor.journal_monitor import ProductMonitor
    from tollgate.settings import Settings

# Format the tables and the report of `monitor`.

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


_DRIFT = 1  # exit status
_LEAST_WINDOW = 500
_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"]


def monitor(
    product: Annotated[
        list[str] | None,
        typer.Option(
            help="Product to monitor; may be repeated.",
            show_default="all in STATE/journal",
        ),
    ] = None,
    folder: Folder = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Age of the oldest decisions to read, such as 30d.",
            show_default="the whole journal",
        ),
    ] = None,
    window: Annotated[
        int, typer.Option(min=_LEAST_WINDOW, help="Decisions per window.")
    ] = 2_500,
    psi: Annotated[
        float,
        typer.Option(
            min=0.0, help="Limit of the population stability index; more is drift."
        ),
    ] = 0.25,
    ks: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Limit of the distance between distributions (KS); more is drift.",
        ),
    ] = 0.2,
    false_alarms: Annotated[
        float,
        typer.Option(
            min=1e-9,
            max=0.5,
            help="Chance that an unchanged release ever raises an alarm.",
        ),
    ] = 0.01,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Labels to add to the sealed ones: Parquet, CSV or JSON lines."
        ),
    ] = None,
    label_lag: Annotated[
        str | None,
        typer.Option(
            help="Age at which decisions are compared with their labels, such as 30d.",
            show_default="the longest delay in features.yaml, or 30d",
        ),
    ] = None,
    legitimate: Annotated[
        bool,
        typer.Option(
            help="Treat decisions that are unlabelled after --label-lag as legitimate."
        ),
    ] = False,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            formats=_TIMES,
            help="Time to use as the present, for days and labels; UTC.",
            show_default="now",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Path of the HTML page to write, with charts.")
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="Path of the .prom file to write, for node_exporter."),
    ] = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    every: Annotated[
        str | None,
        typer.Option(
            help="Interval between passes, such as 60s.", show_default="look once"
        ),
    ] = None,
    keys: Keys = None,
    repository: Repository = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    Compare decisions with what their models were trained on, and with their labels.

    Exit status 1: a window that was read drifted. 2: an argument or a file is invalid.
    """
    from tollgate.cli.decisions.journal_commands import seconds
    from tollgate.cli.decisions.journal_watch import Watch, WatchOptions, now
    from tollgate.monitor.drift import DriftLimits
    from tollgate.monitor.journal_monitor import MonitorOptions
    from tollgate.monitor.journals import Journals

    chosen = console.settings(repository=repository, state=state)
    console.require_products(chosen, product or ())
    _require_files(report, metrics)
    if as_json and every:
        raise InputError("--json", "reports one look; leave --every out")
    require_metrics_port(metrics_port, host=metrics_host)
    every_s = seconds(every, flag="--every") if every else 0.0
    if metrics_port and not every_s:
        raise InputError("--metrics-port", "serves who looks again: give --every")
    since_us = 0
    if since:
        since_us = now(None) - int(seconds(since, flag="--since") * 1e6)
    options = MonitorOptions(
        window=window,
        limits=DriftLimits(psi=psi, ks=ks, false_alarms=false_alarms),
        since_us=since_us,
        lag_us=int(seconds(label_lag, flag="--label-lag") * 1e6) if label_lag else 0,
        legitimate=legitimate,
    )
    journals = Journals(
        _folders(product, folder, chosen),
        home=chosen.state_path / "journal",
        repository=_repository(chosen),
        options=options,
    )
    asked = WatchOptions(
        as_of=as_of, labels=labels, keys=keys, report=report, metrics=metrics
    )
    watch = Watch(journals, chosen, asked)
    if not every_s:
        watch.check()
        if as_json:
            console.print_json(monitor_report(journals.monitors))
        else:
            watch.print_findings()
        if any(one.drifted for one in journals.monitors):
            raise typer.Exit(_DRIFT)
        return
    serve_metrics(watch.metrics.registry, metrics_port, host=metrics_host)
    watch.repeat(every_s)


def _folders(
    products: list[str] | None, folder: Path | None, chosen: Settings
) -> list[Path]:
    """List the folders of the requested journals; None stands for all."""
    if folder is None:
        return [chosen.state_path / "journal" / name for name in products or ()]
    if products:
        raise InputError("--folder", "is one journal; leave --product out")
    return [folder]


def _repository(chosen: Settings) -> Path | None:
    known = not chosen.repository_url and chosen.repository_path.is_dir()
    return chosen.repository_path if known else None


def _require_files(report: Path | None, metrics: Path | None) -> None:
    """Refuse output files that cannot be written, before a journal is read."""
    for flag, path in (("--report", report), ("--metrics", metrics)):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError(flag, f"{path.parent} is not a folder")
    if metrics is not None and metrics.suffix != ".prom":
        raise InputError("--metrics", f"{metrics} is not called .prom")
