"""The client that always answers, against servers that do what they are told."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.clients.purchases import PATIENT, RULE, SHORT_S, purchase
from tollgate.testing import Answer
from tollgate_client import DecisionClient, InvalidRequest, register

CHECKOUT = Path(__file__).parents[2]


def test_a_servers_answer_is_the_models(server, client):
    """Every output arrives, and the deadline goes with the request."""
    answer = Answer("decline", 0.75, ("SCORE_DECLINE", "NIGHT"), 5, "", "fraud-7")
    server.answer("t1", answer)
    told = client.decide(purchase(), deadline_s=20.0)
    assert (told.decision, told.source, told.score) == ("decline", "model", 0.75)
    assert told.reason_codes == ("SCORE_DECLINE", "NIGHT")
    assert (told.degraded, told.release, told.why) == (5, "fraud-7", "")
    assert told.latency_s > 0
    (asked,) = server.asked
    assert 19e6 < asked.deadline_us <= 20e6
    assert asked.values == purchase()


def test_dry_run_and_trace_reach_the_server(server, client):
    """As parameter and metadata; what is no trace context stays here."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    client.decide(purchase(), dry_run=True, traceparent=trace)
    client.decide(purchase(), traceparent="my trace")
    first, second = server.asked
    assert (first.dry_run, second.dry_run) == (True, False)
    assert first.metadata["traceparent"] == trace
    assert "traceparent" not in second.metadata


def test_a_mistake_in_the_purchase_is_the_callers_to_know(server, client):
    """Found here nothing is sent; found there the server's words arrive."""
    with pytest.raises(InvalidRequest, match=r"^amount: -1\.0: is negative$"):
        client.decide(purchase(amount=-1))
    assert server.asked == []
    with pytest.raises(InvalidRequest, match=r"is over a day ahead$"):
        client.decide(purchase(event_time=2**62))
    server.answer("t9", Answer(error="transaction_id: t9: conflict"))
    with pytest.raises(InvalidRequest, match=r"^transaction_id: t9: conflict$"):
        client.decide(purchase(9))


def test_a_mistake_is_one_even_when_no_server_answers(server, client):
    """A negative amount is below 50, and is not approved for that."""
    server.drop()
    with pytest.raises(InvalidRequest, match="is negative"):
        client.decide(purchase(amount=-1), deadline_s=SHORT_S)


def test_rows_are_answered_each_by_itself(server, client):
    """A wrong one stands in its place, whoever found it."""
    server.answer("t3", Answer("review", 0.5))
    rows = [
        purchase(1),
        purchase(2, amount=0.001),
        purchase(3),
        purchase(4, event_time=2**62),
    ]
    told = client.decide_rows(rows)
    assert [getattr(one, "decision", None) for one in told] == [
        *("approve", None, "review", None)
    ]
    assert str(told[1]) == "amount: 0.001: is not in whole cents"
    assert "is over a day ahead" in str(told[3])
    only_wrong = client.decide_rows([purchase(4, event_time=2**62)] * 2)
    assert all("is over a day ahead" in str(one) for one in only_wrong)
    with pytest.raises(InvalidRequest, match="33 rows; a request holds 1 to 32"):
        client.decide_rows([purchase()] * 33)


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"]
)
def test_trouble_of_a_server_is_never_an_error(server, client, code):
    """The rule decides, and says why."""
    server.fail(code, words="Stub process is not healthy.")
    told = client.decide(purchase(amount=49.99))
    assert (told.decision, told.source) == ("approve", "fallback")
    assert math.isnan(told.score)
    assert "Stub process is not healthy." in told.why
    assert client.decide(purchase(amount=50)).decision == "review"


def test_a_stalled_server_costs_the_deadline_and_no_more(server, client):
    """The rule decides then."""
    server.stall()
    told = client.decide(purchase(), deadline_s=SHORT_S)
    assert told.source == "fallback"
    assert "no answer within" in told.why


def test_no_time_is_an_answer_at_once(server, client):
    """Zero, less, and NaN; nothing is sent."""
    for left_s in (0, -1, math.nan):
        assert client.decide(purchase(), deadline_s=left_s).source == "fallback"
    assert server.asked == []


def test_time_that_ran_out_in_the_server_is_no_mistake_of_the_callers(server, client):
    """Its row error becomes a decision by the rule."""
    server.answer("t1", Answer(error="deadline_us: no time left"))
    told = client.decide(purchase())
    assert (told.source, told.why) == ("fallback", "deadline_us: no time left")


def test_what_a_server_decided_before_is_used_when_none_answers(server, client):
    """For the same purchase; not for another content, not for a dry run."""
    server.answer("t1", Answer("decline", 0.9, ("SCORE_DECLINE",), 4))
    assert client.decide(purchase()).source == "model"
    client.decide(purchase(2), dry_run=True)
    server.drop()
    again = client.decide(purchase(), deadline_s=SHORT_S)
    assert (again.decision, again.source, again.degraded) == ("decline", "cached", 4)
    assert again.why
    for other in (purchase(amount=13), purchase(2), purchase(3)):
        assert client.decide(other, deadline_s=SHORT_S).source == "fallback"
    dry = client.decide(purchase(), dry_run=True, deadline_s=SHORT_S)
    assert dry.source == "fallback"


def test_threads_may_share_it(server, client):
    """200 calls of eight threads: each its own answer, all of them counted."""
    server.answer_by(lambda row: Answer(score=float(row.values["amount"]) / 1024))
    with ThreadPoolExecutor(8) as pool:
        told = list(
            pool.map(lambda number: client.decide(purchase(number, number)), range(200))
        )
    assert [one.score for one in told] == [number / 1024 for number in range(200)]
    assert client.counters["decisions", "model"] == 200


def test_a_server_that_is_stopped_or_a_name_that_is_none_costs_the_deadline():
    """SIGSTOP of a process, and a host that no name service knows."""
    code = (
        "from tollgate.testing import TestServer\n"
        "with TestServer() as one: print(one.url, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        url = child.stdout.readline().strip()
        with DecisionClient([url], fallback=RULE, options=PATIENT) as client:
            assert client.decide(purchase()).source == "model"
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)  # it may run on for a moment
            try:
                told = client.decide(purchase(2), deadline_s=SHORT_S)
            finally:
                os.kill(child.pid, signal.SIGCONT)
            assert told.source == "fallback"
        child.communicate("\n")
    with DecisionClient(["no-such-host.invalid:8001"], fallback=RULE) as client:
        assert client.decide(purchase(), deadline_s=SHORT_S).source == "fallback"


def test_prometheus_reads_what_is_counted(server, client):
    """Decisions by source, calls by outcome, mistakes, and the breaker's state."""
    registry = CollectorRegistry()
    register(client, registry)
    client.decide(purchase())
    with pytest.raises(InvalidRequest):
        client.decide(purchase(amount=-1))
    server.fail("INTERNAL")
    client.decide(purchase(2))
    told = generate_latest(registry).decode().splitlines()
    for line in (
        'tollgate_client_decisions_total{source="model"} 1.0',
        'tollgate_client_decisions_total{source="fallback"} 1.0',
        'tollgate_client_refused_total{by="client"} 1.0',
        'tollgate_client_calls_total{outcome="answered"} 1.0',
        'tollgate_client_calls_total{outcome="failed"} 1.0',
        'tollgate_client_fallbacks_total{after="failed"} 1.0',
        f'tollgate_client_breaker_state{{address="{server.url}"}} 0.0',
        f'tollgate_client_breaker_opened_total{{address="{server.url}"}} 0.0',
    ):
        assert line in told
