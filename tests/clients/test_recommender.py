"""The client that always returns items, against servers that do what a test says."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime, timezone

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tritonclient.grpc import service_pb2

from tollgate.testing import RankedAnswer, TestServer
from tollgate_client import (
    AsyncRecommender,
    ClientError,
    FallbackItems,
    InputError,
    InvalidRequest,
    Options,
    RecommendationRequest,
    Recommender,
    fallback_items_from,
    register,
)
from tollgate_client.contract import RANKED_OUTPUTS, SHOP_FIELDS, SHOP_INPUTS
from tollgate_client.wire import ranked_rows_of

TIME_US = 1_760_000_000_000_000
BEST = tuple(f"best-{place}" for place in range(60))
CART = tuple(f"cart-{place}" for place in range(20))
OWN = FallbackItems(BEST, lists={"cart": CART})
PATIENT = Options(
    product="shop", inputs=SHOP_INPUTS, fields=SHOP_FIELDS, deadline_s=20.0
)
SHORT_S = 0.15
RANKED = RankedAnswer(
    items=tuple(f"i-{place}" for place in range(50)),
    scores=tuple(1 - place / 64 for place in range(50)),
    sources=("similar", "prepared:personal", "popular") + ("personal",) * 47,
    degraded=4,
    release="shop-3",
)


@pytest.fixture
def server():
    """Start a server that ranks."""
    with TestServer(
        "shop", inputs=SHOP_INPUTS, fields=SHOP_FIELDS, default=RANKED
    ) as one:
        yield one


@pytest.fixture
def client(server):
    """Connect a client with patience."""
    with Recommender([server.url], fallback=OWN, options=PATIENT) as one:
        yield one


def test_a_list_of_a_server_arrives_whole(server, client):
    """Items, scores, sources, bits and release; the request has all that was given."""
    answer = client.recommend(
        *("r-1", "carol"),
        count=4,
        slot="home",
        device="app",
        exclude=["x", "y", "x"],
        event_time=datetime.fromtimestamp(TIME_US / 1e6, timezone.utc),
    )
    assert answer.items == ("i-0", "i-1", "i-2", "i-3")
    assert answer.scores == (1.0, 1 - 1 / 64, 1 - 2 / 64, 1 - 3 / 64)
    assert answer.sources == ("similar", "prepared:personal", "popular", "personal")
    assert (answer.source_of_list, answer.degraded) == ("server", 4)
    assert (answer.release, answer.why, len(answer)) == ("shop-3", "", 4)
    assert answer.latency_s > 0
    (row,) = server.asked
    assert (row.transaction_id, row.count, row.dry_run) == ("r-1", 4, False)
    assert 19e6 < row.deadline_us <= 20e6
    assert row.values == {
        "request_id": "r-1",
        "user_id": "carol",
        "event_time": TIME_US,
        "slot": "home",
        "device": "app",
        "exclude": "x|y",
    }


def test_an_excluded_or_repeated_item_is_replaced(server, client):
    """Even if a server sends it; the client's own list follows the server's items."""
    server.answer("r-1", RankedAnswer(items=("a", "b", "a", "best-0", "c")))
    answer = client.recommend("r-1", "carol", count=5, exclude=("b", "best-1"))
    assert answer.items == ("a", "best-0", "c", "best-2", "best-3")
    assert answer.sources == ("personal",) * 3 + ("client",) * 2
    assert answer.scores[:3] == pytest.approx((1, 1 / 4, 1 / 5))
    assert all(math.isnan(score) for score in answer.scores[3:])
    assert answer.source_of_list == "server"
    assert answer.why == "the server gave 3 of 5 items"


@pytest.mark.parametrize("fault", ["fail", "stall", "drop"])
def test_without_a_server_the_own_list_answers_in_time(server, client, fault):
    """Of the slot or of the name given, without the excluded items."""
    getattr(server, fault)()
    answer = client.recommend(
        "r-1", "carol", count=3, slot="home", exclude=["best-1"], deadline_s=SHORT_S
    )
    assert answer.items == ("best-0", "best-2", "best-3")
    assert answer.sources == ("client",) * 3
    assert (answer.source_of_list, answer.release) == ("client", "")
    assert answer.why
    in_cart = client.recommend("r-2", "carol", slot="cart", count=2, deadline_s=SHORT_S)
    assert in_cart.items == CART[:2]
    named = client.recommend(
        "r-3", "carol", slot="home", fallback="cart", count=2, deadline_s=SHORT_S
    )
    assert named.items == CART[:2]


def test_a_refreshed_list_is_used_from_then_on(server, client):
    """It is replaced as a whole."""
    server.fail("INTERNAL")
    client.fallback = FallbackItems(("new-1", "new-2"))
    assert client.fallback.items == ("new-1", "new-2")
    assert client.recommend("r-1", "carol", count=2).items == ("new-1", "new-2")


def test_a_list_that_exclusions_shorten_too_much_says_so(server, client):
    """It has fewer items, and never an excluded one."""
    server.fail("INTERNAL")
    client.fallback = FallbackItems(("a", "b", "c"))
    answer = client.recommend("r-1", "carol", count=3, exclude=["b"])
    assert answer.items == ("a", "c")
    assert "the client's own list has no 3 items for it" in answer.why


def test_time_that_ran_out_in_the_server_gives_the_own_list(server, client):
    """The row's error is not the caller's mistake."""
    server.answer("r-1", RankedAnswer(error="deadline_us: no time left"))
    answer = client.recommend("r-1", "carol", count=2)
    assert answer.items == BEST[:2]
    assert answer.why == "deadline_us: no time left"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"count": 0}, "count: 0: is not a number from 1 to 50"),
        ({"count": 51}, "count: 51: is not a number from 1 to 50"),
        ({"count": True}, "count: True: is not a number from 1 to 50"),
        ({"slot": "cart", "count": 21}, "count: 21: the client's own list has only 20"),
        ({"exclude": "i-1"}, "exclude: 'i-1': is one text, not a list of ids"),
        ({"exclude": ["a|b"]}, r"exclude: 'a\|b' has a \|"),
        ({"exclude": [""]}, "exclude: an item is empty"),
        ({"exclude": ["é" * 65]}, "has 130 bytes, 128 are allowed"),
        ({"exclude": [7]}, "exclude: 7 is not text"),
        ({"exclude": ["\ud800"]}, "is not valid Unicode"),
        ({"event_time": 5}, "event_time: 5: is before the year 2000"),
        ({"fields": {"colour": "red"}}, "colour: unknown; known are request_id"),
    ],
)
def test_a_mistake_of_the_caller_is_raised_without_a_server_too(
    server, client, changed, words
):
    """Nothing is sent."""
    with pytest.raises(InvalidRequest, match=words):
        client.recommend("r-1", "carol", **changed)
    with pytest.raises(InvalidRequest, match='user_id: "": is empty'):
        client.recommend("r-1", "")
    assert server.asked == []
    assert client.counters["refused", "client"] == 2


def test_several_users_share_a_request_each_with_a_list(server, client):
    """A wrong one stands in its place, whoever found it."""
    server.answer_by(
        lambda row: RankedAnswer(items=(row.values["user_id"] + "-1", "x"))
    )
    server.answer("r-3", RankedAnswer(error="user_id: u3: is blocked"))
    requests = [
        RecommendationRequest(f"r-{number}", f"u{number}", TIME_US)
        for number in range(1, 4)
    ]
    requests.insert(1, RecommendationRequest("", "u9", TIME_US))
    first, empty, second, blocked = client.recommend_rows(requests, count=2)
    assert first.items == ("u1-1", "x")
    assert second.items == ("u2-1", "x")
    assert str(empty) == 'request_id: "": is empty'
    assert str(blocked) == "user_id: u3: is blocked"
    assert {row.request for row in server.asked} == {0}
    with pytest.raises(InvalidRequest, match="33 rows; a request holds 1 to 32"):
        client.recommend_rows(requests[:1] * 33)


def test_lists_and_items_are_counted(server, client):
    """By source, also for Prometheus."""
    registry = CollectorRegistry()
    register(client, registry)
    client.recommend("r-1", "carol", count=4)
    server.fail("INTERNAL")
    client.recommend("r-2", "carol", count=3)
    text = generate_latest(registry).decode().splitlines()
    for line in (
        'tollgate_client_lists_total{source="server"} 1.0',
        'tollgate_client_lists_total{source="client"} 1.0',
        'tollgate_client_items_total{source="prepared:personal"} 1.0',
        'tollgate_client_items_total{source="client"} 3.0',
        'tollgate_client_fallbacks_total{after="failed"} 1.0',
    ):
        assert line in text


def test_asyncio_calls_share_requests_with_the_same_count(server):
    """Each caller gets its own list; counts are never mixed in a request."""
    server.answer_by(
        lambda row: RankedAnswer(items=(row.values["user_id"], *RANKED.items))
    )

    async def call():
        async with AsyncRecommender(
            [server.url], fallback=OWN, options=PATIENT
        ) as client:
            return await asyncio.gather(
                *(
                    client.recommend(f"r-{number}", f"u{number}", count=2 + number % 2)
                    for number in range(40)
                ),
                client.recommend_each(
                    [RecommendationRequest("r-e", "eve", TIME_US)], count=2
                ),
                client.recommend_rows(
                    [RecommendationRequest("r-f", "fay", TIME_US)], count=5
                ),
            )

    *answers, (eve,), (fay,) = asyncio.run(call())
    for number, answer in enumerate(answers):
        assert answer.items == (f"u{number}", "i-0", "i-1")[: 2 + number % 2]
    assert (eve.items[0], fay.items[0], len(fay)) == ("eve", "fay", 5)
    counts = {}
    for row in server.asked:
        counts.setdefault(row.request, set()).add(row.count)
    assert all(len(found) == 1 for found in counts.values())
    assert len(counts) < 42


def test_asyncio_has_the_own_list_at_the_deadline(server):
    """While a server stalls."""
    server.stall()

    async def call():
        async with AsyncRecommender(
            [server.url], fallback=OWN, options=PATIENT
        ) as client:
            client.fallback = FallbackItems(CART)
            assert client.fallback.items == CART
            return await client.recommend("r-1", "carol", deadline_s=SHORT_S)

    answer = asyncio.run(call())
    assert (answer.items, answer.source_of_list) == (CART[:10], "client")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "fallback: items: is missing"),
        ({"items": "abc"}, "fallback: items: 'abc' is not a list"),
        ({"items": []}, r"items: \(\) is no list with items"),
        ({"items": ["a", "a"]}, "items: 'a' stands there twice"),
        ({"items": ["a", 1]}, r"items\[1\]: 1 is not text"),
        ({"items": ["a"], "lists": []}, r"lists: \[\] is no mapping"),
        ({"items": ["a"], "lists": {"x": [""]}}, r"lists.x\[0\]: an item is empty"),
        ({"items": ["a"], "slots": {}}, "slots: is unknown; known are items, lists"),
    ],
)
def test_lists_of_a_configuration_are_checked(document, words):
    """The error names the place."""
    with pytest.raises(InputError, match=words):
        fallback_items_from(document)


def test_lists_are_read_from_a_configuration():
    """As a YAML file has them."""
    found = fallback_items_from({"items": ["a", "b"], "lists": {"cart": ["c"]}})
    assert found == FallbackItems(("a", "b"), lists={"cart": ("c",)})


def response(**changed):
    """Encode a response for one row of two items with protobuf's own library."""
    text = {"items": [b"a", b"b"], "source": [b"popular"] * 2}
    text |= {"error": [b""], "release": [b"r"]} | changed
    message = service_pb2.ModelInferResponse()
    for name in RANKED_OUTPUTS:
        message.outputs.add(name=name)
        if name in text:
            raw = b"".join(len(one).to_bytes(4, "little") + one for one in text[name])
        else:
            raw = b"\0" * (8 if name == "scores" else 4)
        message.raw_output_contents.append(raw)
    return message.SerializeToString()


def test_a_response_that_does_not_fit_together_counts_as_a_failure():
    """A short one, one without an output, and one with too many texts."""
    ranked = ranked_rows_of(response())
    assert (ranked.items, ranked.scores.tolist()) == (["a", "b"], [0.0, 0.0])
    with pytest.raises(ClientError, match=r"do not fit together: .*'items': 1"):
        ranked_rows_of(response(items=[b"a"]))
    with pytest.raises(ClientError, match="do not fit together"):
        ranked_rows_of(response(error=[b"", b"", b""]))
    with pytest.raises(ClientError, match="cannot be read"):
        ranked_rows_of(response()[:-5])
    with pytest.raises(ClientError, match="lacks items; it has "):
        ranked_rows_of(b"")
