"""Define alerts common to all products: features, model, recovery, journal."""

from __future__ import annotations

from tollgate.observability.rule import Alert
from tollgate.worker import STUCK_FAILURES

SCORE_SIGMAS = 2.0
SCORE_ROWS = 200  # in the hour; with fewer, a distribution means nothing
HITS_PERCENT = 80.0
STALE_S = 900
STREAM_LAG_S = 60
UNSEALED_S = 600
FAULTS = 3  # within 15 minutes
CAPACITY_PERCENT = 80.0
REJECTED_PERCENT = 1.0
LOOP_ERRORS = 10  # in an hour

_DECIDED = 'sum by (product) (rate(tollgate_rows_total{kind="decided"}[15m])) > 0'
_OF_RELEASE = "sum by (product, release) (increase("


def _score_moved() -> str:
    mean = (
        f"{_OF_RELEASE}tollgate_score_log_odds_sum[1h])) / "
        f"({_OF_RELEASE}tollgate_score_count[1h])) > {SCORE_ROWS})"
    )
    trained = "max by (product, release) (tollgate_score_trained_log_odds)"
    sigma = "max by (product, release) (tollgate_score_trained_deviation)"
    return f"abs({mean} - {trained}) > {SCORE_SIGMAS:g} * {sigma}"


def _rejected() -> str:
    # Only payments of callers with a valid key. Requests refused as harmful do not
    # count.
    asked = 'tollgate_gateway_requests_total{asked="decision",outcome'
    refused = f'{asked}=~"denied|malformed|suspended|size|rate|overloaded|no_server"}}'
    every = f'{asked}!="unauthenticated"}}'
    return f"sum(rate({refused}[5m])) / (sum(rate({every}[5m])) > 0)"


def _share(family: str, label: str, value: str, *, window: str) -> str:
    return (
        f'sum by (product) (rate({family}{{{label}="{value}"}}[{window}])) / '
        f"(sum by (product) (rate({family}[{window}])) > 0)"
    )


ALERTS = (
    Alert(
        "TollgateNotReady",
        "max by (product, instance) (tollgate_ready) == 0",
        "A server does not decide",
        severity="page",
        wait="1m",
    ),
    Alert(
        "TollgateScoreMoved",
        _score_moved(),
        f"The scores of an hour lie over {SCORE_SIGMAS:g} standard deviations from "
        "those of training",
        severity="page",
        wait="15m",
    ),
    Alert(
        "TollgateFeatureHitsLow",
        _share("tollgate_decisions_total", "source", "store", window="10m")
        + f" < {HITS_PERCENT / 100:g}",
        f"Less than {HITS_PERCENT:g} % of the rows are decided on fresh features",
        severity="page",
        wait="5m",
    ),
    Alert(
        "TollgateTableHitsLow",
        _share("tollgate_table_values_total", "found", "memory", window="30m")
        + f" < {HITS_PERCENT / 100:g}",
        f"Less than {HITS_PERCENT:g} % of the values of tables are found in memory",
        severity="ticket",
        wait="30m",
    ),
    Alert(
        "TollgateWindowOverflow",
        "sum by (product) (increase(tollgate_degraded_rows_total"
        '{bit="WINDOW_OVERFLOW"}[15m])) > 0',
        "Rows are decided on windows that lack events: an id has more than are stored",
        severity="ticket",
        wait="5m",
    ),
    Alert(
        "TollgateFeedStale",
        "time() - max by (product, feed) (tollgate_feed_watermark_seconds) > "
        f"{STALE_S} and on (product) {_DECIDED}",
        f"A feed is over {STALE_S // 60} minutes behind while rows are decided",
        severity="page",
        wait="5m",
    ),
    Alert(
        "TollgateHealing",
        f"sum by (product, part) (increase(tollgate_faults_total[15m])) > {FAULTS}",
        f"A part was repaired more than {FAULTS} times in 15 minutes",
        severity="ticket",
        wait="0m",
    ),
    Alert(
        "TollgateNotMended",
        # A series that begins at 1 has no increase.
        'sum by (product, part) ((tollgate_faults_total{mended="false"} unless '
        'tollgate_faults_total{mended="false"} offset 15m) > 0 or '
        'increase(tollgate_faults_total{mended="false"}[15m]) > 0)',
        "The supervisor could not repair a fault",
        severity="page",
        wait="0m",
    ),
    Alert(
        "TollgateLoopStuck",
        "max by (product, model, instance, loop) (tollgate_background_failures) >= "
        f"{STUCK_FAILURES}",
        "A background loop makes no progress",
        severity="page",
        wait="2m",
    ),
    Alert(
        "TollgateLoopErrors",
        "sum by (product, model, instance, loop) "
        f"(increase(tollgate_background_errors_total[1h])) > {LOOP_ERRORS}",
        f"A background loop met over {LOOP_ERRORS} unexpected errors in an hour",
        severity="ticket",
        wait="0m",
    ),
    Alert(
        "TollgateStoreBreakerOpen",
        "sum by (product) (rate(tollgate_store_calls_total"
        '{outcome="not_made"}[2m])) > 0',
        "The circuit breaker is open: rows are decided on last known values or "
        "defaults",
        severity="page",
        wait="1m",
    ),
    Alert(
        "TollgateNearCapacity",
        'sum(rate(tollgate_rows_total{kind!="dry"}[5m])) / '
        "(sum(tollgate_capacity_decisions_per_second) > 0) > "
        f"{CAPACITY_PERCENT / 100:g}",
        f"Over {CAPACITY_PERCENT:g} % of the measured capacity is in use",
        severity="ticket",
        wait="10m",
    ),
    Alert(
        "TollgateRejectionsHigh",
        f"{_rejected()} > {REJECTED_PERCENT / 100:g}",
        f"The gateway refuses over {REJECTED_PERCENT:g} % of its callers' decisions",
        severity="page",
        wait="5m",
    ),
    Alert(
        "TollgateJournalDropped",
        "sum by (product) (increase(tollgate_journal_records_total"
        '{fate="dropped"}[15m])) > 0',
        "Decisions were made that leave no record",
        severity="page",
        wait="0m",
    ),
    Alert(
        "TollgateJournalSpooling",
        "sum by (product) (rate(tollgate_journal_records_total"
        '{fate="spooled"}[5m])) > 0',
        "Records go to disk because the stream does not take them",
        severity="ticket",
        wait="10m",
    ),
    Alert(
        "TollgateJournalUnreadable",
        "sum by (product) (increase(tollgate_journal_unreadable_chunks_total[1h])) > 0 "
        "or sum by (product) (increase(tollgate_journal_dead_letters_total[1h])) > 0",
        "The journal holds records that this version cannot read",
        severity="ticket",
        wait="0m",
    ),
    Alert(
        "TollgateJournalNotSealed",
        "time() - max by (product) (tollgate_journal_last_sealed_timestamp_seconds) > "
        f"{UNSEALED_S} and on (product) {_DECIDED}",
        f"No decision was sealed for {UNSEALED_S // 60} minutes, though some were made",
        severity="ticket",
        wait="5m",
    ),
    Alert(
        "TollgateJournalLost",
        "max by (product) (delta(tollgate_journal_lost_records[1h])) > 0",
        "Decisions are missing in the journal",
        severity="page",
        wait="15m",
    ),
    Alert(
        "TollgateStreamLag",
        f"max by (product, feed) (tollgate_stream_lag_seconds) > {STREAM_LAG_S}",
        f"The stream's consumer is over {STREAM_LAG_S} s behind",
        severity="page",
        wait="5m",
    ),
)
