"""Export the state of a step's background loops to Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tollgate.steps.metric_buffer import MetricBuffer, export_each_second
from tollgate.worker import (
    ERRORS_HELP,
    ERRORS_METRIC,
    FAILURES_HELP,
    FAILURES_METRIC,
    tallies,
)


class LoopMetrics:
    """
    Export the health of this process's background loops once a second.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        labels: Labels of every metric; product, model and version.
    """

    def __init__(self, pb: Any, *, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._counters = MetricBuffer(
            pb, counters={ERRORS_METRIC: ERRORS_HELP}, histograms={}, labels=labels
        )
        self._family = pb.MetricFamily(
            name=FAILURES_METRIC,
            description=FAILURES_HELP,
            kind=pb.MetricFamily.GAUGE,
        )
        self._gauges: dict[str, Any] = {}
        self._errors: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._worker = export_each_second(self._export, name="loop-metrics")

    def close(self) -> None:
        """Export the last counts."""
        self._worker.stop()

    def _export(self) -> None:
        for name, tally in tallies().items():
            risen = tally.errors - self._errors.get(name, 0)
            if risen or name not in self._errors:
                self._counters.add(ERRORS_METRIC, (("loop", name),), number=risen)
                self._errors[name] = tally.errors
            if name not in self._gauges:
                labels = {**self._labels, "loop": name}
                self._gauges[name] = self._family.Metric(labels=labels)
            # Only when it changes: the processes of one step share the gauge, and a
            # process whose loops work must not hide one whose loops fail.
            if tally.failures != self._failures.get(name, 0):
                self._gauges[name].set(tally.failures)
                self._failures[name] = tally.failures
        self._counters.export()
