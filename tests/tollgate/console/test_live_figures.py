"""Figures of the console compared with arithmetic by hand and with numpy."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tollgate.console import live_figures
from tollgate.console.live_figures import Counter, LiveFigures, parse_counter, quantile
from tollgate.errors import ServerError

WORDS = ("normal", "watch", "alarm")


class Page:
    """A metrics page whose content the test changes."""

    def __init__(self) -> None:
        self.text = ""
        self.requests = 0
        self.url = ""

    def write(self, counters: dict[str, float]) -> None:
        """Put counters on the page."""
        lines = [f"{head} {value}" for head, value in counters.items()]
        self.text = "\n".join(["# HELP a comment", *lines, 'nv_other{model="x"} 1'])


@pytest.fixture
def page() -> Iterator[Page]:
    """A page at a free port."""
    shown = Page()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.requests += 1
            body = shown.text.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        shown.url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        yield shown
        server.shutdown()
        thread.join()


def decisions(
    outcome: str, *, source: str = "store", product: str = "plant", version: int = 1
) -> str:
    """Name the counter of decisions."""
    labels = f'outcome="{outcome}",product="{product}",release="plant-{version}"'
    labels += f',source="{source}",version="100{version}"'
    return f"tollgate_decisions_total{{{labels}}}"


def bucket(bound: str, *, step: str = "whole") -> str:
    """Name the counter of a bucket of the latency."""
    labels = f'le="{bound}",product="plant",step="{step}"'
    return f"tollgate_step_seconds_bucket{{{labels}}}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the clock of the module: its only item is the time, s."""
    now = [1_000.0]
    monkeypatch.setattr(live_figures.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(live_figures.time, "time", lambda: now[0])
    return now


def test_rate_mix_and_sources_are_the_growth_between_samples(
    page: Page, clock: list[float]
) -> None:
    """Of this product alone; a counter that restarted counts whole."""
    figures = LiveFigures(page.url, words={"plant": WORDS})
    page.write(
        {
            decisions("normal"): 100,
            decisions("alarm"): 7,
            decisions("watch", source="last_known"): 50,
            decisions("normal", product="fraud"): 9,
        }
    )
    figures.sample()
    assert figures.figures("plant").rate is None
    clock[0] += 20
    page.write(
        {
            decisions("normal"): 160,
            decisions("alarm"): 17,
            decisions("watch", source="last_known"): 10,
            decisions("normal", product="fraud"): 900,
        }
    )
    figures.sample()
    found = figures.figures("plant")
    assert found.window_s == 20
    assert found.rate == (60 + 10 + 10) / 20
    assert [(one.name, one.rows, one.share, one.total) for one in found.outcomes] == [
        ("normal", 60, 0.75, 160),
        ("watch", 10, 0.125, 60),
        ("alarm", 10, 0.125, 17),
    ]
    assert found.degraded == 0.125
    (point,) = figures.points("plant", after_s=0)
    assert (point.time_s, point.rates) == (1_020.0, [3.0, 0.5, 0.5])
    assert figures.points("plant", after_s=1_020.0) == []


def test_totals_go_on_when_a_release_changes_and_a_step_restarts(
    page: Page, clock: list[float]
) -> None:
    """The old version's counters disappear; a restarted one may pass its old value."""
    figures = LiveFigures(page.url, words={"plant": WORDS})
    for counters in (
        {decisions("normal"): 100, decisions("alarm"): 4},
        {decisions("normal"): 130, decisions("normal", version=2): 5},
        {decisions("normal", version=2): 40, decisions("alarm", version=2): 2},
        {decisions("normal", version=2): 1, decisions("alarm", version=2): 0},
        {decisions("normal", version=2): 60, decisions("alarm", version=2): 1},
    ):
        page.write(counters)
        clock[0] += 5
        figures.sample()
    found = figures.figures("plant")
    normal, alarm = 30 + 5 + 35 + 1 + 59, 2 + 1
    assert [(one.name, one.rows, one.total) for one in found.outcomes] == [
        ("normal", normal, 100 + normal),
        ("watch", 0, 0),
        ("alarm", alarm, 4 + alarm),
    ]
    assert found.rate == (normal + alarm) / 20
    figures.set_words("plant", ("ok", "look", "stop"))
    names = [one.name for one in figures.figures("plant").outcomes]
    assert names == ["ok", "look", "stop", "normal", "alarm"]


def test_failed_requests_are_a_share_of_all(page: Page, clock: list[float]) -> None:
    """Of the product's ensemble; those that the caller gave up do not count."""

    def counters(reason: str, *, model: str = "plant") -> str:
        labels = f'model="{model}",reason="{reason}",version="1"'
        return f"nv_inference_request_failure{{{labels}}}"

    answered = 'nv_inference_request_success{model="plant",version="1"}'
    figures = LiveFigures(page.url, words={"plant": WORDS})
    page.write({counters("BACKEND"): 2, counters("CANCELED"): 5, answered: 10})
    figures.sample()
    assert figures.figures("plant").failed is None
    clock[0] += 5
    page.write(
        {
            counters("BACKEND"): 4,
            counters("REJECTED"): 1,
            counters("CANCELED"): 500,
            counters("BACKEND", model="plant_model"): 70,
            answered: 107,
        }
    )
    figures.sample()
    assert figures.figures("plant").failed == 3 / (3 + 97)


def test_the_page_is_not_requested_from_a_proxy(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the environment names for other machines."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    page.write({decisions("normal"): 1})
    LiveFigures(page.url, words={"plant": WORDS}).sample()
    assert page.requests == 1


def test_percentiles_are_those_of_the_rows_within_a_bucket(
    page: Page, clock: list[float]
) -> None:
    """Rows spread evenly over buckets have the percentiles that numpy computes."""
    rows_s = (np.arange(1_000) + 0.5) / 1_000 * 0.01
    bounds_s = (0.002, 0.004, 0.006, 0.008, 0.01)
    figures = LiveFigures(page.url, words={"plant": WORDS})
    page.write({bucket(str(one)): 0 for one in (*bounds_s, "+Inf")})
    figures.sample()
    clock[0] += 10
    counts = {str(one): float((rows_s <= one).sum()) for one in bounds_s}
    total = 'tollgate_step_seconds_sum{product="plant",step="whole"}'
    page.write(
        {bucket(name): rows for name, rows in (counts | {"+Inf": 1_000}).items()}
        | {total: float(rows_s.sum())}
    )
    figures.sample()
    whole = figures.figures("plant").latencies[-1]
    wanted = np.quantile(rows_s, [0.5, 0.95, 0.99]) * 1e3
    np.testing.assert_allclose(
        [whole.p50_ms, whole.p95_ms, whole.p99_ms], wanted, atol=0.02
    )
    assert whole.mean_ms == pytest.approx(rows_s.mean() * 1e3, abs=1e-3)
    assert figures.figures("plant").latencies[0].p99_ms is None


def test_a_quantile_above_the_largest_bound_is_that_bound() -> None:
    """As Prometheus has it; and empty buckets are passed over."""
    inf = float("inf")
    assert quantile([1.0, 2.0, inf], [0.0, 10.0, 20.0], at=0.99) == 2.0
    assert quantile([1.0, 2.0, inf], [0.0, 10.0, 10.0], at=0.5) == 1.5


def test_a_sample_is_shared_for_a_second_and_chart_and_samples_are_bounded(
    page: Page, clock: list[float]
) -> None:
    """However many polls there are."""
    page.write({decisions("normal"): 1})
    figures = LiveFigures(page.url, words={"plant": WORDS})
    for _ in range(10):
        figures.sample()
    assert page.requests == 1
    for _ in range(600):
        clock[0] += 2
        figures.sample()
    assert len(figures.points("plant", after_s=0)) == 451
    assert len(figures._samples) <= 31


def test_a_page_that_does_not_answer_is_a_problem_until_it_does(
    page: Page, clock: list[float]
) -> None:
    """The last sample stays, with its time."""
    page.write({decisions("normal"): 1})
    figures = LiveFigures(page.url, words={"plant": WORDS})
    figures.sample()
    good, figures._url = page.url, "http://127.0.0.1:1/metrics"
    clock[0] += 5
    with pytest.raises(ServerError, match="does not answer"):
        figures.sample()
    assert "does not answer" in figures.problem
    assert figures.sampled_s == 1_000.0
    figures._url = good
    figures.sample()  # the next attempt is a second later, however many browsers wait
    assert page.requests == 1
    clock[0] += 1
    figures.sample()
    assert (figures.problem, figures.sampled_s) == ("", 1_006.0)


def test_outcomes_of_another_release_start_new_charts(
    page: Page, clock: list[float]
) -> None:
    """The words are the product's, and a release may change them."""
    page.write({decisions("normal"): 1})
    figures = LiveFigures(page.url, words={"plant": WORDS})
    for _ in range(3):
        clock[0] += 2
        figures.sample()
    figures.set_words("plant", WORDS)
    assert len(figures.points("plant", after_s=0)) == 2
    figures.set_words("plant", ("ok", "look", "stop"))
    assert figures.points("plant", after_s=0) == []


def test_labels_are_read_with_their_escapes() -> None:
    """Quotes, backslashes and line ends in a label's value."""
    found = parse_counter(
        r'tollgate_rows_total{product="a\"b\\n\nc",kind="decided, {odd}"}'
    )
    assert found == Counter("tollgate_rows_total", 'a"b\\n\nc', ("decided, {odd}",))
    assert parse_counter('nv_inference_count{model="x"}') is None
