"""For each alert: series that are well at first, and then are not."""

from __future__ import annotations

from typing import Any, NamedTuple

from tollgate.observability.metric_selection import matchers, restrict

HERE = {"job": "tollgate"}
FRAUD = {"product": "fraud"}
SUCCESS = 'nv_inference_request_success{model="fraud",version="1"}'
FAILURE = 'nv_inference_request_failure{model="fraud",version="1",reason="BACKEND"}'
CANCELED = 'nv_inference_request_failure{model="fraud",version="1",reason="CANCELED"}'
DECIDED = 'tollgate_rows_total{product="fraud",kind="decided"}'


class Case(NamedTuple):
    """
    One alert.

    Attributes:
        alert: Its name.
        series: Name and labels -> values, in promtool's notation; one each `interval`.
        before: When it must be silent.
        after: When it must be told.
        labels: Its labels then, all of them.
        interval: Between two values.
    """

    alert: str
    series: dict[str, str]
    before: str
    after: str
    labels: dict[str, str]
    interval: str = "1m"


def step(le: str) -> str:
    """Name the counter of whole decisions up to a time."""
    named = f'product="fraud",release="fraud-1",step="whole",le="{le}"'
    return f"tollgate_step_seconds_bucket{{{named}}}"


COUNT = 'tollgate_step_seconds_count{product="fraud",release="fraud-1",step="whole"}'
PAGE, TICKET = {"severity": "page", **FRAUD}, {"severity": "ticket", **FRAUD}


def counter(family: str, **labels: str) -> str:
    """Name a series of the product."""
    named = ",".join(f'{key}="{one}"' for key, one in {**FRAUD, **labels}.items())
    return f"{family}{{{named}}}"


def gateway(asked: str, outcome: str) -> str:
    """Name a series of the gateway's."""
    named = f'asked="{asked}",outcome="{outcome}",caller="shop"'
    return f"tollgate_gateway_requests_total{{{named}}}"


CASES = (
    # A tenth of the requests fails, where a thousandth may.
    Case(
        "TollgateAvailabilityBurnFast",
        {
            SUCCESS: "0+6000x180",
            FAILURE: "0x90 600+600x90",
            CANCELED: "0+6000x180",  # who gives up is not told of a failure
        },
        "90m",
        "180m",
        PAGE,
    ),
    # Half a per cent: too little to wake anybody, too much to go on for a month.
    Case(
        "TollgateAvailabilityBurnSlow",
        {SUCCESS: "0+10000x300", FAILURE: "0x150 50+50x150"},
        "25h",
        "50h",
        TICKET,
        interval="10m",
    ),
    Case(
        "TollgateLatencyBurnFast",
        {COUNT: "0+600x180", step("0.05"): "0+600x90 54500+500x90"},
        "90m",
        "180m",
        PAGE,
    ),
    Case(
        "TollgateLatencyBurnSlow",
        {COUNT: "0+1000x300", step("0.05"): "0+1000x150 150995+995x150"},
        "25h",
        "50h",
        TICKET,
        interval="10m",
    ),
    # All within 20 ms, then two of a hundred between 50 and 100.
    Case(
        "TollgateLatencyHigh",
        {
            step("0.02"): "0+100x30 3098+98x30",
            step("0.05"): "0+100x30 3098+98x30",
            step("0.1"): "0+100x60",
            step("+Inf"): "0+100x60",
        },
        "30m",
        "60m",
        PAGE,
    ),
    Case(
        "TollgateErrorsHigh",
        {SUCCESS: "0+1000x60", FAILURE: "0x30 2+2x30"},
        "30m",
        "60m",
        PAGE,
    ),
    # 5 ms each in the queue of the model, then 12.
    Case(
        "TollgateQueueLong",
        {
            'nv_inference_queue_duration_us{model="fraud_model"}': (
                "0+500000x30 16200000+1200000x30"
            ),
            'nv_inference_request_success{model="fraud_model"}': "0+100x60",
            'nv_inference_queue_duration_us{model="other_model"}': "0+9000000x60",
            'nv_inference_request_success{model="other_model"}': "0+100x60",
        },
        "30m",
        "60m",
        {**TICKET, "model": "fraud_model"},
    ),
    Case(
        "TollgateDown",
        {counter("tollgate_ready", release="fraud-1"): "1x30 stale"},
        "30m",
        "40m",
        PAGE,
    ),
    Case(
        "TollgateNotReady",
        {counter("tollgate_ready", release="fraud-1", instance="a"): "1x30 0x10"},
        "30m",
        "35m",
        {**PAGE, "instance": "a"},
    ),
    # Trained: 5.5 and 2; the hour's mean goes from 6 to 10.
    Case(
        "TollgateScoreMoved",
        {
            counter("tollgate_score_log_odds_sum", release="fraud-1"): (
                "0+600x120 73000+1000x120"
            ),
            counter("tollgate_score_count", release="fraud-1"): "0+100x240",
            counter("tollgate_score_trained_log_odds", release="fraud-1"): "5.5x240",
            counter("tollgate_score_trained_deviation", release="fraud-1"): "2x240",
        },
        "120m",
        "240m",
        {**PAGE, "release": "fraud-1"},
    ),
    Case(
        "TollgateFeatureHitsLow",
        {
            counter("tollgate_decisions_total", source="store"): "0+90x30 2770+70x60",
            counter("tollgate_decisions_total", source="defaults"): (
                "0+10x30 330+30x60"
            ),
        },
        "30m",
        "60m",
        PAGE,
    ),
    # A tenth of the lists has no history, where a hundredth had.
    Case(
        "TollgateListsFallback",
        {
            counter("tollgate_lists_total", source="personal"): "0+99x30 2970+90x30",
            counter("tollgate_lists_total", source="fallback"): "0+1x30 30+10x30",
            counter("tollgate_list_defects_total", defect="unranked"): "0x60",
            counter("tollgate_list_defects_total", defect="short"): "0+50x60",
        },
        "30m",
        "60m",
        PAGE,
    ),
    # One of a thousand is short, then one of ten.
    Case(
        "TollgateListsShort",
        {
            counter("tollgate_lists_total", source="popular"): "0+1000x90",
            counter("tollgate_list_defects_total", defect="short"): (
                "0+1x45 145+100x45"
            ),
        },
        "45m",
        "90m",
        TICKET,
    ),
    Case(
        "TollgateTableHitsLow",
        {
            counter("tollgate_table_values_total", found="memory"): (
                "0+90x60 5450+50x120"
            ),
            counter("tollgate_table_values_total", found="store"): (
                "0+10x60 650+50x120"
            ),
        },
        "60m",
        "180m",
        TICKET,
    ),
    # A customer who is new is no reason to hear of it.
    Case(
        "TollgateWindowOverflow",
        {
            counter("tollgate_degraded_rows_total", bit="WINDOW_OVERFLOW"): (
                "0x60 1+1x60"
            ),
            counter("tollgate_degraded_rows_total", bit="COLD_START"): "0+60x120",
        },
        "60m",
        "75m",
        TICKET,
    ),
    # Promtool's clock begins at 0.
    Case(
        "TollgateFeedStale",
        {
            counter("tollgate_feed_watermark_seconds", feed="labels"): (
                "0+60x60 3600x60"
            ),
            DECIDED: "0+60x120",
        },
        "60m",
        "90m",
        {**PAGE, "feed": "labels"},
    ),
    Case(
        "TollgateHealing",
        {
            counter("tollgate_faults_total", part="fraud_model", mended="true"): (
                "1x30 2+1x10"
            )
        },
        "30m",
        "40m",
        {**TICKET, "part": "fraud_model"},
    ),
    Case(
        "TollgateLoopStuck",
        {
            counter("tollgate_background_failures", model="fraud_decision", loop="a"): (
                "0x29 4x10 5x10"
            )
        },
        "40m",
        "43m",
        {**PAGE, "model": "fraud_decision", "loop": "a"},
    ),
    Case(
        "TollgateLoopErrors",
        {'tollgate_background_errors_total{loop="arrivals-fraud"}': "7x60 8+1x60"},
        "65m",
        "90m",
        {"severity": "ticket", "loop": "arrivals-fraud"},
    ),
    # The series begins with its first fault.
    Case(
        "TollgateNotMended",
        {
            counter("tollgate_faults_total", part="fraud_model", mended="false"): (
                "_x31 1x10"
            ),
            counter("tollgate_faults_total", part="fraud_model", mended="true"): "1x40",
        },
        "30m",
        "35m",
        {**PAGE, "part": "fraud_model"},
    ),
    Case(
        "TollgateStoreBreakerOpen",
        {
            counter("tollgate_store_calls_total", outcome="not_made"): "0x30 9+9x10",
            counter("tollgate_store_calls_total", outcome="failed"): "0+9x40",
        },
        "30m",
        "35m",
        PAGE,
    ),
    Case(
        "TollgateNearCapacity",
        {
            DECIDED: "0+42000x30 1314000+54000x30",  # 700, then 900 a second
            'tollgate_rows_total{product="fraud",kind="dry"}': "0+60000x60",
            "tollgate_capacity_decisions_per_second": "1000x60",
        },
        "30m",
        "60m",
        {"severity": "ticket"},
    ),
    # Two of a hundred payments are refused; bulk and strangers always were.
    Case(
        "TollgateRejectionsHigh",
        {
            gateway("decision", "passed"): "0+980x60",
            gateway("decision", "overloaded"): "0x30 20+20x30",
            gateway("decision", "unauthenticated"): "0+500x60",
            gateway("bulk", "overloaded"): "0+900x60",
        },
        "30m",
        "60m",
        {"severity": "page"},
    ),
    Case(
        "TollgateJournalDropped",
        {
            counter("tollgate_journal_records_total", fate="dropped"): "0x30 5x10",
            counter("tollgate_journal_records_total", fate="written"): "0+9x40",
        },
        "30m",
        "35m",
        PAGE,
    ),
    Case(
        "TollgateJournalSpooling",
        {counter("tollgate_journal_records_total", fate="spooled"): "0x30 5+5x30"},
        "30m",
        "50m",
        TICKET,
    ),
    Case(
        "TollgateJournalUnreadable",
        {counter("tollgate_journal_unreadable_chunks_total"): "0x30 1x30"},
        "30m",
        "35m",
        TICKET,
    ),
    Case(
        "TollgateJournalNotSealed",
        {
            counter("tollgate_journal_last_sealed_timestamp_seconds"): (
                "0+60x60 3600x60"
            ),
            DECIDED: "0+60x120",
        },
        "60m",
        "80m",
        TICKET,
    ),
    Case(
        "TollgateJournalLost",
        {counter("tollgate_journal_lost_records"): "7x60 12x40"},
        "60m",
        "90m",
        PAGE,
    ),
    Case(
        "TollgateStreamLag",
        {counter("tollgate_stream_lag_seconds", feed="purchases"): "2x30 200x30"},
        "30m",
        "45m",
        {**PAGE, "feed": "purchases"},
    ),
    Case(
        "TollgateAlarmsNotReady",
        {counter("tollgate_alarms_ready", instance="a"): "1x30 0x10"},
        "30m",
        "35m",
        {**PAGE, "instance": "a"},
    ),
    # 6,000 a minute; then none is older than 10 s, but 9,000 wait: 90 s of work.
    Case(
        "TollgateAlarmsLate",
        {
            counter("tollgate_alarms_age_seconds_bucket", le="5"): "0+10x60",
            counter("tollgate_alarms_age_seconds_bucket", le="+Inf"): "0+10x60",
            counter("tollgate_alarms_backlog"): "3000x30 9000x30",
            counter("tollgate_alarms_readings_total", outcome="decided"): "0+6000x60",
        },
        "30m",
        "40m",
        PAGE,
    ),
    Case(
        "TollgateAlarmsDeadLetters",
        {
            counter("tollgate_alarms_readings_total", outcome="unreadable"): (
                "0x30 2x10"
            ),
            counter("tollgate_alarms_readings_total", outcome="decided"): "0+9x40",
        },
        "30m",
        "35m",
        {**TICKET, "outcome": "unreadable"},
    ),
    Case(
        "TollgateWebhookNotReady",
        {counter("tollgate_webhook_ready", instance="a"): "1x30 0x10"},
        "34m",
        "38m",
        {**PAGE, "instance": "a"},
    ),
    Case(
        "TollgateWebhookDeadLetters",
        {
            counter("tollgate_webhook_alarms_total", outcome="dead_letter"): (
                "0x30 1x10"
            ),
            counter("tollgate_webhook_alarms_total", outcome="delivered"): "0+9x40",
        },
        "30m",
        "35m",
        PAGE,
    ),
)


def document(
    rules: list[str],
    annotations: dict[str, dict[str, str]],
    *,
    interval: str,
    job: str = HERE["job"],
) -> Any:
    """
    Make what `promtool test rules` reads.

    Args:
        rules: Files of rules.
        annotations: Of each alert, by its name.
        interval: Take the cases of this one, and work rules out as often.
        job: Whose series they are; of another one than HERE nothing is told.
    """
    of = matchers({"job": job})
    return {
        "rule_files": rules,
        "evaluation_interval": interval,
        "tests": [
            {
                "interval": case.interval,
                "name": case.alert,
                "input_series": [
                    {"series": restrict(name, of), "values": values}
                    for name, values in case.series.items()
                ],
                "alert_rule_test": [
                    {"eval_time": case.before, "alertname": case.alert},
                    {
                        "eval_time": case.after,
                        "alertname": case.alert,
                        "exp_alerts": [
                            {
                                "exp_labels": {**case.labels, **HERE},
                                "exp_annotations": annotations[case.alert],
                            }
                        ]
                        if job == HERE["job"]
                        else [],
                    },
                ],
            }
            for case in CASES
            if case.interval == interval
        ],
    }
