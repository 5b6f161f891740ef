"""
List the metrics that the chart's autoscaler derives from Triton's, not on any page.
"""

from __future__ import annotations

from tollgate.observability.row import MetricRow


def _row(name: str, unit: str, text: str) -> MetricRow:
    return MetricRow(f"tollgate_{name}", "gauge", unit, ("namespace", "pod"), text)


AUTOSCALER = (
    _row(
        "queue_seconds",
        "s",
        "mean time that a request of the last minute waited in all queues on its way: "
        "`nv_inference_queue_duration_us` of every model by "
        "`nv_inference_request_success` of the ensembles",
    ),
    _row(
        "pending_requests",
        "requests",
        "waiting in a server, all models together, mean of the last minute: "
        "`nv_inference_pending_request_count`",
    ),
    _row(
        "under_way_requests",
        "requests",
        "in a server, waiting or being decided, mean of the last minute: "
        "`nv_inference_request_duration_us` of the ensembles, by second",
    ),
)
