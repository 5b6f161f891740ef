"""The client that always answers, against servers that do what they are told."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from certificates import make_authority, make_certificate
from prometheus_client import CollectorRegistry, generate_latest

from clients.breaker import BreakerRules, State
from clients.counters import register
from clients.decision_client import DecisionClient
from clients.fallback import Band, Fallback
from clients.options import Options, Tls, tls_from
from clients.retry import RetryRules
from tollgate.errors import InputError, InvalidRequest, Unavailable
from tollgate.testing import Answer, TestServer
from tollgate.testing.server import ServerTls

CHECKOUT = Path(__file__).parents[2]
RULE = Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")
PATIENT = Options(deadline_s=30.0)
SHORT_S = 0.1  # for calls that are not to be answered by a server
ONCE = RetryRules(attempts=1)


def purchase(number=1, amount=12.34, **more):
    """A purchase by number."""
    return {
        "transaction_id": f"t{number}",
        "customer_id": "c",
        "terminal_id": "m",
        "amount": amount,
        "event_time": 1_600_000_000_000_000,
        **more,
    }


@pytest.fixture
def server():
    """A server of its own for each test."""
    with TestServer() as one:
        yield one


@pytest.fixture
def client(server):
    """A client with patience."""
    with DecisionClient([server.url], fallback=RULE, options=PATIENT) as one:
        yield one


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


def test_what_can_wait_says_so(server):
    """As metadata of each request, which a gateway reads; others say nothing."""
    for bulk in (True, False):
        options = Options(deadline_s=30.0, bulk=bulk)
        with DecisionClient([server.url], fallback=RULE, options=options) as client:
            client.decide(purchase())
        assert server.asked[-1].metadata.get("tollgate-class") == (
            "bulk" * bulk or None
        )


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
            try:
                told = client.decide(purchase(2), deadline_s=SHORT_S)
            finally:
                os.kill(child.pid, signal.SIGCONT)
            assert told.source == "fallback"
        child.communicate("\n")
    with DecisionClient(["no-such-host.invalid:8001"], fallback=RULE) as client:
        assert client.decide(purchase(), deadline_s=SHORT_S).source == "fallback"


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


def test_large_requests_travel_gzipped_when_that_is_wanted(server):
    """The server reads both alike."""
    options = Options(deadline_s=30.0, compress_above_bytes=1500)
    with DecisionClient([server.url], fallback=RULE, options=options) as client:
        told = client.decide_rows([purchase(number) for number in range(32)])
        assert [one.source for one in told] == ["model"] * 32
        assert client.decide(purchase()).source == "model"
    assert len(server.asked) == 33


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


@pytest.mark.parametrize(
    ("addresses", "options", "words"),
    [
        ([], Options(), "addresses: there is none"),
        (["a:1", "a:1"], Options(), "addresses: 'a:1' is empty or stands twice"),
        (["far:1"], Options(token="s"), "token: a token to far:1 needs TLS"),
        (["a:1"], Options(inputs={"id": "BYTES"}), "bands need an input amount"),
    ],
)
def test_what_does_not_fit_together_is_refused_at_once(addresses, options, words):
    """Where the client is made."""
    with pytest.raises(InputError, match=words):
        DecisionClient(addresses, fallback=RULE, options=options)


def test_options_that_make_no_sense_are_refused(tmp_path):
    """No deadline, a certificate without its key, a file that is not there."""
    with pytest.raises(InputError, match="deadline_s: 0 is not above 0"):
        Options(deadline_s=0)
    with pytest.raises(InputError, match="certificate and key come together"):
        Tls(certificate=b"x")
    with pytest.raises(InputError, match=r"ca\.pem: No such file"):
        tls_from(authority=tmp_path / "ca.pem")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates: of the server, of a caller, of a stranger."""
    path = tmp_path_factory.mktemp("certificates")
    ca = make_authority(path, "ca")
    make_certificate(ca, "server", of="DNS:fraud.test")
    make_certificate(ca, "caller", of="DNS:shop.test")
    make_certificate(make_authority(path, "other"), "stranger", of="DNS:shop.test")
    return path


def test_tls_mtls_and_token(folder):
    """Who is certified and brings the token is answered, a stranger is not."""
    proof = ServerTls(
        certificate=(folder / "server.pem").read_bytes(),
        key=(folder / "server.key").read_bytes(),
        callers=(folder / "ca.pem").read_bytes(),
    )

    def source(name, authority="ca"):
        tls = tls_from(
            authority=folder / f"{authority}.pem",
            certificate=folder / f"{name}.pem",
            key=folder / f"{name}.key",
            server_name="fraud.test",
        )
        options = Options(deadline_s=5.0, tls=tls, token=lambda: "s3cret", retry=ONCE)
        with DecisionClient([server.url], fallback=RULE, options=options) as client:
            return client.decide(purchase()).source

    with TestServer(tls=proof) as server:
        assert source("caller") == "model"
        assert server.asked[0].metadata["authorization"] == "Bearer s3cret"
        assert source("stranger") == "fallback"
        assert source("caller", authority="other") == "fallback"
        assert len(server.asked) == 1
