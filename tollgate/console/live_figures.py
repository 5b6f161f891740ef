"""
Compute rates, latency percentiles and shares from Triton's metrics page.

The page holds counters. Each figure is the growth of counters between two samples of
the page. A sample is taken every ten seconds, and once a second at most while a console
is open; a chart holds the last fifteen minutes.

A counter of the page restarts with its step, and disappears with the version of the
step when a release changes. So a sample holds the growth of all counters of one kind
since the first sample, which never falls.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tollgate.errors import ServerError

SAMPLE_EVERY_S = 10.0  # while no console is open
FRESH_S = 1.0  # a younger sample is not repeated
WINDOW_S = 30.0  # of the figures in tables
POINT_WINDOW_S = 10.0  # of a point in a chart
CHART_S = 900.0
STEPS = ("features", "model", "decision", "whole")
_PAGE_TIMEOUT_S = 2.0
_SAMPLES_S = 2 * WINDOW_S

_BREAKER_STATE = "tollgate_store_breaker_state"
_FAILED = "nv_inference_request_failure"
_ANSWERED = "nv_inference_request_success"
# Metrics that figures use, with the labels that they distinguish.
_USED = {
    "tollgate_decisions_total": ("outcome", "source"),
    "tollgate_rows_total": ("kind",),
    "tollgate_degraded_rows_total": ("bit",),
    "tollgate_step_seconds_bucket": ("step", "le"),
    "tollgate_step_seconds_sum": ("step",),
    _BREAKER_STATE: (),
    _FAILED: ("reason",),
    _ANSWERED: (),
}
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}
_BREAKER = ("closed", "half-open", "open")
# A page of this machine is not requested from a proxy that the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Counter(NamedTuple):
    """A counter of all versions: metric, product, values of the labels in `_USED`."""

    name: str
    product: str
    labels: tuple[str, ...]


class Sample(msgspec.Struct, frozen=True):
    """
    Values at one time.

    Attributes:
        at_s: Time on the monotonic clock.
        time_s: Time since the epoch.
        totals: Value of each counter on the first page, and its growth since.
        breakers: The worst state of the store's circuit breaker, by product.
    """

    at_s: float
    time_s: float
    totals: dict[Counter, float]
    breakers: dict[str, int]


_NOTHING = Sample(0.0, 0.0, {}, {})
_Grown = Mapping[Counter, float]


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
        failed: Share of requests that failed, 0 to 1, without those that the caller
            gave up; None without requests. The server's own probes count.
        degraded: Share of decisions that were not made with features of the store, 0 to
            1; None without decisions.
        outcomes: Decisions by outcome, the mildest first.
        sources: Decisions by the source of their features.
        reasons: Rows by degraded bit, dry runs among them; bits that never occurred are
            left out.
        kinds: Rows by kind: decided, repeated, dry, bad.
        latencies: Per layer, in the order of a request.
        breaker: State of the store's circuit breaker; empty if unknown.
    """

    window_s: float
    rate: float | None
    failed: float | None
    degraded: float | None
    outcomes: list[Share]
    sources: list[Share]
    reasons: list[Share]
    kinds: list[Share]
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
        self._page: dict[str, tuple[Counter, float]] = {}  # by text on the last page
        self._samples: deque[Sample] = deque()
        self._points: dict[str, deque[Point]] = {name: deque() for name in words}
        self._sampling = threading.Lock()
        self._tried_s = float("-inf")
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
        Read the page, unless the last attempt is fresh; one caller at a time.

        Raises:
            ServerError: The page did not answer.
        """
        with self._sampling:
            if time.monotonic() - self._tried_s < FRESH_S:
                return
            try:
                page = _read_page(self._url)
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.problem = f"the metrics page does not answer: {error}"
                raise ServerError("tritonserver", self.problem) from error
            finally:
                self._tried_s = time.monotonic()
            self.problem = ""
            self._add_sample(page)
            for product, points in self._points.items():
                self._add_point(product, points)

    def figures(self, product: str) -> Figures:
        """Compute the figures of a product from the samples that there are."""
        new, old = self._window(WINDOW_S)
        grown = _growth(product, new, old)
        seconds = new.at_s - old.at_s if new and old else 0.0
        totals = _growth(product, new, _NOTHING)
        decided = _sum_by(grown, "tollgate_decisions_total")
        all_decided = sum(decided.values())
        sources = _sum_by(grown, "tollgate_decisions_total", label=1)
        kinds = _sum_by(grown, "tollgate_rows_total")
        all_rows = sum(kinds.values())
        words = self._words.get(product, ())
        outcomes = _shares(
            dict.fromkeys(words, 0.0) | _sum_by(totals, "tollgate_decisions_total"),
            decided,
            of=all_decided,
        )
        reasons = _shares(
            _sum_by(totals, "tollgate_degraded_rows_total"),
            _sum_by(grown, "tollgate_degraded_rows_total"),
            of=all_rows,
        )
        unusual = all_decided - sources.get("store", 0.0)
        return Figures(
            window_s=seconds,
            rate=all_decided / seconds if seconds else None,
            failed=_failed(grown),
            degraded=unusual / all_decided if all_decided else None,
            outcomes=[one for one in outcomes if one.name in words or one.total],
            sources=_shares(
                _sum_by(totals, "tollgate_decisions_total", label=1),
                sources,
                of=all_decided,
            ),
            reasons=sorted(
                (one for one in reasons if one.total),
                key=lambda one: (-one.rows, one.name),
            ),
            kinds=_shares(_sum_by(totals, "tollgate_rows_total"), kinds, of=all_rows),
            latencies=[_latency(step, grown) for step in STEPS],
            breaker=_breaker(product, new),
        )

    def points(self, product: str, *, after_s: float) -> list[Point]:
        """Return the points of a product's charts after a time, oldest first."""
        with self._sampling:
            return [one for one in self._points[product] if one.time_s > after_s]

    def _add_sample(self, page: str) -> None:
        found: dict[str, tuple[Counter, float]] = {}
        totals = dict(self._samples[-1].totals) if self._samples else {}
        breakers: dict[str, int] = {}
        for line in page.splitlines():
            head, _, text = line.rpartition(" ")
            counter, before = self._page.get(head) or (parse_counter(head), 0.0)
            if counter is None:
                continue
            value = float(text)
            found[head] = counter, value
            if counter.name == _BREAKER_STATE:
                worst = max(int(value), breakers.get(counter.product, 0))
                breakers[counter.product] = worst
            else:
                grown = value - before if value >= before else value  # it restarted
                totals[counter] = totals.get(counter, 0.0) + grown
        self._page = found
        now_s = time.monotonic()
        self._samples.append(Sample(now_s, time.time(), totals, breakers))
        while self._samples[0].at_s < now_s - _SAMPLES_S:
            self._samples.popleft()

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

    def _add_point(self, product: str, points: deque[Point]) -> None:
        new, old = self._window(POINT_WINDOW_S)
        if new is None or old is None:
            return
        grown = _growth(product, new, old)
        decided = _sum_by(grown, "tollgate_decisions_total")
        seconds = new.at_s - old.at_s
        whole = _latency("whole", grown)
        words = self._words[product]
        rates = [round(decided.get(word, 0.0) / seconds, 2) for word in words]
        points.append(Point(round(new.time_s, 1), rates, whole.p50_ms, whole.p99_ms))
        while points[0].time_s < new.time_s - CHART_S:
            points.popleft()


def parse_counter(head: str) -> Counter | None:
    """Parse name and labels of a line of the page; None if no figure uses it."""
    name, brace, text = head.partition("{")
    if not brace or name not in _USED:
        return None
    labels = parse_labels(text)
    # Triton's own counters name the model; that of a product is its ensemble.
    product = labels.get("product") or labels.get("model", "")
    return Counter(name, product, tuple(labels.get(one, "") for one in _USED[name]))


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


def _growth(product: str, new: Sample | None, old: Sample | None) -> _Grown:
    """Return how much each counter of a product grew between two samples."""
    if new is None or old is None:
        return {}
    return {
        one: total - old.totals.get(one, 0.0)
        for one, total in new.totals.items()
        if one.product == product
    }


def _latency(step: str, grown: _Grown) -> Latency:
    buckets = {
        float(one.labels[1]): rows
        for one, rows in grown.items()
        if one.name == "tollgate_step_seconds_bucket" and one.labels[0] == step
    }
    total_s = _sum_by(grown, "tollgate_step_seconds_sum").get(step, 0.0)
    bounds = sorted(buckets)
    counts = [buckets[bound] for bound in bounds]
    if not counts or counts[-1] <= 0:
        return Latency(step, None, None, None, None)
    p50, p95, p99 = (
        round(quantile(bounds, counts, at=one) * 1e3, 3) for one in (0.5, 0.95, 0.99)
    )
    return Latency(step, p50, p95, p99, round(total_s / counts[-1] * 1e3, 3))


def _failed(grown: _Grown) -> float | None:
    """Return the share of requests that failed, as the alerts define it."""
    failed = _sum_by(grown, _FAILED)
    failed.pop("CANCELED", None)
    failures = sum(failed.values())
    requests = failures + sum(
        number for one, number in grown.items() if one.name == _ANSWERED
    )
    return failures / requests if requests else None


def _breaker(product: str, sample: Sample | None) -> str:
    """Name the state of a product's circuit breaker; empty if it is unknown."""
    if sample is None or product not in sample.breakers:
        return ""
    return _BREAKER[sample.breakers[product]]


def _sum_by(grown: _Grown, name: str, *, label: int = 0) -> dict[str, float]:
    """Sum a metric by one of its labels, by the position in `_USED`."""
    found: dict[str, float] = {}
    for counter, rows in grown.items():
        if counter.name == name:
            key = counter.labels[label]
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
    with _OPENER.open(url, timeout=_PAGE_TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content.decode()
