"""Define dashboard rows of the gateway: requests and refusals."""

from __future__ import annotations

from tollgate.observability.panel import Panel, PanelRow, Query, quantile, rate

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
