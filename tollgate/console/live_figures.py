"""
Compute rates, latency percentiles and shares from Triton's metrics page.

The page holds counters. Each figure is the growth of counters between two samples of
the page. A sample is taken every ten seconds, and once a second at most while a console
is open; a chart holds the last fifteen minutes.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tollgate.errors import ServerError

SAMPLE_EVERY_S = 10.0  # while no console is open
FRESH_S = 1.0  # a younger sample is not repeated
WINDOW_S = 30.0  # of the figures in tables
POINT_WINDOW_S = 10.0  # of a point in a chart
CHART_S = 900.0
STEPS = ("features", "model", "decision", "whole")
_PAGE_TIMEOUT_S = 2.0
_MOST_SERIES = 20_000
_SAMPLES_S = 2 * WINDOW_S

_USED = frozenset(
    {
        "tollgate_decisions_total",
        "tollgate_rows_total",
        "tollgate_degraded_rows_total",
        "tollgate_step_seconds_bucket",
        "tollgate_step_seconds_sum",
        "tollgate_store_breaker_state",
    }
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}
_BREAKER = ("closed", "half-open", "open")


class Series(msgspec.Struct, frozen=True):
    """A series of the metrics page: its name, product and other labels."""

    name: str
    product: str
    labels: dict[str, str]


class Sample(msgspec.Struct, frozen=True):
    """
    Values of all used series at one time.

    Attributes:
        at_s: Time on the monotonic clock.
        time_s: Time since the epoch.
        values: Value of each series, by its text on the page.
    """

    at_s: float
    time_s: float
    values: dict[str, float]


class Latency(msgspec.Struct, frozen=True):
    """Latency of one layer, ms; None where there were no rows."""

    layer: str
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    mean_ms: float | None


class Share(msgspec.Struct, frozen=True):
    """
    Rows of one kind in the window.

    Attributes:
        share: Of all rows in the window, 0 to 1; None without rows.
        total: Rows since the server started.
    """

    name: str
    rows: float
    share: float | None
    total: float


class Figures(msgspec.Struct, frozen=True):
    """
    Figures of one product over a window.

    Attributes:
        window_s: Length of the window, s; 0 before there are two samples.
        rate: Decisions per second; None before there are two samples.
        decided: Decisions in the window.
        total: Decisions since the server started.
        degraded: Share of decisions that were not made with features of the store, 0 to
            1; None without decisions.
        outcomes: Decisions by outcome, the mildest first.
        sources: Decisions by the source of their features.
        reasons: Rows by degraded bit, dry runs among them; bits that never occurred are
            left out.
        kinds: Rows by kind: decided, repeated, dry, bad.
        releases: Decisions by release.
        latencies: Per layer, in the order of a request.
        breaker: State of the store's circuit breaker; empty if unknown.
    """

    window_s: float
    rate: float | None
    decided: float
    total: float
    degraded: float | None
    outcomes: list[Share]
    sources: list[Share]
    reasons: list[Share]
    kinds: list[Share]
    releases: list[Share]
    latencies: list[Latency]
    breaker: str


class Point(msgspec.Struct, frozen=True, array_like=True):
    """
    A point of the charts.

    Attributes:
        time_s: Seconds since the epoch.
        rates: Decisions per second by outcome, in the order of the words.
        p50_ms, p99_ms: Of the whole decision; None without decisions.
    """

    time_s: float
    rates: list[float]
    p50_ms: float | None
    p99_ms: float | None


class LiveFigures:
    """
    Sample the metrics page, and compute figures of products.

    Args:
        url: Address of the metrics page.
        words: Outcomes of each product, the mildest first.
    """

    def __init__(self, url: str, *, words: Mapping[str, Sequence[str]]) -> None:
        self._url = url
        self._words = {name: tuple(one) for name, one in words.items()}
        self._series: dict[str, Series | None] = {}
        self._samples: deque[Sample] = deque()
        self._points: dict[str, deque[Point]] = {name: deque() for name in words}
        self._sampling = threading.Lock()
        self.problem = ""

    def set_words(self, product: str, words: Sequence[str]) -> None:
        """Change the outcomes of a product, as a release may; its charts restart."""
        with self._sampling:
            if self._words.get(product) != tuple(words):
                self._words[product] = tuple(words)
                self._points[product] = deque()

    @property
    def sampled_s(self) -> float | None:
        """Time of the last sample, s since the epoch; None before the first."""
        return self._samples[-1].time_s if self._samples else None

    def sample(self) -> None:
        """
        Read the page, unless the last sample is fresh; one caller at a time.

        Raises:
            ServerError: The page did not answer.
        """
        with self._sampling:
            now_s = time.monotonic()
            if self._samples and now_s - self._samples[-1].at_s < FRESH_S:
                return
            try:
                page = _read_page(self._url)
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.problem = f"the metrics page does not answer: {error}"
                raise ServerError("tritonserver", self.problem) from error
            self.problem = ""
            self._samples.append(Sample(now_s, time.time(), self._parse(page)))
            while self._samples[0].at_s < now_s - _SAMPLES_S:
                self._samples.popleft()
            for product, points in self._points.items():
                self._add_point(product, points)

    def figures(self, product: str) -> Figures:
        """Compute the figures of a product from the samples that there are."""
        new, old = self._window(WINDOW_S)
        grown = self._growth(product, new, old)
        seconds = new.at_s - old.at_s if new and old else 0.0
        totals = self._growth(product, new, Sample(0.0, 0.0, {}))
        decided = _sum_by(grown, "tollgate_decisions_total", "outcome")
        all_decided = sum(decided.values())
        sources = _sum_by(grown, "tollgate_decisions_total", "source")
        kinds = _sum_by(grown, "tollgate_rows_total", "kind")
        reasons = _shares(
            _sum_by(totals, "tollgate_degraded_rows_total", "bit"),
            _sum_by(grown, "tollgate_degraded_rows_total", "bit"),
            of=sum(kinds.values()),
        )
        outcomes = _shares(
            dict.fromkeys(self._words.get(product, ()), 0.0)
            | _sum_by(totals, "tollgate_decisions_total", "outcome"),
            decided,
            of=all_decided,
        )
        unusual = all_decided - sources.get("store", 0.0)
        return Figures(
            window_s=seconds,
            rate=all_decided / seconds if seconds else None,
            decided=all_decided,
            total=sum(one.total for one in outcomes),
            degraded=unusual / all_decided if all_decided else None,
            outcomes=outcomes,
            sources=_shares(
                _sum_by(totals, "tollgate_decisions_total", "source"),
                sources,
                of=all_decided,
            ),
            reasons=sorted(
                (one for one in reasons if one.total),
                key=lambda one: (-one.rows, one.name),
            ),
            kinds=_shares(
                _sum_by(totals, "tollgate_rows_total", "kind"),
                kinds,
                of=sum(kinds.values()),
            ),
            releases=_shares(
                _sum_by(totals, "tollgate_decisions_total", "release"),
                _sum_by(grown, "tollgate_decisions_total", "release"),
                of=all_decided,
            ),
            latencies=[_latency(step, grown) for step in STEPS],
            breaker=self._breaker(product, new),
        )

    def points(self, product: str, *, after_s: float) -> list[Point]:
        """Return the points of a product's charts after a time, oldest first."""
        with self._sampling:
            return [one for one in self._points[product] if one.time_s > after_s]

    def _parse(self, page: str) -> dict[str, float]:
        values = {}
        if len(self._series) > _MOST_SERIES:
            self._series.clear()  # releases of long ago
        for line in page.splitlines():
            head, _, value = line.rpartition(" ")
            if head not in self._series:
                self._series[head] = parse_series(head)
            if self._series[head] is not None:
                values[head] = float(value)
        return values

    def _window(self, seconds: float) -> tuple[Sample | None, Sample | None]:
        """Return the newest sample, and the newest that is old enough or the oldest."""
        samples = list(self._samples)
        if len(samples) < 2:
            return (samples[-1] if samples else None), None
        new = samples[-1]
        old = samples[0]
        for one in samples[:-1]:
            if new.at_s - one.at_s >= seconds:
                old = one
        return new, old

    def _growth(
        self, product: str, new: Sample | None, old: Sample | None
    ) -> list[tuple[Series, float]]:
        """Return how much each counter grew; a counter that restarted counts whole."""
        if new is None or old is None:
            return []
        found = []
        for head, value in new.values.items():
            series = self._series.get(head)
            if series is not None and series.product == product:
                before = old.values.get(head, 0.0)
                found.append((series, value - before if value >= before else value))
        return found

    def _add_point(self, product: str, points: deque[Point]) -> None:
        new, old = self._window(POINT_WINDOW_S)
        if new is None or old is None:
            return
        grown = self._growth(product, new, old)
        decided = _sum_by(grown, "tollgate_decisions_total", "outcome")
        seconds = new.at_s - old.at_s
        whole = _latency("whole", grown)
        words = self._words[product]
        rates = [round(decided.get(word, 0.0) / seconds, 2) for word in words]
        points.append(Point(round(new.time_s, 1), rates, whole.p50_ms, whole.p99_ms))
        while points[0].time_s < new.time_s - CHART_S:
            points.popleft()

    def _breaker(self, product: str, new: Sample | None) -> str:
        states = [
            int(new.values[head])
            for head, one in self._series.items()
            if new is not None
            and one is not None
            and one.name == "tollgate_store_breaker_state"
            and one.product == product
            and head in new.values
        ]
        return _BREAKER[max(states)] if states else ""


def parse_series(head: str) -> Series | None:
    """Parse name and labels of a line of the page; None for a series of no figure."""
    name, brace, labels = head.partition("{")
    if not brace or name not in _USED:
        return None
    found = parse_labels(labels)
    return Series(name, found.get("product", ""), found)


def parse_labels(text: str) -> dict[str, str]:
    """Parse the labels between the braces of a line of a metrics page."""
    return {
        key: _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), value)
        for key, value in _LABEL.findall(text)
    }


def quantile(bounds: Sequence[float], counts: Sequence[float], *, at: float) -> float:
    """
    Estimate a quantile as Prometheus does: linear inside a bucket.

    Args:
        bounds: Upper bounds of the buckets, ascending; the last one is infinite.
        counts: Cumulative counts of the buckets; the last one is above 0.
        at: 0 to 1.

    Returns:
        The largest finite bound, if the quantile lies above it.
    """
    rank = at * counts[-1]
    low, before = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank and count > before:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - before) / (count - before)
        low, before = bound, count
    return low


def _latency(step: str, grown: Sequence[tuple[Series, float]]) -> Latency:
    buckets: dict[float, float] = {}
    total_s = 0.0
    for series, rows in grown:
        if series.labels.get("step") != step:
            continue
        if series.name == "tollgate_step_seconds_sum":
            total_s += rows
        elif series.name == "tollgate_step_seconds_bucket":
            bound = float(series.labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + rows
    bounds = sorted(buckets)
    counts = [buckets[bound] for bound in bounds]
    if not counts or counts[-1] <= 0:
        return Latency(step, None, None, None, None)
    p50, p95, p99 = (
        round(quantile(bounds, counts, at=one) * 1e3, 3) for one in (0.5, 0.95, 0.99)
    )
    return Latency(step, p50, p95, p99, round(total_s / counts[-1] * 1e3, 3))


def _sum_by(
    grown: Sequence[tuple[Series, float]], name: str, label: str
) -> dict[str, float]:
    found: dict[str, float] = {}
    for series, rows in grown:
        if series.name == name:
            key = series.labels.get(label, "")
            found[key] = found.get(key, 0.0) + rows
    return found


def _shares(
    totals: Mapping[str, float], grown: Mapping[str, float], *, of: float
) -> list[Share]:
    return list(_each_share(totals, grown, of))


def _each_share(
    totals: Mapping[str, float], grown: Mapping[str, float], of: float
) -> Iterator[Share]:
    for name, total in totals.items():
        rows = grown.get(name, 0.0)
        yield Share(name, rows, rows / of if of else None, total)


def _read_page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_PAGE_TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content.decode()
