"""Count and log the requests that a step refuses because they may be forged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tollgate.steps.context_mac import DIRECT, EXPIRED, REASONS, REPLAYED, UNSIGNED
from tollgate.steps.metric_buffer import MetricBuffer, export_each_second

FAMILY = "tollgate_refused_requests_total"
DESCRIPTION = "Requests that a step refused because they may be forged"

log = logging.getLogger(__name__)

_ERRORS = {
    DIRECT: "this model is a step of an ensemble and decides for it alone: call the "
    "ensemble",
    UNSIGNED: "features and context do not carry the feature step's signature",
    REPLAYED: "features and context were decided before",
    EXPIRED: "features and context are too old",
}


class Refusals:
    """
    Count refused requests by reason, in Prometheus and in the log.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        labels: Labels of the metric; product, model and version.
    """

    def __init__(self, pb: Any, *, labels: Mapping[str, str]) -> None:
        self._model = labels["model"]
        self._numbers = Counter(dict.fromkeys(REASONS, 0))
        self._exported: Counter[str] = Counter()
        self._counters = MetricBuffer(
            pb, counters={FAMILY: DESCRIPTION}, histograms={}, labels=labels
        )
        for reason in REASONS:
            self._counters.add(FAMILY, (("reason", reason),), number=0)
        self._counters.export()
        self._worker = export_each_second(self._export, name="refusals")

    def note(self, reasons: Iterable[str]) -> None:
        """Count refused requests by their reasons, and log one line for each reason."""
        for reason, number in Counter(reasons).items():
            self._numbers[reason] += number
            text = "%s refused %d requests (%s): %s"
            log.warning(text, self._model, number, reason, _ERRORS[reason])

    def close(self) -> None:
        """Export the remaining counts."""
        self._worker.stop()

    def _export(self) -> None:
        for reason in REASONS:
            number = self._numbers[reason] - self._exported[reason]
            if number:
                self._counters.add(FAMILY, (("reason", reason),), number=number)
                self._exported[reason] += number
        self._counters.export()


def refusal_error(reason: str) -> str:
    """Return the error text for the caller of a refused request."""
    return _ERRORS[reason]
