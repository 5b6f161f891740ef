"""
Define the dashboard of the service: whether it meets its SLO, and the cause if not.
"""

from __future__ import annotations

from tollgate.observability.board_gateway import GATEWAY
from tollgate.observability.board_inside import PROCESSES, QUEUES
from tollgate.observability.panel import Board, Panel, PanelRow, Query, quantile, rate

_OF = 'product="$product"'
_WHOLE = f'{_OF},step="whole"'
_MODELS = 'model=~"${product}(_.*)?"'
_OK = 'nv_inference_request_success{model="$product"}'
_BAD = 'nv_inference_request_failure{model="$product",reason!="CANCELED"}'
_FAILED = f"{rate(_BAD)} / ({rate(_BAD)} + {rate(_OK)})"
_MINUTE = f"sum(rate({_BAD}[1m])) / (sum(rate({_BAD}[1m])) + sum(rate({_OK}[1m])))"
_NO_CAPACITY = "capacity_per_s is not set"


def _in_time(le: str, window: str) -> str:
    return (
        f'sum(rate(tollgate_step_seconds_bucket{{{_WHOLE},le="{le}"}}[{window}])) / '
        f"sum(rate(tollgate_step_seconds_count{{{_WHOLE}}}[{window}]))"
    )


def _layer(share: float, name: str) -> Panel:
    return Panel(
        f"{name} by layer",
        "s",
        (
            Query(
                quantile(share, "tollgate_step_seconds", _OF, by="step"),
                "{{step}}",
            ),
        ),
        text="`model` is everything between the feature and the decision step: both "
        "queues, the queue delay and the model.",
    )


_PROMISE = PanelRow(
    "The promise",
    (
        Panel(
            "Answered",
            "percentunit",
            (
                Query(
                    f"sum(increase({_OK}[$__range])) / (sum(increase({_OK}[$__range]))"
                    f" + sum(increase({_BAD}[$__range])))"
                ),
            ),
            kind="number",
        ),
        Panel(
            "Within 50 ms",
            "percentunit",
            (Query(_in_time("0.05", "$__range")),),
            "number",
        ),
        Panel(
            "Within 20 ms",
            "percentunit",
            (Query(_in_time("0.02", "$__range")),),
            "number",
        ),
        Panel(
            "Servers that decide",
            "short",
            (Query(f"sum(tollgate_ready{{{_OF}}})"),),
            "number",
        ),
        Panel(
            "Release",
            "short",
            (
                Query(
                    f"max by (release, role) (tollgate_release_percent{{{_OF}}})",
                    "{{release}}, {{role}}: % of customers",
                ),
            ),
            "number",
        ),
        Panel(
            "Of the capacity",
            "percentunit",
            (
                Query(
                    f'{rate(f"""tollgate_rows_total{{{_OF},kind!="dry"}}""")} / '
                    "(sum(tollgate_capacity_decisions_per_second) > 0)",
                    empty=_NO_CAPACITY,
                ),
            ),
            kind="number",
            text="capacity_per_s in the settings of each server says what it holds.",
        ),
    ),
)

_RATE = PanelRow(
    "Rate and errors",
    (
        Panel(
            "Rows",
            "rps",
            (
                Query(rate(f"tollgate_rows_total{{{_OF}}}", by="kind"), "{{kind}}"),
                Query(
                    "sum(tollgate_capacity_decisions_per_second) > 0",
                    "capacity",
                    empty=_NO_CAPACITY,
                ),
            ),
        ),
        Panel(
            "Requests",
            "reqps",
            (Query(rate(_OK), "answered"), Query(rate(_BAD), "failed")),
        ),
        Panel(
            "Failed, by reason",
            "reqps",
            (
                Query(
                    rate(
                        f"nv_inference_request_failure{{{_MODELS}}}", by="model, reason"
                    ),
                    "{{model}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Share that fails, and its spikes",
            "percentunit",
            (
                Query(_FAILED, "now"),
                Query(f"max_over_time(({_MINUTE})[1h:1m])", "worst minute of an hour"),
            ),
        ),
    ),
)

_LATENCY = PanelRow(
    "Latency",
    (
        Panel(
            "Whole decision",
            "s",
            tuple(
                Query(quantile(share, "tollgate_step_seconds", _WHOLE), name)
                for share, name in (
                    (0.5, "p50"),
                    (0.9, "p90"),
                    (0.99, "p99"),
                    (0.999, "p99.9"),
                )
            ),
            text="In the server, from the first step's start; rows of callers alone.",
        ),
        _layer(0.5, "p50"),
        _layer(0.99, "p99"),
        _layer(0.999, "p99.9"),
        Panel(
            "p99 by version of the model",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, version) ("
                    + rate(
                        f"tollgate_step_seconds_bucket{{{_WHOLE}}}", by="le, release"
                    )
                    + " * on (release) group_left (version) max by (release, version) ("
                    f'tollgate_release_info{{{_OF},model=~".*_model"}})))',
                    "version {{version}}",
                ),
            ),
        ),
        Panel(
            "Probes",
            "s",
            (
                Query(quantile(0.5, "tollgate_probe_seconds", _OF), "p50"),
                Query(quantile(0.99, "tollgate_probe_seconds", _OF), "p99"),
            ),
            text="What the supervisor's own dry run takes, once a second.",
        ),
    ),
)

SERVICE = Board(
    "tollgate-service",
    "Tollgate: service",
    (_PROMISE, _RATE, GATEWAY, _LATENCY, QUEUES, PROCESSES),
)
