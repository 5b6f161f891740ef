"""Judge the journals for `monitor`, once or at an interval."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.cli import console
from tollgate.cli.decisions.journal_commands import default_keys
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError
from tollgate.worker import Worker

if TYPE_CHECKING:
    import polars as pl

    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.monitor.journal_monitor import ProductMonitor
    from tollgate.monitor.journals import Journals
    from tollgate.monitor.monitor_metrics import MonitorMetrics
    from tollgate.settings import Settings


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
        """
        Judge every journal that can be read, once; yield the problems of the others.
        """
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
        from tollgate.repository.atomic import replace_file

        self.metrics.refresh()
        if self._options.metrics is not None:
            self.metrics.write(self._options.metrics)
        if self._options.report is not None:
            page = monitor_page(self._monitors)
            try:
                replace_file(self._options.report, page.encode(), mode=0o600)
            except OSError as exc:
                problem = f"cannot be written: {exc.strerror}"
                raise InputError(self._options.report, problem) from exc

    def print_findings(self) -> None:
        """Print the findings."""
        from tollgate.cli.decisions.monitor_command import monitor_tables

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
