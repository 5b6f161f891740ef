"""List metrics on Triton's page: Triton's own, and those of the Python steps."""

from __future__ import annotations

from tollgate.observability.row import Kind, MetricRow

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
