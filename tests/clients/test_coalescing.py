"""Calls that are under way together share requests, and nothing else."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clients.purchases import PATIENT, RULE, SHORT_S
from tollgate.testing import Answer, TestServer
from tollgate_client import (
    AsyncDecisionClient,
    Coalescing,
    InvalidRequest,
    Options,
    RetryRules,
    Unavailable,
)

AHEAD_US = 2**62  # a day ahead and more: the server finds it, not the client


def purchase(name, amount=1.0, event_time=1_600_000_000_000_000):
    """A purchase by name."""
    return {
        "transaction_id": name,
        "customer_id": "c",
        "terminal_id": "m",
        "amount": amount,
        "event_time": event_time,
    }


def echo(row):
    """Answer with the row's own amount, and say whether it was dry."""
    score = float(row.values["amount"]) / 1024
    return Answer(score=score, release="dry" if row.dry_run else "wet")


@pytest.fixture(scope="module")
def echoing():
    """A server that answers by the row."""
    with TestServer() as one:
        one.answer_by(echo)
        yield one


def requests_of(server, since=0):
    """Group the rows that came by the request they came in."""
    found = defaultdict(list)
    for row in server.asked[since:]:
        found[row.request].append(row)
    return list(found.values())


def run(main, server, *, coalescing=None, options=PATIENT):
    """Run a function of a client inside an event loop."""

    async def inside():
        async with AsyncDecisionClient(
            [server.url],
            fallback=RULE,
            options=options,
            coalescing=coalescing or Coalescing(),
        ) as client:
            await client.wait_ready(30)
            return await main(client)

    return asyncio.run(inside())


async def told(call):
    """Wait for a call, and give its error as a value."""
    try:
        return await call
    except InvalidRequest as error:
        return error


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["good", "good", "good", "bad", "wrong", "cancelled"]),
        st.booleans(),  # dry
        st.integers(0, 3),  # turns of the loop before it is asked
    ),
    min_size=1,
    max_size=80,
)


@settings(deadline=None, max_examples=40)
@given(rows=ROWS, size=st.integers(1, 32))
def test_each_caller_gets_its_own_answer_whoever_shares_its_request(
    echoing, rows, size
):
    """Good ones theirs, bad ones their error, dry and wet apart, none too many."""
    since = len(echoing.asked)

    async def one(client, number, kind, dry, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        amount = 0.001 if kind == "wrong" else float(number)
        time_us = AHEAD_US if kind == "bad" else 1_600_000_000_000_000
        row = purchase(f"t{number}", amount, time_us)
        return await told(client.decide(row, dry_run=dry))

    async def main(client):
        tasks = [
            asyncio.ensure_future(one(client, number, *row))
            for number, row in enumerate(rows)
        ]
        await asyncio.sleep(0)
        for task, (kind, _, _) in zip(tasks, rows, strict=True):
            if kind == "cancelled":
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = run(main, echoing, coalescing=Coalescing(rows=size))
    for number, (answer, (kind, dry, _)) in enumerate(zip(answers, rows, strict=True)):
        if kind == "good":
            assert (answer.source, answer.score) == ("model", number / 1024)
            assert answer.release == ("dry" if dry else "wet")
        elif kind == "bad":
            assert str(answer).endswith("is over a day ahead")
        elif kind == "wrong":
            assert str(answer) == "amount: 0.001: is not in whole cents"
        else:
            assert isinstance(answer, asyncio.CancelledError)
    sent = requests_of(echoing, since)
    assert all(len(request) <= size for request in sent)
    assert all(len({row.dry_run for row in request}) == 1 for request in sent)
    ids = [row.transaction_id for request in sent for row in request]
    assert len(ids) == len(set(ids))


def test_what_is_asked_in_one_turn_of_the_loop_goes_at_once_and_together(server):
    """70 calls are requests of 32, 32 and 6, and one alone does not wait."""

    async def main(client):
        await client.decide(purchase("alone"))
        calls = [client.decide(purchase(f"t{number}")) for number in range(70)]
        return await asyncio.gather(*calls)

    # A wait of ten minutes would show.
    answers = run(main, server, coalescing=Coalescing(wait_s=600.0))
    assert {answer.source for answer in answers} == {"model"}
    alone, *together = [len(request) for request in requests_of(server)]
    # Which of those under way at once arrives first is the server's affair.
    assert (alone, sorted(together)) == (1, [6, 32, 32])


def test_rows_wait_for_a_request_to_return_and_then_go_together(server):
    """While one is on its way, ten gather; its return sends them."""

    async def main(client):
        server.slow(0.05, requests=1)
        first = asyncio.ensure_future(client.decide(purchase("first")))
        while not server.asked:
            await asyncio.sleep(0.001)
        later = []
        for number in range(10):
            later.append(asyncio.ensure_future(client.decide(purchase(f"t{number}"))))
            await asyncio.sleep(0)
        return await asyncio.gather(first, *later)

    run(main, server, coalescing=Coalescing(wait_s=600.0))
    assert [len(request) for request in requests_of(server)] == [1, 10]


def test_rows_do_not_wait_for_a_stalled_request_beyond_their_patience(server):
    """The request before them never returns; they are sent after the wait."""

    async def main(client):
        server.stall(requests=1)
        first = asyncio.ensure_future(client.decide(purchase("first"), deadline_s=2.0))
        while not server.asked:
            await asyncio.sleep(0.001)
        second = await client.decide(purchase("second"))
        return second, first.done(), await first

    second, first_was_done, first = run(main, server)
    assert second.source == "model"
    assert not first_was_done
    assert first.source == "fallback"


def test_each_caller_has_its_own_deadline(server):
    """Of two in one stalled request, one gives up and the other is answered."""

    async def main(client):
        server.stall()
        short = asyncio.ensure_future(client.decide(purchase("a"), deadline_s=SHORT_S))
        long = asyncio.ensure_future(client.decide(purchase("b")))
        gave_up = await short
        server.heal()
        return gave_up, await long

    gave_up, answered = run(main, server)
    assert (gave_up.source, gave_up.why) == ("fallback", "no answer in time")
    assert answered.source == "model"
    (request,) = requests_of(server)
    assert [row.transaction_id for row in request] == ["a", "b"]
    assert request[0].deadline_us > 20e6


def test_a_call_that_gave_up_knows_the_answer_the_next_time(server):
    """The late answer is kept: it is what the server holds for this id."""

    async def main(client):
        server.stall()
        server.answer("a", Answer("decline", 0.9))
        short = asyncio.ensure_future(client.decide(purchase("a"), deadline_s=SHORT_S))
        long = asyncio.ensure_future(client.decide(purchase("b")))
        first = await short
        server.heal()
        await long
        server.drop()
        return first, await client.decide(purchase("a"), deadline_s=SHORT_S)

    first, second = run(main, server)
    assert first.source == "fallback"
    assert (second.source, second.decision) == ("cached", "decline")


def test_a_cancelled_caller_is_not_sent_and_disturbs_no_other(server):
    """Cancelled before the request goes, it is not in it; after, nobody notices."""

    async def main(client):
        early = asyncio.ensure_future(client.decide(purchase("early")))
        stays = asyncio.ensure_future(client.decide(purchase("stays")))
        await asyncio.sleep(0)
        early.cancel()
        await stays
        server.slow(0.05)
        goes = asyncio.ensure_future(client.decide(purchase("goes")))
        other = asyncio.ensure_future(client.decide(purchase("other")))
        while len(server.asked) < 3:
            await asyncio.sleep(0.001)
        goes.cancel()
        return await stays, await other

    answers = run(main, server)
    assert {answer.source for answer in answers} == {"model"}
    ids = [[row.transaction_id for row in one] for one in requests_of(server)]
    assert ids == [["stays"], ["goes", "other"]]


def test_a_request_of_bad_rows_tells_each_its_own(server):
    """All refused together, each caller hears of its own row."""

    async def main(client):
        calls = [client.decide(purchase(f"t{n}", n, AHEAD_US + n)) for n in range(3)]
        return await asyncio.gather(*(told(call) for call in calls))

    answers = run(main, server)
    assert [str(answer) for answer in answers] == [
        f"event_time: {AHEAD_US + number}: is over a day ahead" for number in range(3)
    ]


def test_trouble_of_the_server_is_a_decision_for_each(server):
    """By the rule, by each one's own amount; counted as what callers were told."""

    async def main(client):
        server.fail("INTERNAL", words="Stub process is not healthy.")
        calls = [client.decide(purchase(f"t{n}", 49.0 + n)) for n in range(3)]
        answers = await asyncio.gather(*calls)
        return answers, client.counters.snapshot()

    answers, counts = run(main, server)
    assert [answer.decision for answer in answers] == ["approve", "review", "review"]
    assert {answer.source for answer in answers} == {"fallback"}
    assert counts["decisions", "fallback"] == 3
    assert counts["calls", "failed"] == 1


def test_a_request_carries_the_first_trace_there_is(server):
    """It can have one only."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def main(client):
        calls = [
            client.decide(purchase("a")),
            client.decide(purchase("b"), traceparent=trace),
            client.decide(purchase("c"), traceparent=trace.replace("4b", "5b")),
        ]
        await asyncio.gather(*calls)

    run(main, server)
    assert {row.metadata["traceparent"] for row in server.asked} == {trace}


def test_without_coalescing_each_call_is_a_request(server):
    """And rows that are asked for together are one, in either case."""

    async def main():
        async with AsyncDecisionClient(
            [server.url], fallback=RULE, options=PATIENT, coalescing=None
        ) as client:
            await asyncio.gather(*(client.decide(purchase(f"t{n}")) for n in range(5)))
            rows = await client.decide_rows(
                [purchase("a"), purchase("b", amount=-1.0), purchase("c")]
            )
            server.stall()
            late = await client.decide(purchase("late"), deadline_s=SHORT_S)
            return rows, late

    (a, b, c), late = asyncio.run(main())
    assert sorted(len(one) for one in requests_of(server)) == [1, 1, 1, 1, 1, 1, 2]
    assert (a.source, str(b), c.source) == (
        *("model", "amount: -1.0: is negative", "model"),
    )
    assert late.source == "fallback"


def test_a_mistake_of_ours_leaves_no_caller_waiting(server):
    """A token that cannot be had is raised in each call."""

    def no_token():
        raise LookupError("no token today")

    async def main(client):
        calls = [client.decide(purchase(f"t{n}")) for n in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    options = Options(deadline_s=30.0, token=no_token, retry=RetryRules(attempts=1))
    answers = run(main, server, options=options)
    assert [str(answer) for answer in answers] == ["no token today"] * 3


def test_wait_ready_names_who_is_away():
    """As the client without asyncio does."""

    async def main():
        async with AsyncDecisionClient(["127.0.0.1:1"], fallback=RULE) as client:
            with pytest.raises(Unavailable, match=r"no connection to 127\.0\.0\.1:1"):
                await client.wait_ready(0.2)

    asyncio.run(main())


def test_rows_of_one_call_share_requests_with_others(echoing):
    """An invalid row keeps its place; the others are decided in requests of 32."""
    since = len(echoing.asked)
    rows = [purchase(f"each-{number}", float(number)) for number in range(40)]
    rows[3] = purchase("each-3", -1.0)

    async def main(client):
        alone = client.decide(purchase("each-alone", 512.0))
        return await asyncio.gather(client.decide_each(rows), alone)

    many, alone = run(main, echoing)
    assert isinstance(many[3], InvalidRequest)
    assert [one.score for at, one in enumerate(many) if at != 3] == [
        number / 1024 for number in range(40) if number != 3
    ]
    assert alone.score == 0.5
    assert sorted(map(len, requests_of(echoing, since))) == [8, 32]


def test_rows_of_one_call_need_no_shared_requests(echoing):
    """A client that sends each call alone sends 32 rows in a request."""
    since = len(echoing.asked)
    rows = [purchase(f"lone-{number}", float(number)) for number in range(33)]

    async def main():
        async with AsyncDecisionClient(
            echoing.url, fallback=RULE, options=PATIENT, coalescing=None
        ) as client:
            return await client.decide_each(rows)

    found = asyncio.run(main())
    assert [one.score for one in found] == [number / 1024 for number in range(33)]
    assert sorted(map(len, requests_of(echoing, since))) == [1, 32]


def test_a_late_call_of_several_rows_is_decided_by_the_rule():
    """All of its rows, at its own deadline."""
    with TestServer() as server:
        server.stall()

        async def main(client):
            rows = [purchase("late-1"), purchase("late-2", 99.0)]
            return await client.decide_each(rows, deadline_s=SHORT_S)

        found = run(main, server)
        server.heal()
    assert [(one.decision, one.source) for one in found] == [
        ("approve", "fallback"),
        ("review", "fallback"),
    ]
