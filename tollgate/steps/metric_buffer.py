"""
Buffer counters and histograms of a step, and export them to Triton from a thread.

An update of a Triton metric is a message to the server, 10 µs each
(docs/performance-log.md), and Triton's histograms take one message for each
observation. So a step only adds numbers here, and a thread sends the increments once a
second. A histogram is exported in the form that Prometheus gives it: counters with a
label `le`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.worker import Worker

INTERVAL_S = 1.0
_AT_ONCE = 8  # messages; between two groups of them the step gets the interpreter
PAUSE_S = 0.001

Labels = tuple[tuple[str, str], ...]


class MetricBuffer:
    """
    Buffer the counters and histograms of one step, and export their increments.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        counters: Name -> description.
        histograms: Name -> description and upper bounds, ascending.
        labels: Labels of every one of them.
    """

    def __init__(
        self,
        pb: Any,
        *,
        counters: Mapping[str, str],
        histograms: Mapping[str, tuple[str, Sequence[float]]],
        labels: Mapping[str, str],
    ) -> None:
        self._labels = dict(labels)
        self._bounds = {
            name: np.array(bounds, np.float64)
            for name, (_, bounds) in histograms.items()
        }
        self._le = {
            name: [*(f"{one:g}" for one in bounds), "+Inf"]
            for name, (_, bounds) in histograms.items()
        }
        texts = dict(counters)
        for name, (text, _) in histograms.items():
            for part in ("bucket", "sum", "count"):
                texts[f"{name}_{part}"] = text
        self._families = {
            name: pb.MetricFamily(
                name=name, description=text, kind=pb.MetricFamily.COUNTER
            )
            for name, text in texts.items()
        }
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._risen: dict[tuple[str, Labels], float] = {}

    def add(self, name: str, labels: Labels, *, number: float) -> None:
        """Add to a counter; adding 0 exports it from then on."""
        key = (name, labels)
        self._risen[key] = self._risen.get(key, 0.0) + number

    def observe(self, name: str, labels: Labels, *, values: npt.NDArray[Any]) -> None:
        """
        Add to a histogram.

        Args:
            name: Its name.
            labels: Its labels besides the common ones.
            values: [N], none of them NaN.
        """
        bounds = self._bounds[name]
        found = np.searchsorted(bounds, values, side="left")
        counts = np.cumsum(np.bincount(found, minlength=len(bounds) + 1))
        for le, number in zip(self._le[name], counts.tolist(), strict=True):
            self.add(f"{name}_bucket", (*labels, ("le", le)), number=number)
        self.add(f"{name}_sum", labels, number=float(values.sum()))
        self.add(f"{name}_count", labels, number=len(values))

    def export(self, *, pause: Callable[[float], object] = lambda _: None) -> None:
        """
        Send the increments to Triton.

        Args:
            pause: Called with seconds between two groups of messages.
        """
        sent = 0
        for key in list(self._risen):  # after an error the next call sends the rest
            number = self._risen.pop(key)
            if key not in self._metrics:
                name, labels = key
                self._metrics[key] = self._families[name].Metric(
                    labels={**self._labels, **dict(labels)}
                )
            # Triton's stub crashes, and the server with it, if a counter falls.
            if number > 0:
                self._metrics[key].increment(number)
                sent += 1
                if sent % _AT_ONCE == 0:
                    pause(PAUSE_S)


def export_each_second(export: Callable[[], None], *, name: str) -> Worker:
    """Run a function once a second from a separate thread, and once at the end."""
    worker = Worker(name, export, pause_s=INTERVAL_S, finish=export)
    worker.start()
    return worker
