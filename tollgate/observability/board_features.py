"""Define the dashboard of features: freshness, completeness, latency."""

from __future__ import annotations

from tollgate.observability.panel import Board, Panel, PanelRow, Query, quantile, rate

_OF = 'product="$product"'
_DECISIONS = f"tollgate_decisions_total{{{_OF}}}"
_STORE = f'tollgate_decisions_total{{{_OF},source="store"}}'
_TABLES = f"tollgate_table_values_total{{{_OF}}}"
_MEMORY = f'tollgate_table_values_total{{{_OF},found="memory"}}'

_QUALITY = PanelRow(
    "From where",
    (
        Panel(
            "Rows by source",
            "rps",
            (Query(rate(_DECISIONS, by="source"), "{{source}}"),),
            kind="stack",
        ),
        Panel(
            "Hit rate",
            "percentunit",
            (
                Query(f"{rate(_STORE)} / {rate(_DECISIONS)}", "fresh from the store"),
                Query(
                    f"{rate(_MEMORY)} / ({rate(_TABLES)} > 0)",
                    "tables in memory",
                    empty="the product has no tables",
                ),
            ),
        ),
        Panel(
            "Degraded rows",
            "rps",
            (
                Query(
                    rate(f"tollgate_degraded_rows_total{{{_OF}}}", by="bit"), "{{bit}}"
                ),
            ),
            text="The supervisor's probes are among them: one COLD_START a second.",
        ),
        Panel(
            "p99 by source",
            "s",
            (
                Query(
                    quantile(0.99, "tollgate_feature_seconds", _OF, by="source"),
                    "{{source}}",
                ),
            ),
        ),
    ),
)

_CALLS = PanelRow(
    "The store",
    (
        Panel(
            "Calls",
            "ops",
            (
                Query(
                    rate(f"tollgate_store_calls_total{{{_OF}}}", by="outcome"),
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "Time of a call",
            "s",
            tuple(
                Query(quantile(share, "tollgate_store_call_seconds", _OF), name)
                for share, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
            ),
        ),
        Panel(
            "Breaker",
            "short",
            (
                Query(
                    f"max(tollgate_store_breaker_state{{{_OF}}})",
                    "0 closed, 1 half-open, 2 open",
                ),
            ),
        ),
        Panel(
            "Last known values looked up",
            "ops",
            (
                Query(
                    rate(f"tollgate_last_known_values_total{{{_OF}}}", by="found"),
                    "found {{found}}",
                ),
            ),
        ),
        Panel(
            "Rows the store missed",
            "rps",
            (
                Query(
                    rate(f"tollgate_spool_rows_total{{{_OF}}}", by="kept"),
                    "kept {{kept}}",
                ),
            ),
        ),
        Panel(
            "Memory",
            "bytes",
            (
                Query(f"max(tollgate_last_known_bytes{{{_OF}}})", "last known values"),
                Query(f"max(tollgate_table_bytes{{{_OF}}})", "tables"),
            ),
        ),
        Panel(
            "Table values by where found",
            "ops",
            (Query(rate(_TABLES, by="found"), "{{found}}"),),
        ),
        Panel(
            "Asked again",
            "rps",
            (
                Query(
                    rate(f"tollgate_earlier_decisions_total{{{_OF}}}", by="found"),
                    "{{found}}",
                ),
            ),
        ),
    ),
)

_FEEDS = PanelRow(
    "Feeds",
    (
        Panel(
            "Age of the watermark",
            "s",
            (
                Query(
                    "time() - max by (feed) (tollgate_feed_watermark_seconds"
                    f"{{{_OF}}})",
                    "{{feed}}",
                ),
            ),
            text="Age of the events that windows may be missing.",
        ),
        Panel(
            "Stream: events",
            "eps",
            (
                Query(
                    rate(f"tollgate_stream_events_total{{{_OF}}}", by="kind, outcome"),
                    "{{kind}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            "Stream: behind",
            "s",
            (
                Query(
                    f"max by (feed) (tollgate_stream_lag_seconds{{{_OF}}})", "{{feed}}"
                ),
            ),
        ),
        Panel(
            "Stream: waiting",
            "short",
            (Query(f"sum(tollgate_stream_backlog{{{_OF}}})", "events"),),
        ),
        Panel(
            "Stream: time to apply a batch",
            "s",
            (
                Query(quantile(0.5, "tollgate_stream_apply_seconds", _OF), "p50"),
                Query(quantile(0.99, "tollgate_stream_apply_seconds", _OF), "p99"),
            ),
        ),
    ),
)

FEATURES = Board("tollgate-features", "Tollgate: features", (_QUALITY, _CALLS, _FEEDS))
