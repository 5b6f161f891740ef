"""List metrics of the gateway: decisions as callers see them, with refusals."""

from __future__ import annotations

from tollgate.observability.row import Kind, MetricRow
from tollgate.observability.rows_others import PROCESS


def _row(name: str, kind: Kind, unit: str, labels: str, text: str) -> MetricRow:
    return MetricRow(
        f"tollgate_gateway_{name}", kind, unit, tuple(labels.split()), text
    )


GATEWAY = (
    _row(
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
    _row(
        "request_seconds",
        "histogram",
        "s",
        "asked outcome",
        "from a request's first byte to the last of its answer, in whole milliseconds; "
        "the buckets of `tollgate_step_seconds`; the rate of its sum is how many are "
        "under way at once",
    ),
    _row(
        "in_flight_limit",
        "gauge",
        "requests",
        "of",
        "decisions that may be in flight at once: `all`, those of one `caller`, `bulk`",
    ),
    _row(
        "caller_rate_limit",
        "gauge",
        "requests/s",
        "",
        "requests a second that one caller may make",
    ),
    _row(
        "unreadable_lines_total",
        "counter",
        "lines",
        "",
        "of nginx's log that cannot be read; 0 unless its disk was full",
    ),
    *PROCESS,
)
