"""Share the readings, the decider and the reader of alarms among tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from tollgate.alarms.alarm import OutcomeRules, Report
from tollgate.alarms.consumer import AlarmConsumer, AlarmMetrics
from tollgate.alarms.outcomes import OutcomeStore
from tollgate.alarms.readings import ReadingCodec
from tollgate.alarms.scoring import ServerScorer
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import DEFAULT_OUTCOMES
from tollgate.store.redis.redis_store import RedisStore
from tollgate.stream.redis_streams import RedisFeed, RedisSource
from tollgate.stream.source import Feed, Source

NOW_US = 1_760_000_000_000_000
READINGS, ALARMS = "readings", "alarms"
LEASE_S = 0.3
SPEC = Path(__file__).resolve().parents[3] / (
    "model_repository/fraud_features/1/features.yaml"
)


def reading(name: str, machine: str, *, amount: float = 1.0, at: int = 0) -> bytes:
    """One reading; the tests' server approves it below 100, declines from 1,000 on."""
    return json.dumps(
        {
            "transaction_id": name,
            "customer_id": machine,
            "terminal_id": "line-1",
            "amount": amount,
            "event_time": NOW_US + at,
            "unit": "bar",  # other keys are ignored
        }
    ).encode()


def amounts(values: Sequence[float], *, machine: str = "m") -> list[bytes]:
    """Readings of one machine, r0, r1 and so on."""
    return [
        reading(f"{machine}-r{place}", machine, amount=amount, at=place)
        for place, amount in enumerate(values)
    ]


def make_consumer(
    source: Source,
    alarms: Feed,
    *,
    spec: FeatureSpec,
    store_url: str,
    server_url: str,
    stopped: Any,
    report: Report = "changes",
    raising: Sequence[str] = (),
    **options: Any,
) -> AlarmConsumer:
    """Make a consumer of readings of the fraud product."""
    codec = ReadingCodec(spec)
    rules = OutcomeRules(DEFAULT_OUTCOMES.words, raising)
    return AlarmConsumer(
        source,
        ServerScorer(server_url, product="fraud", codec=codec, timeout_s=5.0),
        alarms,
        product="fraud",
        codec=codec,
        rules=rules,
        outcomes=OutcomeStore(
            RedisStore(store_url, deadline_s=5.0),
            product="fraud",
            mildest=rules.mildest,
        ),
        metrics=AlarmMetrics("fraud"),
        stopped=stopped,
        report=report,
        **options,
    )


def redis_source(url: str) -> RedisSource:
    """Open the readings, as one consumer of a group."""
    return RedisSource(url, feed=READINGS, group="alarms", lease_s=LEASE_S)


def send_readings(url: str, readings: Sequence[bytes]) -> None:
    """Put readings on the feed."""
    feed = RedisFeed(url, feed=READINGS)
    feed.send([b"m"] * len(readings), readings)
    feed.close()


def stored_alarms(client: redis.Redis) -> list[dict[str, Any]]:
    """Read the alarms of a Redis stream, in their order."""
    return [json.loads(fields[b"event"]) for _, fields in client.xrange(f"{ALARMS}:0")]


def dead_readings(client: redis.Redis) -> Iterator[tuple[bytes, str]]:
    """Read the dead letters of the readings: message and reason."""
    for _, fields in client.xrange(f"{READINGS}:dead-letters"):
        yield fields[b"event"], fields[b"reason"].decode()
