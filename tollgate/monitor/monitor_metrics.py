"""Export the Prometheus metrics of the monitor; docs/monitor.md has the table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.errors import InputError, os_errors
from tollgate.metrics import ROWS, family
from tollgate.monitor.accuracy import FLAGGED_FROM, DailyAccuracy
from tollgate.monitor.decision_windows import ReleaseWindows, Window
from tollgate.monitor.journal_monitor import ProductMonitor
from tollgate.monitor.shown_lists import ListFigures
from tollgate.repository.atomic import replace_file

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tollgate.metrics import Family

Sample = tuple[str, dict[str, str], float]

PREFIX = "tollgate_monitor_"


class MonitorMetrics:
    """Metrics of the products' last looks; reads the monitors between looks."""

    def __init__(self, monitors: Sequence[ProductMonitor]) -> None:
        from prometheus_client import CollectorRegistry

        self._monitors = monitors
        self._families: list[Family] = []
        self.registry: CollectorRegistry = CollectorRegistry()
        self.registry.register(self)

    def refresh(self) -> None:
        """Take the values of the finished look; a scrape sees only old or new ones."""
        samples = [one for monitor in self._monitors for one in samples_of(monitor)]
        self._families = _families(samples)

    def collect(self) -> Iterable[Family]:
        """Return the metric families to a scrape."""
        return list(self._families)

    def write(self, path: Path) -> None:
        """
        Write a file for node_exporter's textfile collector, atomically.

        Raises:
            InputError: The file cannot be written.
        """
        from prometheus_client import generate_latest

        with os_errors(InputError, path, "cannot be written"):
            replace_file(path, generate_latest(self.registry))


def _families(
    samples: Iterable[Sample],
) -> list[Family]:
    found: dict[str, Family] = {}
    for name, labels, value in samples:
        if math.isnan(value):
            continue
        if name not in found:
            found[name] = family(PREFIX + name)
        ordered = [labels[label] for label in ROWS[PREFIX + name].labels]
        found[name].add_metric(ordered, value)
    return list(found.values())


def samples_of(monitor: ProductMonitor) -> Iterator[Sample]:
    """Yield name, labels and value of all metrics of a product."""
    own = {"product": monitor.product}
    yield "last_decision_timestamp_seconds", own, monitor.decided_us / 1e6
    yield "last_look_timestamp_seconds", own, monitor.looked_us / 1e6
    yield "look_seconds", own, monitor.took_s
    yield "unread_segments", own, len(monitor.unread)
    if monitor.accuracy is not None:
        yield "labels_in_time_share", own, monitor.accuracy.in_time
    deciding = monitor.deciding
    for release, stream in monitor.streams.items():
        labels = {**own, "release": release}
        yield from _counts(stream, labels)
        if release in deciding:  # drift of an inactive release is over
            yield from _newest(stream, labels)
        if monitor.accuracy is not None:
            yield from _accuracy(monitor.accuracy, release, labels)


def _counts(stream: ReleaseWindows, labels: dict[str, str]) -> Iterator[Sample]:
    for fate, count in stream.fates().items():
        yield "decisions", {**labels, "fate": fate}, count
    for kind in ("decisions", "day"):
        its = {**labels, "window": kind}
        yield "judged_windows", its, stream.judged[kind]
        yield "drifted_windows", its, stream.drifted[kind]
        yield "troubled_windows", its, stream.troubled[kind]


def _newest(stream: ReleaseWindows, labels: dict[str, str]) -> Iterator[Sample]:
    for kind, windows in (("decisions", stream.windows), ("day", stream.days)):
        judged = [window for window in windows if window.verdicts]
        if judged:
            yield from _window(judged[-1], {**labels, "window": kind})
    if not stream.windows:
        return
    mix, lists = stream.windows[-1].mix, stream.windows[-1].lists
    if lists is not None:
        yield from _lists(lists, labels)
    for at, decision in enumerate(stream.outcomes.words):
        yield "decision_share", {**labels, "decision": decision}, mix.share(at)
    yield "confidence", labels, mix.confidence
    yield "unsure_share", labels, mix.unsure_share
    now = mix.degraded()
    for bit in stream.mix.degraded():  # export 0 for a bit that no longer occurs
        yield "degraded_share", {**labels, "bit": bit}, now.get(bit, 0) / mix.rows


def _lists(found: ListFigures, labels: dict[str, str]) -> Iterator[Sample]:
    for kind in ("without_history", "fallback", "short"):
        yield "list_share", {**labels, "kind": kind}, getattr(found, kind)
    yield "explored_share", labels, found.explored
    yield "coverage", labels, found.coverage
    for tenth, share in enumerate(found.tenths, start=1):
        yield "shown_share", {**labels, "tenth": str(tenth)}, share


def _window(window: Window, labels: dict[str, str]) -> Iterator[Sample]:
    for one in window.verdicts:
        its = {**labels, "kind": one.kind, "name": one.name}
        yield "missing_share", its, one.missing
        if one.state == "untold":
            continue  # e.g. half a week has no weekend
        yield "drift", its, float(one.state == "drift")
        yield "psi", its, one.found.psi
        yield "ks", its, one.found.ks
        yield "shift_sigmas", its, one.sigmas


def _accuracy(
    found: DailyAccuracy, release: str, labels: dict[str, str]
) -> Iterator[Sample]:
    whole, newest = found.total(release), found.newest(release)
    yield "labelled_decisions", labels, whole.labelled
    yield "frauds", labels, whole.frauds
    for span, counts in (("all", whole), ("day", newest)):
        if counts is None:
            continue
        for level in FLAGGED_FROM:
            word = found.outcomes(release).words[level]
            its = {**labels, "level": word, "span": span}
            yield "precision", its, counts.precision(level).value
            yield "recall", its, counts.recall(level).value
