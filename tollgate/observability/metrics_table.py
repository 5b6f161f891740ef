"""
Join the rows of all pages into one table of metrics, the source of docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

# Describe one metric: a row of the table of metrics.

Kind = Literal["counter", "gauge", "histogram"]


class MetricRow(msgspec.Struct, frozen=True):
    """
    One metric.

    Attributes:
        name: Name in queries; a histogram without _bucket, _sum and _count.
        kind: Prometheus type: counter, gauge, histogram.
        unit: Unit of its value.
        labels: Names of its labels, without `le`.
        text: Its meaning.
        since: First version of Tollgate that has it.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    text: str
    since: str = "0.1.0"

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of its series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


# List the metrics that the chart's autoscaler derives from Triton's, not on any page.


def _autoscaler_row(name: str, unit: str, text: str) -> MetricRow:
    return MetricRow(f"tollgate_{name}", "gauge", unit, ("namespace", "pod"), text)


AUTOSCALER = (
    _autoscaler_row(
        "queue_seconds",
        "s",
        "mean time that a request of the last minute waited in all queues on its way: "
        "`nv_inference_queue_duration_us` of every model by "
        "`nv_inference_request_success` of the ensembles",
    ),
    _autoscaler_row(
        "pending_requests",
        "requests",
        "waiting in a server, all models together, mean of the last minute: "
        "`nv_inference_pending_request_count`",
    ),
    _autoscaler_row(
        "under_way_requests",
        "requests",
        "in a server, waiting or being decided, mean of the last minute: "
        "`nv_inference_request_duration_us` of the ensembles, by second",
    ),
)


# List metrics of the processes that run next to Triton.


def _other_row(name: str, kind: Kind, unit: str, labels: str, text: str) -> MetricRow:
    return MetricRow(f"tollgate_{name}", kind, unit, tuple(labels.split()), text)


def _own(name: str, kind: Kind, unit: str, text: str, labels: str = "") -> MetricRow:
    return MetricRow(name, kind, unit, tuple(labels.split()), text)


# Metrics that prometheus_client exports of its own process.
PROCESS = (
    _own("process_cpu_seconds_total", "counter", "s", "processor time"),
    _own("process_resident_memory_bytes", "gauge", "bytes", "resident memory"),
    _own("process_virtual_memory_bytes", "gauge", "bytes", "address space"),
    _own("process_start_time_seconds", "gauge", "s since 1970", "when it started"),
    _own("process_open_fds", "gauge", "files", "open files"),
    _own("process_max_fds", "gauge", "files", "files that may be open"),
    _own(
        "python_gc_collections_total",
        "counter",
        "collections",
        "garbage collections",
        "generation",
    ),
    _own(
        "python_gc_objects_collected_total",
        "counter",
        "objects",
        "collected",
        "generation",
    ),
    _own(
        "python_gc_objects_uncollectable_total",
        "counter",
        "objects",
        "that cannot be",
        "generation",
    ),
    _other_row(
        "background_errors_total",
        "counter",
        "errors",
        "loop",
        "errors that a background loop of the process survived",
    ),
    _other_row(
        "background_failures",
        "gauge",
        "failures",
        "loop",
        "failures of it in a row; 0 when its last step worked",
    ),
)

_SERVES = "process product instance"

SUPERVISOR = (
    _other_row("ready", "gauge", "", "product release", "1 while the product decides"),
    _other_row(
        "release_info",
        "gauge",
        "",
        "product release role model version",
        "1 for each version of the release that answers (`champion`) and of one on "
        "trial (`canary`, `shadow`)",
    ),
    _other_row(
        "release_percent",
        "gauge",
        "%",
        "product release role",
        "share of the customers that it answers",
    ),
    _other_row(
        "score_trained_log_odds",
        "gauge",
        "log-odds",
        "product release",
        "mean in training, 13.8155 added, from the quantiles in artifact.json",
    ),
    _other_row(
        "score_trained_deviation",
        "gauge",
        "log-odds",
        "product release",
        "its standard deviation",
    ),
    _other_row(
        "capacity_decisions_per_second",
        "gauge",
        "rows/s",
        "",
        "`capacity_per_s` of the settings: what this server was measured to hold; 0 "
        "when nobody said",
    ),
    _other_row("probe_seconds", "histogram", "s", "product", "the probe's answers"),
    _other_row(
        "faults_total",
        "counter",
        "faults",
        "product part mended",
        "faults; `product` is empty for a part that all products share",
    ),
    _other_row(
        "mend_seconds", "histogram", "s", "product part", "from noticing to mended"
    ),
    _other_row(
        "process_cpu_seconds_total",
        "counter",
        "s",
        _SERVES,
        "processor time of tritonserver, redis-server, the supervisor and each step; "
        "`instance` is that of the model",
    ),
    _other_row("process_resident_bytes", "gauge", "bytes", _SERVES, "resident memory"),
    _other_row("process_threads", "gauge", "threads", _SERVES, "threads"),
    _other_row(
        "step_resident_bytes",
        "gauge",
        "bytes",
        "product model version instance",
        "of each Python step",
    ),
    _other_row(
        "step_age_seconds",
        "gauge",
        "s",
        "product model version instance",
        "since its start",
    ),
    _other_row(
        "steps_recycled",
        "gauge",
        "steps",
        "",
        "working steps that were restarted because of age or size",
    ),
    _other_row(
        "supervisor_start_time_seconds",
        "gauge",
        "s since 1970",
        "",
        "when the supervisor started",
    ),
    *PROCESS,
)

JOURNAL = (
    _other_row(
        "journal_sealed_lag_seconds",
        "histogram",
        "s",
        "product",
        "age of each chunk's oldest decision when it was sealed",
    ),
    _other_row(
        "journal_sealed_records_total", "counter", "decisions", "product", "sealed"
    ),
    _other_row("journal_segments_total", "counter", "segments", "product", "sealed"),
    _other_row(
        "journal_doubled_records_total",
        "counter",
        "decisions",
        "product",
        "duplicates, which were dropped",
    ),
    _other_row(
        "journal_lost_records",
        "gauge",
        "decisions",
        "product",
        "with a number that never came, in the whole chain",
    ),
    _other_row(
        "journal_last_sealed_timestamp_seconds",
        "gauge",
        "s since 1970",
        "product",
        "when decisions were sealed last",
    ),
    _other_row(
        "journal_dead_letters_total",
        "counter",
        "entries",
        "product",
        "entries that are no chunk",
    ),
    _other_row(
        "journal_retries_total",
        "counter",
        "times",
        "product",
        "Redis or the disk were tried again",
    ),
    *PROCESS,
)

STREAM = (
    _other_row(
        "stream_events_total",
        "counter",
        "events",
        "product kind outcome",
        "by kind (`purchase`, `label`, `unknown`) and outcome (`applied`, `duplicate`, "
        "`too_late`, `foreign`, `poison`)",
    ),
    _other_row("stream_backlog", "gauge", "events", "product", "that wait here"),
    _other_row("stream_partitions", "gauge", "partitions", "product", "it reads"),
    _other_row(
        "stream_lag_seconds",
        "gauge",
        "s",
        "product feed",
        "age of the newest event applied; 0 when nothing waits",
    ),
    _other_row(
        "stream_event_lag_seconds",
        "histogram",
        "s",
        "product feed",
        "age of each batch's oldest event",
    ),
    _other_row(
        "stream_feed_watermark_seconds",
        "gauge",
        "s since 1970",
        "product feed",
        "event time that the whole feed has come to",
    ),
    _other_row(
        "stream_feed_age_seconds",
        "histogram",
        "s",
        "product feed",
        "its age, once a second",
    ),
    _other_row("stream_apply_seconds", "histogram", "s", "product", "to apply a batch"),
    _other_row(
        "stream_retries_total",
        "counter",
        "times",
        "product",
        "the store or the feed did not answer",
    ),
    *PROCESS,
)

_TRIAL = "product challenger mode"
_ARM = f"{_TRIAL} arm"

CHALLENGER = (
    _other_row(
        "trial_rows", "gauge", "rows", _ARM, "counted: `champion`, `challenger`"
    ),
    _other_row("trial_decisions", "gauge", "rows", f"{_ARM} outcome", "by outcome"),
    _other_row("trial_score_mean", "gauge", "0 to 1", _ARM, "mean score"),
    _other_row("trial_errors", "gauge", "rows", _ARM, "rows without a usable score"),
    _other_row("trial_pairs", "gauge", "rows", _TRIAL, "decided by both"),
    _other_row("trial_flips", "gauge", "rows", _TRIAL, "of them decided differently"),
    _other_row("trial_taken_total", "counter", "rows", "product", "decisions read"),
    _other_row("trial_unreadable_total", "counter", "entries", "product", "no chunk"),
    _other_row(
        "trial_retries_total", "counter", "times", "product", "something was away"
    ),
    _other_row("trial_ended_total", "counter", "trials", "product", "ended by a gate"),
    *PROCESS,
)


# List metrics of the gateway: decisions as callers see them, with refusals.


def _gateway_row(name: str, kind: Kind, unit: str, labels: str, text: str) -> MetricRow:
    return MetricRow(
        f"tollgate_gateway_{name}", kind, unit, tuple(labels.split()), text
    )


GATEWAY = (
    _gateway_row(
        "requests_total",
        "counter",
        "requests",
        "asked outcome caller status",
        "by what asked (`decision`, `bulk`, `health`, `metadata`, `other`), what "
        "became of it (`passed` on and answered by a server, `gave_up`: the caller; or "
        "refused as `unauthenticated`, `denied`, `malformed`, `harmful`, "
        "`suspended`, `size`, `rate`, `overloaded`, `no_server`), "
        "caller (empty for a stranger; after a hundred, `(others)`) and gRPC status",
    ),
    _gateway_row(
        "request_seconds",
        "histogram",
        "s",
        "asked outcome",
        "from a request's first byte to the last of its answer, in whole milliseconds; "
        "the buckets of `tollgate_step_seconds`; the rate of its sum is how many are "
        "under way at once",
    ),
    _gateway_row(
        "in_flight_limit",
        "gauge",
        "requests",
        "of",
        "decisions that may be in flight at once: `all`, those of one `caller`, `bulk`",
    ),
    _gateway_row(
        "caller_rate_limit",
        "gauge",
        "requests/s",
        "",
        "requests a second that one caller may make",
    ),
    _gateway_row(
        "unreadable_lines_total",
        "counter",
        "lines",
        "",
        "of nginx's log that cannot be read; 0 unless its disk was full",
    ),
    *PROCESS,
)


# List metrics of `tollgate monitor`.


def _monitor_row(name: str, unit: str, labels: str, text: str) -> MetricRow:
    return MetricRow(
        f"tollgate_monitor_{name}", "gauge", unit, tuple(labels.split()), text
    )


_OF = "product release"
_COLUMN = f"{_OF} window kind name"
_WINDOW = f"{_OF} window"
_LEVEL = f"{_OF} level span"

MONITOR = (
    _monitor_row(
        "drift", "", _COLUMN, "1 when the newest judged window drifted in a column"
    ),
    _monitor_row("psi", "", _COLUMN, "population stability index against training"),
    _monitor_row(
        "ks", "0 to 1", _COLUMN, "largest distance of the distribution functions"
    ),
    _monitor_row("shift_sigmas", "sigmas", _COLUMN, "by how much it moved, signed"),
    _monitor_row("missing_share", "0 to 1", _COLUMN, "rows without a value"),
    _monitor_row("judged_windows", "windows", _WINDOW, "judged, in all that was read"),
    _monitor_row("drifted_windows", "windows", _WINDOW, "those of them that drifted"),
    _monitor_row(
        "troubled_windows",
        "windows",
        _WINDOW,
        "not judged, because over a tenth of the rows was degraded",
    ),
    _monitor_row(
        "decisions",
        "decisions",
        f"{_OF} fate",
        "read: `compared`, `degraded`, `withheld`, `unknown`",
    ),
    _monitor_row("decision_share", "0 to 1", f"{_OF} decision", "of the newest window"),
    _monitor_row("confidence", "0 to 1", _OF, "mean of the largest probability there"),
    _monitor_row(
        "unsure_share", "0 to 1", _OF, "rows without a probability above 0.8 there"
    ),
    _monitor_row(
        "degraded_share", "0 to 1", f"{_OF} bit", "rows with a degraded bit there"
    ),
    _monitor_row("labelled_decisions", "decisions", _OF, "whose label came in time"),
    _monitor_row("frauds", "decisions", _OF, "those of them that were fraud"),
    _monitor_row(
        "precision",
        "0 to 1",
        _LEVEL,
        "share of the flagged that were fraud; `level` is `review` or `decline`, "
        "`span` is `all` or `day`, the newest that is old enough",
    ),
    _monitor_row("recall", "0 to 1", _LEVEL, "share of the frauds that were flagged"),
    _monitor_row(
        "labels_in_time_share",
        "0 to 1",
        "product",
        "labels that came within the label lag",
    ),
    _monitor_row(
        "last_decision_timestamp_seconds",
        "s since 1970",
        "product",
        "newest decision that was read",
    ),
    _monitor_row(
        "last_look_timestamp_seconds",
        "s since 1970",
        "product",
        "when the journal was read last",
    ),
    _monitor_row("look_seconds", "s", "product", "how long that took"),
    _monitor_row(
        "unread_segments", "segments", "product", "sealed, and cannot be read"
    ),
    *PROCESS,
)


# List metrics on Triton's page: Triton's own, and those of the Python steps.

_MODEL = ("model", "version")
_STEP = ("product", "model", "version")


def _triton(name: str, unit: str, text: str, *more: str) -> MetricRow:
    kind: Kind = "gauge" if name == "pending_request_count" else "counter"
    return MetricRow(f"nv_inference_{name}", kind, unit, (*_MODEL, *more), text)


def _step(name: str, kind: Kind, unit: str, labels: str, text: str) -> MetricRow:
    return MetricRow(f"tollgate_{name}", kind, unit, (*_STEP, *labels.split()), text)


def _machine(name: str, unit: str, text: str) -> MetricRow:
    return MetricRow(f"nv_{name}", "gauge", unit, (), text)


TRITON = (
    _triton("request_success", "requests", "answered; the model `fraud` is the whole"),
    _triton(
        "request_failure",
        "requests",
        "failed: `REJECTED` by a full queue, `CANCELED` by the caller, `BACKEND`: a "
        "step said so (a bad request, a refusal, a dead step), `OTHER`",
        "reason",
    ),
    _triton("count", "rows", "rows answered"),
    _triton("exec_count", "batches", "batches; rows / batches is the mean batch size"),
    _triton(
        "request_duration_us",
        "µs",
        "time of all requests; its rate / 10⁶ is how many are in flight",
    ),
    _triton("queue_duration_us", "µs", "of it in the queue"),
    _triton("compute_input_duration_us", "µs", "of it copying inputs"),
    _triton("compute_infer_duration_us", "µs", "of it in the backend"),
    _triton("compute_output_duration_us", "µs", "of it copying outputs"),
    _triton("pending_request_count", "requests", "waiting in the queue now"),
    _machine("pinned_memory_pool_total_bytes", "bytes", "pinned memory there is"),
    _machine("pinned_memory_pool_used_bytes", "bytes", "pinned memory in use"),
    _machine("cpu_utilization", "0 to 1", "processors in use, of the whole machine"),
    _machine("cpu_memory_total_bytes", "bytes", "memory of the machine"),
    _machine("cpu_memory_used_bytes", "bytes", "memory in use on the machine"),
)

STEPS = (
    _step(
        "rows_total",
        "counter",
        "rows",
        "kind",
        "`decided`, `repeated` (the answer given before), `dry`, `bad` (answered with "
        "an error)",
    ),
    _step(
        "decisions_total",
        "counter",
        "rows",
        "release outcome source",
        "rows decided: `approve`, `review`, `decline`; from the `store`, from "
        "`last_known` values, on `defaults`, or by the policy's `fallback` because the "
        "model gave nothing usable",
    ),
    _step(
        "step_seconds",
        "histogram",
        "s",
        "release step",
        "time of each row decided, 25 buckets from 0.5 ms to 1 s: `features` at work, "
        "`model` from there to the decision step (queues and their delay among it), "
        "`decision` at work, `whole` from the first step's start to the last one's end",
    ),
    _step(
        "feature_seconds",
        "histogram",
        "s",
        "source",
        "the same of `features`, by source",
    ),
    _step(
        "step_busy_seconds_total",
        "counter",
        "s",
        "step",
        "time that `features` and `decision` worked; its rate is the share of one "
        "instance in use",
    ),
    _step(
        "batch_rows",
        "histogram",
        "rows",
        "",
        "rows of each batch that the model made",
    ),
    _step(
        "score",
        "histogram",
        "0 to 1",
        "release",
        "scores of rows decided",
    ),
    _step(
        "score_log_odds_sum",
        "counter",
        "log-odds",
        "release",
        "sum of ln(score / (1 - score)) + 13.8155; with `tollgate_score_count` the "
        "mean, to compare with training",
    ),
    _step(
        "gc_collections_total",
        "counter",
        "collections",
        "generation",
        "garbage collections of the feature and the decision step",
    ),
    _step(
        "store_call_seconds",
        "histogram",
        "s",
        "",
        "a batch's call of the store; buckets from 0.25 to 50 ms",
    ),
    _step(
        "store_calls_total",
        "counter",
        "batches",
        "outcome",
        "`answered`, `partial` (some nodes of a cluster did not), `late`, `unknown` "
        "(the connection broke), `failed`, `not_made` (the breaker is open)",
    ),
    _step(
        "store_breaker_state",
        "gauge",
        "",
        "",
        "0 closed, 1 half-open, 2 open",
    ),
    _step("store_breaker_opened_total", "counter", "times", "", "how often it opened"),
    _step(
        "degraded_rows_total",
        "counter",
        "rows",
        "bit",
        "rows by [degraded bit](contract.md), dry runs among them",
    ),
    _step(
        "last_known_values_total",
        "counter",
        "look-ups",
        "found",
        "last known values looked up while the store was away: `yes`, `no`",
    ),
    _step("last_known_bytes", "gauge", "bytes", "", "memory they take"),
    _step(
        "table_values_total",
        "counter",
        "values",
        "found",
        "values of tables: `memory`, `store`, `absent`, `corrupt`, `unread`; memory of "
        "all is the hit rate",
    ),
    _step("table_bytes", "gauge", "bytes", "", "memory they take"),
    _step(
        "spool_rows_total",
        "counter",
        "rows",
        "kept",
        "rows that the store missed: spooled for later `yes`, or `no`",
    ),
    _step(
        "earlier_decisions_total",
        "counter",
        "rows",
        "found",
        "rows decided before: `same`, `conflict` (other content), `corrupt`",
    ),
    _step(
        "second_lookup_rows_total",
        "counter",
        "rows",
        "found",
        "rows looked up again because their request can wait: answered then or not",
    ),
    _step(
        "refused_requests_total",
        "counter",
        "requests",
        "reason",
        "requests that a step refused because they may be forged: `direct` call of a "
        "step, context `unsigned`, `replayed` or `expired` "
        "([threat model](threat-model.md))",
    ),
    _step("shared_rows_total", "counter", "rows", "", "dry rows without the store"),
    _step(
        "feed_watermark_seconds",
        "gauge",
        "s since 1970",
        "feed",
        "event time that `purchases` or `labels` have come to",
    ),
    _step("feed_age_seconds", "histogram", "s", "feed", "its age, once a second"),
    _step(
        "background_errors_total",
        "counter",
        "errors",
        "loop",
        "errors that a background loop of the step survived",
    ),
    _step(
        "background_failures",
        "gauge",
        "failures",
        "loop",
        "failures of it in a row; 0 when its last step worked",
    ),
    _step(
        "journal_records_total",
        "counter",
        "decisions",
        "fate",
        "`appended` (in all), `written`, `spooled` (on disk first), `dropped`",
    ),
    _step("journal_drained_chunks_total", "counter", "chunks", "", "out of the spool"),
    _step(
        "journal_unreadable_chunks_total",
        "counter",
        "chunks",
        "",
        "of these, chunks that this version cannot read",
    ),
    _step("journal_buffered_records", "gauge", "decisions", "", "in memory"),
    _step("journal_stream_full", "gauge", "", "", "1 while the stream is full"),
    _step(
        "journal_lag_seconds",
        "histogram",
        "s",
        "",
        "from decision to durable record, the longest of each 0.1 s",
    ),
)


Page = Literal[
    "triton", "supervisor", "journal", "stream", "challenger", "monitor", "gateway"
]

# Page -> the process that serves it, where, and the metrics on it.
PAGES: dict[Page, tuple[str, tuple[MetricRow, ...]]] = {
    "triton": ("Triton's metrics page (port 8002)", (*TRITON, *STEPS)),
    "supervisor": ("`/metrics` on the admin port (8003)", SUPERVISOR),
    "journal": ("The metrics port of `tollgate journal run`", JOURNAL),
    "stream": ("The metrics port of `tollgate stream`", STREAM),
    "challenger": ("The metrics port of `tollgate challenger run`", CHALLENGER),
    "monitor": ("The metrics port of `tollgate monitor`", MONITOR),
    "gateway": (
        "The metrics port of `tollgate gateway run` and `tollgate gateway metrics`",
        GATEWAY,
    ),
}
# No page has these, so Prometheus does not either: queries cannot use them.
CUSTOM = (
    "The custom metrics API: by prometheus-adapter, with the rules in "
    "[the chart's page](../helm/README.md#scaling), for its autoscaler",
    AUTOSCALER,
)


class Metric(msgspec.Struct, frozen=True):
    """
    One metric with its page.

    Attributes:
        page: Page that it is on.
        row: Its row of the table.
    """

    page: Page
    row: MetricRow


def metrics() -> Iterator[Metric]:
    """Yield every metric of every page."""
    for page, (_, rows) in PAGES.items():
        for row in rows:
            yield Metric(page, row)


def series_names() -> set[str]:
    """List the names of every series that a query can use."""
    return {name for one in metrics() for name in one.row.series}


def tables_text() -> str:
    """Write the tables of docs/metrics.md: one per page, and one of derived metrics."""
    every = (*PAGES.values(), CUSTOM)
    return "\n".join(_section(where, rows) for where, rows in every)


def _section(where: str, rows: Sequence[MetricRow]) -> str:
    lines = [
        f"## {where}",
        "",
        "| metric | kind | unit | labels | since | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        labels = ", ".join(f"`{one}`" for one in row.labels)
        lines.append(
            f"| `{row.name}` | {row.kind} | {row.unit} | {labels} | {row.since} | "
            f"{row.text} |"
        )
    return "\n".join(lines) + "\n"
