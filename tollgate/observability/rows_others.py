"""List metrics of the processes that run next to Triton."""

from __future__ import annotations

from tollgate.observability.row import Kind, MetricRow


def _row(name: str, kind: Kind, unit: str, labels: str, text: str) -> MetricRow:
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
    _row(
        "background_errors_total",
        "counter",
        "errors",
        "loop",
        "errors that a background loop of the process survived",
    ),
    _row(
        "background_failures",
        "gauge",
        "failures",
        "loop",
        "failures of it in a row; 0 when its last step worked",
    ),
)

_SERVES = "process product instance"

SUPERVISOR = (
    _row("ready", "gauge", "", "product release", "1 while the product decides"),
    _row(
        "release_info",
        "gauge",
        "",
        "product release role model version",
        "1 for each version of the release that answers (`champion`) and of one on "
        "trial (`canary`, `shadow`)",
    ),
    _row(
        "release_percent",
        "gauge",
        "%",
        "product release role",
        "share of the customers that it answers",
    ),
    _row(
        "score_trained_log_odds",
        "gauge",
        "log-odds",
        "product release",
        "mean in training, 13.8155 added, from the quantiles in artifact.json",
    ),
    _row(
        "score_trained_deviation",
        "gauge",
        "log-odds",
        "product release",
        "its standard deviation",
    ),
    _row(
        "capacity_decisions_per_second",
        "gauge",
        "rows/s",
        "",
        "`capacity_per_s` of the settings: what this server was measured to hold; 0 "
        "when nobody said",
    ),
    _row("probe_seconds", "histogram", "s", "product", "the probe's answers"),
    _row(
        "faults_total",
        "counter",
        "faults",
        "product part mended",
        "faults; `product` is empty for a part that all products share",
    ),
    _row("mend_seconds", "histogram", "s", "product part", "from noticing to mended"),
    _row(
        "process_cpu_seconds_total",
        "counter",
        "s",
        _SERVES,
        "processor time of tritonserver, redis-server, the supervisor and each step; "
        "`instance` is that of the model",
    ),
    _row("process_resident_bytes", "gauge", "bytes", _SERVES, "resident memory"),
    _row("process_threads", "gauge", "threads", _SERVES, "threads"),
    _row(
        "step_resident_bytes",
        "gauge",
        "bytes",
        "product model version instance",
        "of each Python step",
    ),
    _row(
        "step_age_seconds",
        "gauge",
        "s",
        "product model version instance",
        "since its start",
    ),
    _row(
        "steps_recycled",
        "gauge",
        "steps",
        "",
        "working steps that were restarted because of age or size",
    ),
    _row(
        "supervisor_start_time_seconds",
        "gauge",
        "s since 1970",
        "",
        "when the supervisor started",
    ),
    *PROCESS,
)

JOURNAL = (
    _row(
        "journal_sealed_lag_seconds",
        "histogram",
        "s",
        "product",
        "age of each chunk's oldest decision when it was sealed",
    ),
    _row("journal_sealed_records_total", "counter", "decisions", "product", "sealed"),
    _row("journal_segments_total", "counter", "segments", "product", "sealed"),
    _row(
        "journal_doubled_records_total",
        "counter",
        "decisions",
        "product",
        "duplicates, which were dropped",
    ),
    _row(
        "journal_lost_records",
        "gauge",
        "decisions",
        "product",
        "with a number that never came, in the whole chain",
    ),
    _row(
        "journal_last_sealed_timestamp_seconds",
        "gauge",
        "s since 1970",
        "product",
        "when decisions were sealed last",
    ),
    _row(
        "journal_dead_letters_total",
        "counter",
        "entries",
        "product",
        "entries that are no chunk",
    ),
    _row(
        "journal_retries_total",
        "counter",
        "times",
        "product",
        "Redis or the disk were tried again",
    ),
    *PROCESS,
)

STREAM = (
    _row(
        "stream_events_total",
        "counter",
        "events",
        "product kind outcome",
        "by kind (`purchase`, `label`, `unknown`) and outcome (`applied`, `duplicate`, "
        "`too_late`, `foreign`, `poison`)",
    ),
    _row("stream_backlog", "gauge", "events", "product", "that wait here"),
    _row("stream_partitions", "gauge", "partitions", "product", "it reads"),
    _row(
        "stream_lag_seconds",
        "gauge",
        "s",
        "product feed",
        "age of the newest event applied; 0 when nothing waits",
    ),
    _row(
        "stream_event_lag_seconds",
        "histogram",
        "s",
        "product feed",
        "age of each batch's oldest event",
    ),
    _row(
        "stream_feed_watermark_seconds",
        "gauge",
        "s since 1970",
        "product feed",
        "event time that the whole feed has come to",
    ),
    _row(
        "stream_feed_age_seconds",
        "histogram",
        "s",
        "product feed",
        "its age, once a second",
    ),
    _row("stream_apply_seconds", "histogram", "s", "product", "to apply a batch"),
    _row(
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
    _row("trial_rows", "gauge", "rows", _ARM, "counted: `champion`, `challenger`"),
    _row("trial_decisions", "gauge", "rows", f"{_ARM} outcome", "by outcome"),
    _row("trial_score_mean", "gauge", "0 to 1", _ARM, "mean score"),
    _row("trial_errors", "gauge", "rows", _ARM, "rows without a usable score"),
    _row("trial_pairs", "gauge", "rows", _TRIAL, "decided by both"),
    _row("trial_flips", "gauge", "rows", _TRIAL, "of them decided differently"),
    _row("trial_taken_total", "counter", "rows", "product", "decisions read"),
    _row("trial_unreadable_total", "counter", "entries", "product", "no chunk"),
    _row("trial_retries_total", "counter", "times", "product", "something was away"),
    _row("trial_ended_total", "counter", "trials", "product", "ended by a gate"),
    *PROCESS,
)
