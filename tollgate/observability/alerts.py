"""Write Prometheus rule files from the slo.yaml of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.observability.metric_selection import DEFAULT, matchers, restrict
from tollgate.repository.product_models import read_product
from tollgate.repository.slo import SLO_FILE, Slo, read_slo
from tollgate.steps.decision_metrics import STEP_BUCKETS_S
from tollgate.templating import render

# Describe Prometheus rules, with the fields that we use.

Severity = Literal["page", "ticket"]


class Record(msgspec.Struct, frozen=True):
    """A series that Prometheus computes and stores."""

    name: str
    expr: str
    labels: Mapping[str, str]


class Alert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    An alert for a person.

    Attributes:
        name: Its name; its runbook is docs/runbooks/NAME.md.
        expr: PromQL condition of the alert.
        summary: One sentence.
        severity: page: now; ticket: within the day.
        product: Product that it is about; empty if the series have the label.
        wait: Time that the condition must hold.
    """

    name: str
    expr: str
    summary: str
    severity: Severity
    product: str = ""
    wait: str = "5m"


ALERTS = msgspec.yaml.decode(
    (Path(__file__).parent / "alerts.yaml").read_bytes(), type=tuple[Alert, ...]
)  # common to all products

RUNBOOKS = "docs/runbooks"
_TEMPLATE = "tollgate/observability/templates/rules.yaml.j2"
_HEAD = "Written by `tollgate alerts`; change {source} and write it again."
_DEFAULT_HEAD = (
    "Written by `tollgate alerts` from defaults: {product} has no slo.yaml. "
    "Add {source} to set others."
)
_COMMON_SOURCE = "tollgate/observability/alerts.yaml"


def rule_files(
    repository: Path,
    *,
    products: Sequence[str],
    runbooks: str = RUNBOOKS,
    select: Mapping[str, str] = DEFAULT,
) -> dict[str, str]:
    """
    Write the rules of products: text by name of the file.

    Args:
        products: Ensembles in it.
        runbooks: Address in front of /NAME.md of an alert's runbook.
        select: Labels of the installation, if Prometheus also scrapes others; each rule
            selects only series with these labels, and the series and alerts that it
            produces have them.

    Raises:
        RepositoryError: A product cannot be read, or its slo.yaml has a wrong value.
    """
    shared = {
        "restrict": partial(restrict, of=matchers(select)),
        "runbooks": runbooks,
        "select": select,
    }
    head = _HEAD.format(source=_COMMON_SOURCE)
    rules = {"head": head, "name": "tollgate", "records": (), "alerts": ALERTS}
    files = {"tollgate.yaml": render(_TEMPLATE, shared | rules)}
    for product in products:
        slo = read_slo(repository, product=product)
        steps = tuple(read_product(repository, product).steps)
        source = f"{product}/{SLO_FILE}"
        template = _HEAD if (repository / source).exists() else _DEFAULT_HEAD
        rules = {
            "head": template.format(product=product, source=source),
            "name": f"tollgate-{product}",
            "records": records(product, slo),
            "alerts": alerts(product, slo, steps=steps),
        }
        files[f"slo-{product}.yaml"] = render(_TEMPLATE, shared | rules)
    return files


# Write burn-rate rules from a product's slo.yaml.
#
# Windows and factors are those of the Site Reliability Workbook, chapter 5, for a
# budget of 30 days: 14.4 times the budget's rate for an hour takes 2 % of it, 6 times
# for six hours 5 %, 3 times for a day 10 %, 1 time for three days 10 %. The short
# window of each pair ends the alert soon after the fault ends.

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
    """Choose the bucket that counts as in time: the objective, or next below."""
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
    """Write the alerts of one product's slo.yaml."""
    of = f'product="{product}"'
    limit_s = P99_TIMES * slo.latency_target_ms / 1e3
    wait_s = QUEUE_SHARE * slo.latency_target_ms / 1e3
    models = "|".join((product, *steps))  # fused, the product has the only queue
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
