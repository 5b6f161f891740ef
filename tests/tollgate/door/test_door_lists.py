"""Lists of items for callers who speak JSON: by a server, or by the door itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.support.door.asgi import FRAUD, Application, Limits, opened
from tests.support.products.small_shop import (
    release_shop,
    small_catalogue,
    write_shop,
)
from tollgate.door.deciders import Upstream
from tollgate.door.openapi import openapi_document
from tollgate.door.products import DoorProduct, read_door_product
from tollgate.testing import RankedAnswer, TestServer
from tollgate_client import FallbackItems

PATIENT_S = 30.0
MOST = small_catalogue().size


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> DoorProduct:
    """The small shop as its release describes it: six items, `cart` the other way."""
    repository = tmp_path_factory.mktemp("shop") / "models"
    release_shop(repository, write_shop(repository))
    return read_door_product(repository, product="shop")


@pytest.fixture
def server(shop: DoorProduct) -> Iterator[TestServer]:
    """A server that gives each user items of its own."""
    with TestServer(
        "shop", inputs=shop.inputs, fields=shop.fields, default=RankedAnswer()
    ) as one:
        one.answer_by(
            lambda row: RankedAnswer(
                items=tuple(f"{row.values['user_id']}-{at}" for at in range(6)),
                sources=("similar",) + ("personal",) * 5,
                degraded=4,
            )
        )
        yield one


def row(name: str = "r-1", **more: object) -> dict[str, object]:
    """A request for items."""
    return {
        "request_id": name,
        "user_id": "carol",
        "event_time": 1_760_000_000_000_000,
        **more,
    }


def run(
    server: TestServer,
    shop: DoorProduct,
    main: Callable[[Application], Awaitable[Any]],
    *,
    deadline_s: float = PATIENT_S,
) -> Any:
    """Run calls of an application for both kinds of products."""

    async def inside() -> Any:
        upstream = Upstream([server.url], deadline_s=deadline_s)
        async with opened(upstream, products=[shop]) as door:
            return await main(door)

    return asyncio.run(inside())


def test_a_row_is_answered_with_its_items(
    server: TestServer, shop: DoorProduct
) -> None:
    """As many as the policy says, or the row; the exclusions reach the server."""
    usual = run(server, shop, lambda door: door.post("/rank/shop", row()))
    assert (usual.status, usual.headers["content-type"]) == (200, "application/json")
    assert usual.json == {
        "request_id": "r-1",
        "items": [
            {"item": "carol-0", "score": 1.0, "source": "similar"},
            {"item": "carol-1", "score": 0.5, "source": "personal"},
            {"item": "carol-2", "score": pytest.approx(1 / 3), "source": "personal"},
            {"item": "carol-3", "score": 0.25, "source": "personal"},
        ],
        "degraded": ["COLD_START"],
        "release": "test-1",
        "source": "model",
        "why": "",
    }
    wanted = row("r-2", count=2, exclude=["carol-0", "x"], slot="home")
    found = run(server, shop, lambda door: door.post("/rank/shop", wanted))
    assert [one["item"] for one in found.json["items"]] == ["carol-1", "i0"]
    assert found.json["why"] == "the server gave 1 of 2 items"
    asked = server.asked[-1].values
    assert (asked["exclude"], asked["slot"]) == ("carol-0|x", "home")


def test_rows_of_a_list_have_their_own_counts_and_mistakes(
    server: TestServer, shop: DoorProduct
) -> None:
    """Each in its place; the texts name the field."""
    server.answer("r-9", RankedAnswer(error="event_time: 9: is over a day ahead"))
    rows = [
        row("r-0", count=3, user_id="ann"),
        row("r-1", count=True),
        row("r-2", count=1, user_id="ben"),
        row("r-3", count=51),
        row("r-4", exclude="i1"),
        row("r-5", exclude=["x"] * 101),
        row("r-6", exclude=["a|b"]),
        {"request_id": "r-7", "event_time": 1_760_000_000_000_000},
        row("r-8", colour="red"),
        row("r-9"),
        row("r-10", count=3, user_id="eve", slot=None),
    ]
    got = run(server, shop, lambda door: door.post("/rank/shop", rows))
    assert got.status == 200
    items = [[one["item"] for one in found.get("items", ())] for found in got.json]
    assert [items[at] for at in (0, 2, 10)] == [
        ["ann-0", "ann-1", "ann-2"],
        ["ben-0"],
        ["eve-0", "eve-1", "eve-2"],
    ]
    errors = [one["error"] for one in got.json if "error" in one]
    assert [(one["row"], one["field"], one["message"]) for one in errors] == [
        (1, "count", "count: True: is no whole number, 1 to 50"),
        (3, "count", "count: 51: is no whole number, 1 to 50"),
        (4, "exclude", "exclude: 'i1': is not a list of ids"),
        (5, "exclude", "exclude: 101 ids: at most 100 are allowed"),
        (6, "exclude", "exclude: 'a|b' has a |"),
        (
            7,
            "user_id",
            "user_id: missing; needed are request_id, user_id, event_time",
        ),
        (8, "", errors[6]["message"]),
        (9, "event_time", "event_time: 9: is over a day ahead"),
    ]
    assert errors[6]["message"].startswith("colour: unknown")
    assert [one["request_id"] for one in got.json] == [
        one["request_id"] for one in rows
    ]


def test_the_door_has_a_list_of_its_own(server: TestServer, shop: DoorProduct) -> None:
    """Popular items of the release, and of the row's segment, without excluded ones."""
    server.fail()
    rows = [
        row("r-0", count=3),
        row("r-1", slot="cart", count=4, exclude=["i4"]),
        row("r-2", slot="cellar", count=1),
    ]
    got = run(server, shop, lambda door: door.post("/rank/shop", rows), deadline_s=0.3)
    assert got.status == 200
    assert [[one["item"] for one in found["items"]] for found in got.json] == [
        ["i0", "i1", "i2"],
        ["i5", "i3", "i2", "i1"],
        ["i0"],
    ]
    for found in got.json:
        assert found["source"] == "fallback"
        assert found["release"] == ""
        assert found["why"]
        for one in found["items"]:
            assert (one["score"], one["source"]) == (None, "fallback")


def test_a_late_server_gives_the_list_of_the_door(
    server: TestServer, shop: DoorProduct
) -> None:
    """Within the deadline of the caller's header."""
    server.stall()
    headers = {"content-type": "application/json", "x-request-timeout-ms": "200"}
    got = run(
        server,
        shop,
        lambda door: door.post("/rank/shop", row(count=2), headers=headers),
    )
    assert [one["item"] for one in got.json["items"]] == ["i0", "i1"]
    assert got.json["source"] == "fallback"


def test_a_newer_release_has_newer_lists(server: TestServer, shop: DoorProduct) -> None:
    """The client stays, with its connections."""
    assert shop.ranking is not None
    lists = FallbackItems(tuple(f"new-{at}" for at in range(9)))
    newer = msgspec.structs.replace(
        shop, ranking=msgspec.structs.replace(shop.ranking, own_lists=lists, items=5)
    )

    async def main(door: Application) -> None:
        deciders = door.door.deciders
        assert deciders is not None
        client = deciders.find("shop").client
        door.door.follow(newer)
        await asyncio.sleep(0.01)
        assert deciders.find("shop").client is client
        server.fail()
        got = await door.post(
            "/rank/shop", row(), headers=HEADERS | {"x-request-timeout-ms": "300"}
        )
        assert [one["item"] for one in got.json["items"]] == [*lists.items[:5]]

    run(server, shop, main)


HEADERS = {"content-type": "application/json"}


def test_each_product_has_the_routes_of_its_answers(
    server: TestServer, shop: DoorProduct
) -> None:
    """The refusal names the other route; an Idempotency-Key is the id of the row."""

    async def main(door: Application) -> None:
        for path in ("/decide/shop", "/v2/models/shop/infer"):
            got = await door.post(path, row())
            assert got.status == 404
            text = got.json.get("detail", got.json.get("error"))
            assert text == "shop ranks items: POST /rank/shop"
        assert (await door.post("/rank/other", row())).status == 404
        assert (await door.send("GET", "/v2/models/shop")).status == 404
        assert (await door.send("GET", "/rank/shop")).status == 405
        alone = {name: one for name, one in row().items() if name != "request_id"}
        keyed = HEADERS | {"idempotency-key": "k-1"}
        got = await door.post("/rank/shop", alone, headers=keyed)
        assert got.json["request_id"] == "k-1"
        got = await door.post("/rank/shop", row("r-1"), headers=keyed)
        assert got.status == 422
        assert "is not the row's request_id" in got.json["detail"]
        assert (await door.post("/rank/shop", row(count=0))).status == 422

    run(server, shop, main)

    async def decides() -> None:
        upstream = Upstream([server.url], deadline_s=0.1)
        async with opened(upstream, products=[FRAUD]) as door:
            got = await door.post("/rank/fraud", row())
            assert (got.status, got.json["detail"]) == (
                404,
                "fraud decides: POST /decide/fraud",
            )

    asyncio.run(decides())


def test_the_document_describes_lists(server: TestServer, shop: DoorProduct) -> None:
    """The example and the answers fit the schemas, and wrong rows do not."""
    document = json.loads(json.dumps(openapi_document([FRAUD, shop], limits=Limits())))
    assert {path for path in document["paths"] if "shop" in path} == {
        "/rank/shop",
        "/v2/models/shop/ready",
    }
    described = document["paths"]["/rank/shop"]["post"]
    content = described["requestBody"]["content"]["application/json"]
    request = {**content["schema"], "components": document["components"]}
    answer = {
        **described["responses"]["200"]["content"]["application/json"]["schema"],
        "components": document["components"],
    }
    for good in (content["example"], row(count=3, exclude=["a"], slot="home")):
        jsonschema.Draft202012Validator(request).validate(good)
    for wrong in (row(count=51), row(exclude="a"), row(item="i1"), {"user_id": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(request).validate(wrong)

    async def main(door: Application) -> None:
        for body in (content["example"], [row(), row("r-2", count=0)]):
            got = await door.post("/rank/shop", body)
            assert got.status == 200
            jsonschema.Draft202012Validator(answer).validate(got.json)
        paths = (await door.send("GET", "/")).json["paths"]
        assert "/decide" not in paths

    run(server, shop, main)


def test_the_own_list_has_the_popular_items_of_the_release(shop: DoorProduct) -> None:
    assert shop.ranking is not None
    ids = [f"i{at}" for at in range(MOST)]
    assert shop.ranking.own_lists.items == tuple(ids)
    assert shop.ranking.own_lists.lists == {"cart": tuple(ids[::-1])}
    assert (shop.ranking.items, shop.ranking.segment_field) == (4, "slot")
