"""Report drift and accuracy from the sealed journal: `tollgate monitor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.decisions.journal_commands import Folder, Keys, default_keys
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import UTC_TIMES, ExtraLabels, Json, Repository, State
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError
from tollgate.worker import Worker

if TYPE_CHECKING:
    import polars as pl

    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.monitor.accuracy import DailyAccuracy
    from tollgate.monitor.decision_windows import ReleaseWindows
    from tollgate.monitor.journal_monitor import Journals, ProductMonitor
    from tollgate.monitor.monitor_metrics import MonitorMetrics
    from tollgate.monitor.shown_lists import ListFigures
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
            if stream.windows and (lists := stream.windows[-1].lists) is not None:
                yield _lists_text(lists)
        if one.accuracy is not None and one.streams:
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
                    "newest_lists": stream.windows[-1].lists
                    if stream.windows
                    else None,
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


def _lists_text(found: ListFigures) -> str:
    return (
        f"newest window: {found.coverage:.2%} of the catalogue shown, "
        f"{found.explored:.2%} of the items explored; of {found.lists:,} lists "
        f"{found.without_history:.2%} for users without history, {found.fallback:.2%} "
        f"with a history not read, {found.short:.2%} short"
    )


def _newest(verdicts: Sequence[Any]) -> Table:
    heads = ("newest window", "", "PSI", "at least", "KS", "shift", "missing")
    table = console.number_table(*heads)
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
    severest = found.outcomes(releases[-1]).words[-1]
    heads = (
        *("labelled in time", "rows", "frauds", "young", "precision", "recall"),
        *(f"of {severest}", "recall"),
    )
    table = console.number_table(*heads)
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


_DRIFT = 1  # exit status
_LEAST_WINDOW = 500


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
    labels: ExtraLabels = None,
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
            formats=UTC_TIMES,
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
    from tollgate.monitor.drift import DriftLimits
    from tollgate.monitor.journal_monitor import Journals, MonitorOptions

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


class WatchOptions(msgspec.Struct, frozen=True):
    """
    Options of the command.

    Attributes:
        as_of: Time to use as now; None for the real time.
        labels: File of labels.
        keys: Folder of the subjects' keys; None for the one next to the journal.
        report, metrics: Files to write; None for none.
    """

    as_of: datetime | None = None
    labels: Path | None = None
    keys: Path | None = None
    report: Path | None = None
    metrics: Path | None = None


class Watch:
    """Reads the journals, judges them, and writes the requested files."""

    def __init__(
        self, journals: Journals, chosen: Settings, options: WatchOptions
    ) -> None:
        from tollgate.monitor.monitor_metrics import MonitorMetrics

        self._journals = journals
        self._monitors = journals.monitors
        self._chosen = chosen
        self._options = options
        self._printed: set[tuple[str, str]] = set()
        self.metrics: MonitorMetrics = MonitorMetrics(self._monitors)

    def check(self) -> None:
        """
        Read and judge every journal once, and write the requested files.

        Raises:
            InputError: Something is wrong; nothing is written.
        """
        self._journals.open()
        now_us = now(self._options.as_of)
        for one in self._monitors:
            one.look(now_us)
            one.require_read()
            self._judge(one, now_us)
        self._write()

    def repeat(self, every_s: float) -> None:
        """
        Read and judge the journals until SIGTERM or Ctrl-C.

        A problem is logged once and retried; a problem with one journal does not stop
        the others.
        """
        stopped = stop_on_signal()
        console.say("monitoring; Ctrl-C ends")
        drifted: set[str] = set()
        reported: list[str] = []

        def check() -> None:
            nonlocal drifted, reported
            problems = list(self._check_readable())
            for problem in problems:
                if problem not in reported:
                    console.say(f"tollgate: {problem}")
            if reported and not problems:
                console.say("all journals can be read again")
            reported = problems
            drifted = self._print_changes(drifted)

        loop = Worker("monitor", check, pause_s=every_s, at_once=True, stopped=stopped)
        loop.run()

    def _check_readable(self) -> Iterator[str]:
        """Judge every readable journal once; yield the problems of the others."""
        now_us = now(self._options.as_of)
        try:
            self._journals.open()
        except InputError as exc:
            yield str(exc)
        for one in self._monitors:
            try:
                one.look(now_us)
                yield from one.unread.values()
                self._judge(one, now_us)
            except InputError as exc:
                yield str(exc)
        try:
            self._write()
        except InputError as exc:
            yield str(exc)

    def _judge(self, one: ProductMonitor, now_us: int) -> None:
        one.judge(now_us, more=self._read_labels(one))
        self._print_problems(one)

    def _write(self) -> None:
        from tollgate.monitor.monitor_page import monitor_page

        self.metrics.refresh()
        if self._options.metrics is not None:
            self.metrics.write(self._options.metrics)
        if self._options.report is not None:
            page = monitor_page(self._monitors)
            console.write_private(self._options.report, page.encode())

    def print_findings(self) -> None:
        """Print the findings."""

        for one in monitor_tables(self._monitors):
            console.out.print(one, highlight=False)

    def _print_changes(self, before: set[str]) -> set[str]:
        """Print which columns drift since the last run, and which no longer do."""
        found = self._drifted()
        for word, names in (("drift", found - before), ("over", before - found)):
            for name in sorted(names):
                console.say(f"{word}: {name}")
        return found

    def _drifted(self) -> set[str]:
        """Name the columns that drift in the newest window of their release."""
        return {
            f"{one.product} {release}, {kind}: {column.name}"
            for one in self._monitors
            for release, stream in one.deciding.items()
            for kind, windows in (("decisions", stream.windows), ("day", stream.days))
            for window in [one for one in windows if one.verdicts][-1:]
            for column in window.drifted
        }

    def _print_problems(self, one: ProductMonitor) -> None:
        for release, stream in one.streams.items():
            if stream.problem and (one.product, release) not in self._printed:
                self._printed.add((one.product, release))
                console.say(
                    f"{one.product} {release} is not compared: {stream.problem}"
                )

    def _read_labels(self, one: ProductMonitor) -> pl.DataFrame | None:
        if self._options.labels is None:
            return None
        if len(self._monitors) > 1:
            raise InputError("--labels", "are of one product; name it with --product")
        from tollgate.audit.worker.label_journal import pseudonymised, read_labels
        from tollgate.audit.worker.pseudonyms import FILE, Subjects

        spec = one.spec or _served_spec(self._chosen, one.product)
        place = self._options.keys or default_keys(one.folder)
        if not (place / FILE).exists():
            raise InputError(
                place, f"there is no {FILE}: labels need the keys of people"
            )
        subjects = Subjects(place)
        try:
            read = read_labels(self._options.labels, spec=spec)
            return pseudonymised(read, spec=spec, subjects=subjects)
        finally:
            subjects.close()


def _served_spec(chosen: Settings, product: str) -> FeatureSpec:
    from tollgate.repository.releases.served_versions import served_spec

    return served_spec(chosen.repository_path, product=product)


def now(as_of: datetime | None) -> int:
    """Return the current time, or its substitute; µs since the epoch."""
    from tollgate.audit.chain.links import now_us

    if as_of is None:
        return now_us()
    return int(as_of.replace(tzinfo=timezone.utc).timestamp() * 1e6)
