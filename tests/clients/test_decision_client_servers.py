"""Which server is asked, how often, and which one is left alone."""

from __future__ import annotations

import socket

import pytest

from tests.support.clients.purchases import ONCE, PATIENT, RULE, purchase
from tollgate.testing import TestServer
from tollgate_client import (
    BreakerRules,
    DecisionClient,
    Options,
    RetryRules,
    Unavailable,
)
from tollgate_client.breaker import State


def test_a_broken_connection_is_asked_once_more(server, client):
    """One failure is made good within the deadline; two are not."""
    server.fail("UNAVAILABLE", requests=1)
    assert client.decide(purchase()).source == "model"
    assert len(server.asked) == 2
    assert client.counters["retries", "failed"] == 1
    server.fail("UNAVAILABLE", requests=2)
    assert client.decide(purchase(2)).source == "fallback"


@pytest.mark.parametrize("code", ["INTERNAL", "UNAUTHENTICATED", "DEADLINE_EXCEEDED"])
def test_the_same_server_is_not_asked_again_for_what_it_said(server, client, code):
    """Only a lost connection can be better a moment later."""
    server.fail(code)
    client.decide(purchase())
    assert len(server.asked) == 1


@pytest.mark.parametrize("trouble", ["fail", "stall", "drop"])
def test_another_server_answers_within_the_deadline(server, trouble):
    """Every call is the model's, whichever of the two comes first."""
    with (
        TestServer() as other,
        DecisionClient(
            [server.url, other.url], fallback=RULE, options=Options(deadline_s=2.0)
        ) as client,
    ):
        if trouble == "fail":
            server.fail("INTERNAL")
        else:
            getattr(server, trouble)()
        told = [client.decide(purchase(number)) for number in range(12)]
        assert {one.source for one in told} == {"model"}
        assert client.addresses[0].breaker.state is State.OPEN
        assert {row.transaction_id for row in other.asked} == {
            f"t{number}" for number in range(12)
        }


def test_an_overloaded_server_is_not_asked_again_and_is_not_away(server):
    """Each call is told so once, at once; the breaker stays closed."""
    with DecisionClient([server.url], fallback=RULE, options=PATIENT) as client:
        server.fail("UNAVAILABLE", words="in ensemble 'fraud', overloaded: later")
        told = [client.decide(purchase(number)) for number in range(30)]
        assert {one.source for one in told} == {"fallback"}
        assert client.addresses[0].breaker.state is State.CLOSED
        assert client.counters["calls", "overloaded"] == len(server.asked) == 30
        assert client.counters["fallbacks", "overloaded"] == 30
        assert not client.counters["retries", "overloaded"]


def test_another_server_has_room(server):
    """A refusal leaves time to ask elsewhere, within the budget of retries."""
    with (
        TestServer() as other,
        DecisionClient(
            [server.url, other.url], fallback=RULE, options=PATIENT
        ) as client,
    ):
        server.fail("UNAVAILABLE", words="overloaded: later")
        told = [client.decide(purchase(number)) for number in range(20)]
        assert {one.source for one in told} == {"model"}
        assert client.counters["retries", "overloaded"] > 0


def test_retries_end_with_their_budget(server):
    """A service in trouble is not asked twice for everything."""
    options = Options(
        deadline_s=30.0,
        retry=RetryRules(share=0.0, burst=3),
        breaker=BreakerRules(failures_in_a_row=1000, failed_share=2.0),
    )
    with DecisionClient([server.url], fallback=RULE, options=options) as client:
        server.fail("UNAVAILABLE")
        for number in range(10):
            assert client.decide(purchase(number)).source == "fallback"
    assert len(server.asked) == 13


def test_a_server_in_trouble_is_left_alone_and_found_again(server):
    """With its breaker open nothing is sent; a trial finds it well again."""
    options = Options(deadline_s=30.0, retry=ONCE, breaker=BreakerRules(open_s=0.05))
    with DecisionClient([server.url], fallback=RULE, options=options) as client:
        server.fail("INTERNAL")
        for number in range(5):
            client.decide(purchase(number))
        state = client.addresses[0].breaker
        assert state.state is State.OPEN
        server.heal()
        before = len(server.asked)
        while client.decide(purchase(7)).source != "model":
            assert len(server.asked) == before
        assert state.state is State.CLOSED


def test_little_time_does_not_speak_against_a_server(server):
    """Ten calls of a millisecond that run out leave the breaker closed."""
    options = Options(retry=ONCE)
    with DecisionClient([server.url], fallback=RULE, options=options) as client:
        server.stall()
        for number in range(10):
            assert client.decide(purchase(number), deadline_s=1e-3).source == "fallback"
        assert client.addresses[0].breaker.state is State.CLOSED


def test_servers_are_asked_in_turn(server):
    """Half of the calls each; likewise behind one name that stands for both."""
    with TestServer() as other:
        ports = [one.url.rpartition(":")[2] for one in (server, other)]
        with DecisionClient(
            [server.url, other.url], fallback=RULE, options=PATIENT
        ) as client:
            for number in range(20):
                client.decide(purchase(number))
        assert (len(server.asked), len(other.asked)) == (10, 10)
        name = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with DecisionClient(name, fallback=RULE, options=PATIENT) as client:
            client.wait_ready(30)
            for number in range(40):
                assert client.decide(purchase(number)).source == "model"
        assert len(server.asked) > 10
        assert len(other.asked) > 10


def test_wait_ready_names_who_is_away(server, client):
    """And decisions can be asked for all the same."""
    client.wait_ready(30)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"127.0.0.1:{closed.getsockname()[1]}"
    options = Options(deadline_s=30.0)
    with DecisionClient([server.url, away], fallback=RULE, options=options) as both:
        with pytest.raises(Unavailable, match=f"^no connection to {away} within"):
            both.wait_ready(0.5)
        assert both.decide(purchase()).source == "model"
