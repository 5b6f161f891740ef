"""
Define dashboard rows of the service's internals: queues, batches, processes, journal.
"""

from __future__ import annotations

from tollgate.observability.panel import Panel, PanelRow, Query, quantile, rate

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
