"""
Define the dashboard of the service: whether it meets its SLO, and the cause if not.
"""

from __future__ import annotations

from tollgate.observability.panel import Board, Panel, PanelRow, Query, quantile, rate

# Define dashboard rows of the gateway: requests and refusals.

_REQUESTS = "tollgate_gateway_requests_total"
_SECONDS = "tollgate_gateway_request_seconds"
_DECISIONS = 'asked=~"decision|bulk"'
_PASSED = 'asked="decision",outcome="passed"'
_ASKED = rate(f"{_REQUESTS}{{{_DECISIONS}}}", by="asked")
_REFUSED = rate(f'{_REQUESTS}{{{_DECISIONS},outcome!~"passed|gave_up"}}', by="asked")

GATEWAY = PanelRow(
    "Gateway, all products together",
    (
        Panel(
            "Decisions requested, by outcome",
            "reqps",
            (
                Query(
                    rate(f"{_REQUESTS}{{{_DECISIONS}}}", by="asked, outcome"),
                    "{{asked}} {{outcome}}",
                ),
            ),
            kind="stack",
        ),
        Panel(
            "Decisions refused",
            "percentunit",
            (
                # Without any refusal there is no series.
                Query(f"({_REFUSED} or 0 * {_ASKED}) / {_ASKED}", "{{asked}}"),
            ),
            text="Share of the requested decisions, for any reason. Bulk requests are "
            "refused first.",
        ),
        Panel(
            "In flight, and the limit",
            "short",
            (
                Query(rate(f"{_SECONDS}_sum{{{_DECISIONS}}}"), "under way"),
                Query('sum(tollgate_gateway_in_flight_limit{of="all"})', "bound"),
            ),
        ),
        Panel(
            "Decisions by caller",
            "reqps",
            (
                Query(
                    f"topk(10, {rate(f'{_REQUESTS}{{{_DECISIONS}}}', by='caller')})",
                    "{{caller}}",
                ),
            ),
        ),
        Panel(
            "Time of decisions that passed",
            "s",
            (
                Query(quantile(0.5, _SECONDS, _PASSED), "p50"),
                Query(quantile(0.99, _SECONDS, _PASSED), "p99"),
            ),
            text="As callers have it but for the network: from the first byte of the "
            "request to the last of the answer.",
        ),
    ),
)


# Define dashboard rows of the service's internals: queues, batches, processes, journal.

_OF = 'product="$product"'
_STEPS = 'model=~"${product}_.*"'
_NO_FAULT = "nothing went wrong"

QUEUES = PanelRow(
    "Queues and batches",
    (
        Panel(
            "Waiting now",
            "short",
            (
                Query(
                    f"sum by (model) (nv_inference_pending_request_count{{{_STEPS}}})",
                    "{{model}}",
                ),
            ),
        ),
        Panel(
            "Mean wait in the queue",
            "s",
            (
                Query(
                    rate(f"nv_inference_queue_duration_us{{{_STEPS}}}", by="model")
                    + " / 1e6 / ("
                    + rate(f"nv_inference_request_success{{{_STEPS}}}", by="model")
                    + " > 0)",
                    "{{model}}",
                ),
            ),
            text="The queue delays of the steps are part of it.",
        ),
        Panel(
            "Requests in flight",
            "short",
            (
                Query(
                    rate('nv_inference_request_duration_us{model="$product"}')
                    + " / 1e6",
                    "mean",
                ),
            ),
        ),
        Panel(
            "Rows of a batch",
            "short",
            (
                Query(quantile(0.5, "tollgate_batch_rows", _OF), "p50"),
                Query(quantile(0.99, "tollgate_batch_rows", _OF), "p99"),
                Query(
                    rate(f"nv_inference_count{{{_STEPS}}}", by="model")
                    + " / ("
                    + rate(f"nv_inference_exec_count{{{_STEPS}}}", by="model")
                    + " > 0)",
                    "mean of {{model}}",
                ),
            ),
        ),
        Panel(
            "Batches by rows",
            "short",
            (
                Query(
                    f"sum by (le) (increase(tollgate_batch_rows_bucket{{{_OF}}}"
                    "[$__rate_interval]))",
                    "{{le}}",
                ),
            ),
            kind="heat",
        ),
    ),
)

PROCESSES = PanelRow(
    "Processes",
    (
        Panel(
            "Processors in use",
            "short",
            (
                Query(
                    rate("tollgate_process_cpu_seconds_total", by="process"),
                    "{{process}}",
                ),
                Query("avg(nv_cpu_utilization)", "share of the machine"),
            ),
            kind="stack",
        ),
        Panel(
            "Share of a step's time at work",
            "percentunit",
            (
                Query(
                    rate(f"tollgate_step_busy_seconds_total{{{_OF}}}", by="step"),
                    "{{step}}",
                ),
            ),
            text="Of one instance; near 1 it is the limit.",
        ),
        Panel(
            "Memory",
            "bytes",
            (
                Query(
                    "sum by (process) (tollgate_process_resident_bytes)", "{{process}}"
                ),
            ),
        ),
        Panel(
            "Garbage collections",
            "ops",
            (
                Query(
                    rate(
                        f"tollgate_gc_collections_total{{{_OF}}}",
                        by="model, generation",
                    ),
                    "{{model}}, generation {{generation}}",
                ),
            ),
        ),
        Panel(
            "Faults",
            "short",
            (
                Query(
                    "sum by (part, mended) (increase(tollgate_faults_total[1h]))",
                    "{{part}}, mended {{mended}}",
                    empty=_NO_FAULT,
                ),
            ),
            text="Within an hour; part and whether it was repaired.",
        ),
        Panel(
            "Background loops",
            "short",
            (
                Query(
                    "sum by (loop) (increase(tollgate_background_errors_total[1h])) "
                    "> 0",
                    "{{loop}}: errors",
                    empty="no background loop met an unexpected error",
                ),
                Query(
                    "max by (loop) (tollgate_background_failures) > 0",
                    "{{loop}}: failures in a row",
                    empty="every background loop works",
                ),
            ),
            text="Unexpected errors within an hour; 5 failures in a row are "
            "a loop that is stuck.",
        ),
        Panel(
            "Journal",
            "cps",
            (
                Query(
                    rate(f"tollgate_journal_records_total{{{_OF}}}", by="fate"),
                    "{{fate}}",
                ),
            ),
        ),
        Panel(
            "Time until a decision is recorded",
            "s",
            (
                Query(
                    quantile(0.99, "tollgate_journal_lag_seconds", _OF),
                    "p99 in the stream",
                ),
                Query(
                    quantile(0.99, "tollgate_journal_sealed_lag_seconds", _OF),
                    "p99 sealed",
                ),
            ),
        ),
        Panel(
            "Decisions missing in the journal",
            "short",
            (Query(f"max(tollgate_journal_lost_records{{{_OF}}})", "lost"),),
        ),
    ),
)


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
