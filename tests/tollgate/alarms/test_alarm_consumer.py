"""Readings become decisions, and decisions alarms: in order, at least once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.checkout import checkout_environment
from tests.support.stream.alarm_chain import (
    ALARMS,
    NOW_US,
    SPEC,
    amounts,
    dead_readings,
    make_consumer,
    reading,
    redis_source,
    send_readings,
    stored_alarms,
)
from tollgate.alarms.consumer import AlarmConsumer
from tollgate.alarms.readings import ReadingCodec, Readings
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.schema import Degraded
from tollgate.stream.redis_streams import RedisFeed
from tollgate.testing import Answer, TestServer
from tollgate.testing.script import Asked

LONG_S = 60.0


def by_amount(row: Asked) -> Answer:
    """Approve below 100, review below 1,000, decline above."""
    amount = float(str(row.values["amount"]))
    if amount < 100:
        return Answer("approve", 0.125)
    if amount < 1_000:
        return Answer("review", math.nan, ("LARGE",), degraded=4)
    return Answer("decline", 0.75, ("LARGE", "HUGE"))


@pytest.fixture
def server() -> Iterator[TestServer]:
    """A server that decides by the amount."""
    with TestServer() as one:
        one.answer_by(by_amount)
        yield one


@pytest.fixture
def stopped() -> threading.Event:
    """The event that ends a consumer."""
    return threading.Event()


@pytest.fixture
def consumer_of(
    spec: FeatureSpec, store_url: str, server: TestServer, stopped: threading.Event
) -> Iterator[Callable[..., AlarmConsumer]]:
    """Make consumers over Redis Streams; their parts are closed after the test."""
    opened: list[AlarmConsumer] = []

    def make(**options: Any) -> AlarmConsumer:
        consumer = make_consumer(
            redis_source(store_url),
            RedisFeed(store_url, feed=ALARMS),
            spec=spec,
            store_url=store_url,
            server_url=server.url,
            stopped=stopped,
            **options,
        )
        opened.append(consumer)
        return consumer

    yield make
    for one in opened:
        one._source.close()
        one._alarms.close()
        one._scorer.close()


def drain(consumer: AlarmConsumer, readings: int) -> None:
    """Step until so many readings were handled."""
    until_s = time.monotonic() + LONG_S
    while readings > 0:
        assert time.monotonic() < until_s
        readings -= consumer.step(wait_s=0.05)


def test_a_change_of_the_outcome_is_one_alarm(
    store_url: str,
    redis_client: redis.Redis,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """Onset, worsening and end, with the outcome before; of each machine alone."""
    sent = amounts([1, 200, 300, 5_000, 6_000, 2, 3])
    sent += amounts([500], machine="other")
    send_readings(store_url, sent)
    drain(consumer_of(), len(sent))
    found = stored_alarms(redis_client)
    mine = [one for one in found if one["entities"]["customer_id"] == "m"]
    assert [(one["reading_id"], one["previous"], one["decision"]) for one in mine] == [
        ("m-r1", "approve", "review"),
        ("m-r3", "review", "decline"),
        ("m-r5", "decline", "approve"),
    ]
    assert len(found) == 4
    first = mine[0]
    assert uuid.UUID(first.pop("alarm_id")).version == 5
    assert first == {
        "product": "fraud",
        "entities": {"customer_id": "m", "terminal_id": "line-1"},
        "reading_id": "m-r1",
        "event_time": NOW_US + 1,
        "decision": "review",
        "previous": "approve",
        "score": None,  # NaN has no form in JSON
        "reason_codes": ["LARGE"],
        "degraded": 4,
        "release": "test-1",
    }
    assert len({one["alarm_id"] for one in found if "alarm_id" in one}) == 3


def test_outcomes_survive_a_restart(
    store_url: str,
    redis_client: redis.Redis,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """Another consumer continues with the outcomes of the one before."""
    for values in ([200.0], [300.0], [1.0], [1.0]):
        name = f"{values[0]:.0f}-{redis_client.xlen('readings:0')}"
        send_readings(store_url, [reading(name, "m", amount=values[0])])
        consumer = consumer_of()
        drain(consumer, 1)
        consumer._source.close()
    decisions = [one["decision"] for one in stored_alarms(redis_client)]
    assert decisions == ["review", "approve"]


def test_readings_that_are_late_or_sent_again_change_no_outcome(
    store_url: str,
    redis_client: redis.Redis,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """One that raises an alarm is published, without an outcome before it."""
    sent = amounts([200, 300, 1])
    consumer = consumer_of()
    for part in (sent, sent, [reading("slow", "m", amount=5_000.0, at=-1)], sent[2:]):
        send_readings(store_url, part)
        drain(consumer, len(part))
    found = [
        (one["reading_id"], one["previous"]) for one in stored_alarms(redis_client)
    ]
    assert found == [("m-r0", "approve"), ("m-r2", "review"), ("slow", None)]


def test_a_clock_that_is_ahead_hides_no_later_reading(
    store_url: str,
    redis_client: redis.Redis,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """A reading of the future counts as one of the time at which it came."""
    now_us = time.time_ns() // 1000
    ahead_us = now_us + 3_600_000_000 - NOW_US
    consumer = consumer_of()
    send_readings(store_url, [reading("ahead", "m", at=ahead_us)])
    drain(consumer, 1)
    time.sleep(0.01)
    at = time.time_ns() // 1000 - NOW_US
    send_readings(store_url, [reading("next", "m", amount=200.0, at=at)])
    drain(consumer, 1)
    (alarm,) = stored_alarms(redis_client)
    assert (alarm["reading_id"], alarm["previous"]) == ("next", "approve")


def test_every_reading_may_be_reported_and_outcomes_chosen(
    store_url: str,
    redis_client: redis.Redis,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """Each declined reading is an alarm, no other one; none has a `previous`."""
    send_readings(store_url, amounts([1, 200, 5_000, 6_000]))
    drain(consumer_of(report="every", raising=["decline"]), 4)
    found = stored_alarms(redis_client)
    assert [one["reading_id"] for one in found] == ["m-r2", "m-r3"]
    assert {one["previous"] for one in found} == {None}


def test_bad_readings_are_dead_letters_with_their_reason(
    store_url: str,
    redis_client: redis.Redis,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """Unreadable ones, and those that the server answers with an error."""
    bad = [
        b"{",
        b"[]",
        b"\xff",
        json.dumps({"transaction_id": "x"}).encode(),
        reading("text", "m").replace(b"1.0", b'"1"'),
        reading("minus", "m", amount=-1.0),
        reading("long", "m" * 129),
        reading("bytes", "ü" * 100),
        reading("surrogate", "X").replace(b'"X"', b'"\\ud800"'),
        reading("huge", "m").replace(b"1.0", b"1e999"),
        reading("time", "m").replace(str(NOW_US).encode(), b"9" * 30),
    ]
    send_readings(store_url, [*bad, reading("good", "m", amount=200.0)])
    consumer = consumer_of()
    drain(consumer, 12)
    letters = dict(dead_readings(redis_client))
    assert set(letters) == set(bad)
    assert letters[bad[3]].endswith("missing required field `customer_id`")
    assert "$.amount" in letters[bad[4]]
    assert letters[bad[5]] == "amount: -1.0: is negative"
    assert [one["reading_id"] for one in stored_alarms(redis_client)] == ["good"]
    assert (consumer.decided, consumer.dead_letters) == (1, 11)


def test_the_readings_of_a_machine_are_requested_in_order(
    store_url: str, server: TestServer, consumer_of: Callable[..., AlarmConsumer]
) -> None:
    """Requests hold up to 32 rows, and are in flight for several machines."""
    sent = [
        reading(f"{machine}-{number}", f"machine-{machine}", at=number)
        for number in range(5)
        for machine in range(80)
    ]
    send_readings(store_url, sent)
    drain(consumer_of(), len(sent))
    for machine in range(80):
        mine = [
            int(str(row.transaction_id).partition("-")[2])
            for row in server.asked
            if row.values["customer_id"] == f"machine-{machine}"
        ]
        assert mine == list(range(5))
    rows = [row.request for row in server.asked]
    assert max(rows.count(number) for number in set(rows)) == 32
    assert all(row.deadline_us and row.deadline_us > 0 for row in server.asked)


def test_a_server_that_is_away_delays_and_loses_nothing(
    store_url: str,
    redis_client: redis.Redis,
    server: TestServer,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """Whatever the status, also one that says that the requests are wrong."""
    send_readings(store_url, amounts([200, 1, 300]))
    consumer = consumer_of()
    for code in ("UNAVAILABLE", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND"):
        server.fail(code, requests=2)
    server.fail("UNAUTHENTICATED", requests=2)
    drain(consumer, 3)
    assert consumer.retries >= 2
    assert len(stored_alarms(redis_client)) == 3
    assert redis_client.xpending("readings:0", "alarms")["pending"] == 0


def test_an_answer_without_the_store_is_requested_again(
    store_url: str,
    redis_client: redis.Redis,
    server: TestServer,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """A blind answer does not count while a better one may come."""
    times: list[str] = []

    def blind_twice(row: Asked) -> Answer | None:
        times.append(row.transaction_id)
        if len(times) <= 2:
            return Answer("approve", degraded=int(Degraded.STORE_UNAVAILABLE))
        return None

    server.answer_by(blind_twice)
    send_readings(store_url, amounts([200]))
    drain(consumer_of(), 1)
    assert times == ["m-r0"] * 3
    assert [one["decision"] for one in stored_alarms(redis_client)] == ["review"]


def test_a_stopped_consumer_commits_nothing(
    store_url: str,
    redis_client: redis.Redis,
    server: TestServer,
    stopped: threading.Event,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """The next consumer gets the batch."""
    send_readings(store_url, amounts([200, 300]))
    server.fail("UNAVAILABLE")
    consumer = consumer_of()
    stopping = threading.Timer(0.3, stopped.set)
    stopping.start()
    drain(consumer, 2)
    stopping.join()
    assert stored_alarms(redis_client) == []
    assert redis_client.xpending("readings:0", "alarms")["pending"] == 2


def test_an_unforeseen_error_ends_nothing(
    store_url: str,
    redis_client: redis.Redis,
    stopped: threading.Event,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """The batch that was polled before it is handled after it."""
    send_readings(store_url, amounts([200]))
    consumer = consumer_of()
    codec = consumer._codec
    errors = [ZeroDivisionError(), KeyError("unforeseen")]

    class Breaking:
        """A codec with two errors."""

        def decode(self, messages: list[bytes]) -> Readings:
            """Fail, or decode."""
            if errors:
                raise errors.pop()
            consumer._codec = codec
            return codec.decode(messages)

    consumer._codec = Breaking()  # type: ignore[assignment]
    thread = threading.Thread(target=consumer.run)
    thread.start()
    until_s = time.monotonic() + LONG_S
    while not stored_alarms(redis_client) and time.monotonic() < until_s:
        time.sleep(0.01)
    stopped.set()
    thread.join(LONG_S)
    assert errors == []
    assert [one["reading_id"] for one in stored_alarms(redis_client)] == ["m-r0"]


CHILD = """
import os, signal, sys, threading
from tests.support.stream.alarm_chain import *
from tollgate.features.spec.feature_spec import load_spec
store_url, server_url, at = sys.argv[1:]
def kill(step):
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)
consumer = make_consumer(
    redis_source(store_url), RedisFeed(store_url, feed=ALARMS), spec=load_spec(SPEC),
    store_url=store_url, server_url=server_url, stopped=threading.Event(), on_step=kill,
)
while True:
    consumer.step(wait_s=0.05)
"""


@pytest.mark.parametrize("step", ["decided", "sent", "published", "committed"])
def test_a_killed_consumer_loses_no_alarm(
    step: str,
    store_url: str,
    redis_client: redis.Redis,
    server: TestServer,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """SIGKILL at each step: alarms of redelivered readings have the same ids."""
    sent = amounts([1, 200, 1, 300, 5_000])
    send_readings(store_url, sent)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, store_url, server.url, step],
        env=checkout_environment(),
        timeout=LONG_S,
        check=False,
        capture_output=True,
    )
    assert child.returncode == -9, child.stderr
    before = stored_alarms(redis_client)
    more = [reading("later", "m", amount=1.0, at=9)]
    send_readings(store_url, more)
    consumer = consumer_of()
    left = 1 if step == "committed" else 6
    drain(consumer, left)
    found = stored_alarms(redis_client)
    assert found[: len(before)] == before
    by_id = {one["alarm_id"]: one["reading_id"] for one in found}
    assert sorted(by_id.values()) == ["later", "m-r1", "m-r2", "m-r3", "m-r4"]
    assert len(before) == (0 if step == "decided" else 4)
    assert found[-1]["previous"] == "decline"


def test_an_entity_that_the_product_lacks_is_refused(spec: FeatureSpec) -> None:
    """The error names those that it has."""
    assert ReadingCodec(spec, machine="terminal").machine_key == "terminal_id"
    with pytest.raises(InputError, match="'pump' is no entity of fraud; it has cust"):
        ReadingCodec(spec, machine="pump")


def test_an_answer_without_hysteresis_ends_no_alarm(
    store_url: str,
    redis_client: redis.Redis,
    server: TestServer,
    consumer_of: Callable[..., AlarmConsumer],
) -> None:
    """A raw level may begin or worsen an alarm; only one with state makes it milder."""
    unread = int(Degraded.HYSTERESIS_UNREAD)
    levels = [
        ("approve", 0),
        ("review", unread),
        ("approve", unread),
        ("decline", unread),
        ("review", unread),
        ("review", 0),
        ("approve", unread),
        ("approve", 0),
    ]

    def answer(row: Asked) -> Answer:
        decision, degraded = levels[int(row.transaction_id.partition("-r")[2])]
        return Answer(decision, 0.5, degraded=degraded)

    server.answer_by(answer)
    send_readings(store_url, amounts([1.0] * len(levels)))
    drain(consumer_of(), len(levels))
    found = stored_alarms(redis_client)
    assert [(one["reading_id"], one["previous"], one["decision"]) for one in found] == [
        ("m-r1", "approve", "review"),
        ("m-r3", "review", "decline"),
        ("m-r5", "decline", "review"),
        ("m-r7", "review", "approve"),
    ]


def test_keys_may_have_the_aliases_of_the_product(tmp_path: Path) -> None:
    """A reading under other names is the same reading; its own name counts first."""
    path = tmp_path / "features.yaml"
    path.write_text(
        SPEC.read_text()
        .replace("[TRANSACTION_ID]", "[TRANSACTION_ID, reading_id]")
        .replace("[CUSTOMER_ID]", "[pump]")
    )
    codec = ReadingCodec(load_spec(path))
    plain = reading("r-1", "pump-7", amount=12.5)
    renamed = plain.replace(b"transaction_id", b"reading_id")
    renamed = renamed.replace(b"customer_id", b"pump")
    both = renamed.replace(b"{", b'{"customer_id": "pump-8", ', 1)
    wrong = renamed.replace(b"12.5", b'"x"')
    found = codec.decode([plain, renamed, both, wrong])
    assert found.columns["transaction_id"] == ["r-1"] * 3
    assert found.machines == ["pump-7", "pump-7", "pump-8"]
    assert found.columns["amount"] == [12.5] * 3
    assert list(found.unreadable) == [3]
    assert "$.amount" in found.unreadable[3]
