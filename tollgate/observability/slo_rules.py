"""
Write burn-rate rules from a product's slo.yaml.

Windows and factors are those of the Site Reliability Workbook, chapter 5, for a budget
of 30 days: 14.4 times the budget's rate for an hour takes 2 % of it, 6 times for six
hours 5 %, 3 times for a day 10 %, 1 time for three days 10 %. The short window of each
pair ends the alert soon after the fault ends.
"""

from __future__ import annotations

from tollgate.observability.rule import Alert, Record, Severity
from tollgate.repository.slo import Slo
from tollgate.steps.decision_metrics import STEP_BUCKETS_S

Pairs = tuple[tuple[float, str, str], ...]

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
FAST = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
SLOW = ((3.0, "1d", "2h"), (1.0, "3d", "6h"))

ERRORS_PERCENT = 0.1  # more failed requests than this raise an alert, for any budget
P99_TIMES = 2.0  # of the aim (SLO)
QUEUE_SHARE = 0.5  # of the aim: a longer mean wait in one queue raises an alert

FAILED = "tollgate:failed_requests:ratio_rate"
LATE = "tollgate:late_decisions:ratio_rate"


def bucket_s(objective_ms: float) -> float:
    """
    Choose the histogram bucket that counts as in time: the objective, or next below.
    """
    fits = [one for one in STEP_BUCKETS_S if one <= objective_ms / 1e3 * (1 + 1e-9)]
    return max(fits, default=STEP_BUCKETS_S[0])


def records(product: str, slo: Slo) -> list[Record]:
    """Write the recording rules that burn-rate alerts read, for each window."""
    le = f"{bucket_s(slo.latency_objective_ms):g}"
    made: list[Record] = []
    for window in WINDOWS:
        failed = f'nv_inference_request_failure{{model="{product}",reason!="CANCELED"}}'
        answered = f'nv_inference_request_success{{model="{product}"}}'
        made.append(
            Record(
                f"{FAILED}{window}",
                f"sum(rate({failed}[{window}])) / (sum(rate({failed}[{window}])) + "
                f"sum(rate({answered}[{window}])))",
                {"product": product},
            )
        )
        of = f'product="{product}",step="whole"'
        made.append(
            Record(
                f"{LATE}{window}",
                f'1 - sum(rate(tollgate_step_seconds_bucket{{{of},le="{le}"}}'
                f"[{window}])) / sum(rate(tollgate_step_seconds_count{{{of}}}"
                f"[{window}]))",
                {"product": product},
            )
        )
    return made


def _speeds(text: str) -> list[tuple[str, Pairs, Severity, str, str]]:
    """List the burn rates to alert on: name, windows, severity, wait and summary."""
    return [
        ("Fast", FAST, "page", "2m", f"{text}: the budget goes within days"),
        ("Slow", SLOW, "ticket", "15m", f"{text}: the budget will not last"),
    ]


def _burns(product: str, slo: Slo) -> list[Alert]:
    """Write the burn-rate alerts of a product."""
    budget = 1 - slo.objective_percent / 100
    of = f'product="{product}"'
    return [
        Alert(
            f"Tollgate{what}Burn{speed}",
            " or ".join(
                f"({series}{long}{{{of}}} > {factor * budget:.6g} and "
                f"{series}{short}{{{of}}} > {factor * budget:.6g})"
                for factor, long, short in pairs
            ),
            summary,
            severity=severity,
            product=product,
            wait=wait,
        )
        for what, series, text in (
            ("Availability", FAILED, "Requests fail"),
            ("Latency", LATE, "Decisions are late"),
        )
        for speed, pairs, severity, wait, summary in _speeds(text)
    ]


def alerts(product: str, slo: Slo, *, steps: tuple[str, ...]) -> list[Alert]:
    """
    Write the alerts of one product's slo.yaml.

    Args:
        product: The ensemble.
        slo: Its slo.yaml.
        steps: Its models.
    """
    of = f'product="{product}"'
    limit_s = P99_TIMES * slo.latency_target_ms / 1e3
    wait_s = QUEUE_SHARE * slo.latency_target_ms / 1e3
    models = "|".join(steps)
    return [
        *_burns(product, slo),
        Alert(
            "TollgateLatencyHigh",
            "histogram_quantile(0.99, sum by (product, le) (rate("
            f'tollgate_step_seconds_bucket{{{of},step="whole"}}[5m]))) > {limit_s:g}',
            f"The 99th percentile is over {P99_TIMES:g} times the aim of "
            f"{slo.latency_target_ms:g} ms",
            severity="page",
            product=product,
            wait="5m",
        ),
        Alert(
            "TollgateErrorsHigh",
            f"{FAILED}5m{{{of}}} > {ERRORS_PERCENT / 100:g}",
            f"More than {ERRORS_PERCENT:g} % of the requests fail",
            severity="page",
            product=product,
            wait="5m",
        ),
        Alert(
            "TollgateQueueLong",
            "sum by (model) (rate(nv_inference_queue_duration_us"
            f'{{model=~"{models}"}}[5m])) / 1e6 / (sum by (model) (rate('
            f'nv_inference_request_success{{model=~"{models}"}}[5m])) > 0) > '
            f"{wait_s:g}",
            f"Requests wait over {wait_s * 1e3:g} ms in the queue of a step, on "
            "average",
            severity="ticket",
            product=product,
            wait="5m",
        ),
        Alert(
            "TollgateDown",
            f"absent(tollgate_ready{{{of}}})",
            "No supervisor reports the product: its targets are not scraped, or gone",
            severity="page",
            product=product,
            wait="2m",
        ),
    ]
