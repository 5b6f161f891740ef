"""Export the Prometheus metrics of the trial worker at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tollgate.challenger.challenger_worker import TrialWorkerCounts
from tollgate.challenger.decision_counts import ALL, LEVELS, Arm, Group
from tollgate.challenger.stored_counts import TrialState
from tollgate.schema import Decision

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

_TRIAL = ("product", "challenger", "mode")


class TrialMetrics:
    """
    Exports the counts of trials.

    Args:
        product: Product of the trials.
        trials: Returns the counts of each trial.
        tally: Returns the worker's counts since it started.

    Attributes:
        registry: Registry that holds this collector.
    """

    def __init__(
        self,
        product: str,
        *,
        trials: Callable[[], list[TrialState]],
        tally: Callable[[], TrialWorkerCounts],
    ) -> None:
        from prometheus_client import CollectorRegistry

        self._product = product
        self._trials = trials
        self._tally = tally
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield metric families, as prometheus_client requires."""
        from prometheus_client.core import CounterMetricFamily

        tally = self._tally()
        for name, text, number in (
            ("taken", "Decisions read", tally.rows),
            ("unreadable", "Entries that are no chunk", tally.unreadable),
            ("retries", "Times that something was away", tally.retries),
            ("ended", "Trials that a gate ended", len(tally.ended)),
        ):
            counter = CounterMetricFamily(
                f"tollgate_trial_{name}", text, labels=["product"]
            )
            counter.add_metric([self._product], number)
            yield counter
        found = [
            ([one.trial.product, one.trial.challenger, one.trial.mode], one.groups)
            for one in self._trials()
        ]
        groups = [(named, one.get(ALL, Group())) for named, one in found]
        yield from _pairs(groups)
        yield from _arms(groups)


def _pairs(groups: list[tuple[list[str], Group]]) -> Iterator[Metric]:
    rows = _gauge("pairs", "Rows decided by both", _TRIAL)
    flips = _gauge("flips", "Of them decided differently", _TRIAL)
    for named, group in groups:
        pairs = group.pairs
        same = sum(pairs.matrix[level * (LEVELS + 1)] for level in range(LEVELS))
        rows.add_metric(named, pairs.rows)
        flips.add_metric(named, pairs.rows - same)
    yield rows
    yield flips


def _arms(groups: list[tuple[list[str], Group]]) -> Iterator[Metric]:
    labels = (*_TRIAL, "arm")
    rows = _gauge("rows", "Rows counted", labels)
    decisions = _gauge("decisions", "Rows by outcome", (*labels, "outcome"))
    mean = _gauge("score_mean", "Mean score", labels)
    errors = _gauge("errors", "Rows without a usable score", labels)
    for named, group in groups:
        arms: dict[str, Arm] = {
            "champion": group.champion,
            "challenger": group.challenger,
        }
        for name, arm in arms.items():
            mine = [*named, name]
            rows.add_metric(mine, arm.rows)
            errors.add_metric(mine, arm.errors)
            if arm.scored:
                mean.add_metric(mine, arm.score_sum / arm.scored)
            for outcome in Decision:
                word = outcome.name.lower()
                decisions.add_metric([*mine, word], arm.decisions[outcome])
    yield rows
    yield decisions
    yield mean
    yield errors


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"tollgate_trial_{name}", text, labels=labels)
