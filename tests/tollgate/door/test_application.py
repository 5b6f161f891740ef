"""Requests of callers who speak JSON, before a scripted server."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from prometheus_client import generate_latest

from tests.support.door.asgi import FRAUD, JSON, Application, Limits, opened
from tollgate.door.application import DoorApplication
from tollgate.door.callers import Callers
from tollgate.door.deciders import Deciders, Upstream
from tollgate.door.openapi import openapi_document
from tollgate.testing import Answer, TestServer
from tollgate_client import Fallback

PATIENT_S = 30.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def server() -> Iterator[TestServer]:
    """A server that answers by each row's amount."""
    with TestServer() as one:
        one.answer_by(lambda row: Answer(score=float(row.values["amount"]) / 1024))
        yield one


def row(name: str = "t-1", **more: object) -> dict[str, object]:
    """A purchase."""
    return {
        "transaction_id": name,
        "customer_id": "carol",
        "terminal_id": "kiosk",
        "amount": 256.0,
        "event_time": 1_760_000_000_000_000,
        **more,
    }


def run(
    server: TestServer,
    main: Callable[[Application], Awaitable[Any]],
    *,
    deadline_s: float = PATIENT_S,
    **more: Any,
) -> Any:
    """Run calls of an application."""

    async def inside() -> Any:
        upstream = Upstream([server.url], deadline_s=deadline_s)
        async with opened(upstream, **more) as door:
            return await main(door)

    return asyncio.run(inside())


def test_a_row_is_answered_in_words(server: TestServer) -> None:
    """Reasons as sentences, degraded bits as names, an unknown code as it is."""
    codes = ("LARGE_AMOUNT", "NEWER_CODE")
    server.answer("t-1", Answer("decline", 0.75, codes, degraded=4 | 1 << 20))
    got = run(server, lambda door: door.post("/decide", row()))
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert got.json == {
        "transaction_id": "t-1",
        "decision": "decline",
        "score": 0.75,
        "reasons": ["The amount is unusually large.", "NEWER_CODE"],
        "reason_codes": ["LARGE_AMOUNT", "NEWER_CODE"],
        "degraded": ["COLD_START", "BIT_20"],
        "release": "test-1",
        "source": "model",
        "why": "",
    }


def test_a_bad_row_fails_alone(server: TestServer) -> None:
    """Those that the client finds, those that the server finds, and no objects."""
    server.answer("t-4", Answer(error="event_time: 9: is over a day ahead"))
    rows = [row("t-0"), row("t-1", amount=-1), {"amount": 1}, 7, row("t-4"), row("t-5")]
    got = run(server, lambda door: door.post("/decide/fraud", rows))
    assert got.status == 200
    assert [one.get("decision") for one in got.json] == [
        *("approve", None, None, None, None, "approve"),
    ]
    errors = {one["error"]["row"]: one["error"] for one in got.json if "error" in one}
    names = ", ".join(FRAUD.inputs)
    assert errors == {
        1: {"row": 1, "field": "amount", "message": "amount: -1.0: is negative"},
        2: {
            "row": 2,
            "field": "transaction_id",
            "message": f"transaction_id: missing; needed are {names}",
        },
        3: {"row": 3, "field": "", "message": "7: is not an object with fields"},
        4: {
            "row": 4,
            "field": "event_time",
            "message": "event_time: 9: is over a day ahead",
        },
    }
    assert [one.transaction_id for one in server.asked] == ["t-0", "t-4", "t-5"]


def test_a_request_of_bad_rows_is_refused(server: TestServer) -> None:
    """Status 422, as problem details, with every row."""

    async def main(door: Application) -> None:
        one = await door.post("/decide", row(amount="much"))
        assert one.status == 422
        assert one.headers["content-type"] == "application/problem+json"
        text = "amount: 'much': is not a number"
        assert one.json == {
            "status": 422,
            "title": one.json["title"],
            "detail": text,
            "errors": [{"row": 0, "field": "amount", "message": text}],
        }
        many = await door.post("/decide", [row(amount=0.001), row(colour="red")])
        assert many.status == 422
        assert [one["row"] for one in many.json["errors"]] == [0, 1]
        assert "is not in whole cents" in many.json["errors"][0]["message"]
        assert "colour: unknown" in many.json["errors"][1]["message"]

    run(server, main)


def test_rows_of_all_callers_share_requests(server: TestServer) -> None:
    """100 calls of one row and one of 60 are few requests of at most 32 rows."""

    async def main(door: Application) -> None:
        calls = [
            door.post("/decide", row(f"a-{one}", amount=one)) for one in range(100)
        ]
        many = door.post("/decide", [row(f"b-{one}", amount=one) for one in range(60)])
        *alone, together = await asyncio.gather(*calls, many)
        for number, got in enumerate(alone):
            assert got.json["transaction_id"] == f"a-{number}"
            assert got.json["score"] == number / 1024
        assert [one["score"] for one in together.json] == [n / 1024 for n in range(60)]

    run(server, main)
    of_request: dict[int, int] = {}
    for one in server.asked:
        of_request[one.request] = of_request.get(one.request, 0) + 1
    assert sum(of_request.values()) == 160
    assert max(of_request.values()) == 32
    assert len(of_request) <= 10


def test_the_callers_deadline_and_trace_go_to_the_server(server: TestServer) -> None:
    """A deadline of its own, and W3C trace context; a wrong one is refused."""

    async def main(door: Application) -> None:
        headers = {**JSON, "x-request-timeout-ms": "20000", "traceparent": TRACE}
        assert (await door.post("/decide", row(), headers=headers)).status == 200
        for wrong in ("0", "-5", "soon", "nan", "60001", "inf"):
            headers = {**JSON, "x-request-timeout-ms": wrong}
            got = await door.post("/decide", row(), headers=headers)
            assert got.status == 400
            assert "x-request-timeout-ms" in got.json["detail"]

    run(server, main)
    (asked,) = server.asked
    assert asked.metadata["traceparent"] == TRACE
    assert asked.deadline_us is not None
    assert 10_000_000 < asked.deadline_us <= 19_992_000  # 8 ms for the way back


def test_time_that_passed_since_the_arrival_is_taken_from_the_deadline(
    server: TestServer,
) -> None:
    """And 8 ms for the way back; without time left nothing is sent."""

    async def main(door: Application) -> None:
        assert door.door.deciders is not None
        decider = door.door.deciders.find("fraud")
        for given_s, used_s in ((20.0, 10.0), (0.02, 10.0)):
            await decider.decide_each(
                [row()],
                dry_run=False,
                arrived_s=asyncio.get_running_loop().time() - used_s,
                deadline_s=given_s,
                traceparent="",
            )

    run(server, main)
    (asked,) = server.asked
    assert asked.deadline_us is not None
    assert 5_000_000 < asked.deadline_us <= 9_992_000


def test_a_dry_run_is_asked_for_in_the_path(server: TestServer) -> None:
    """Other parameters are refused."""

    async def main(door: Application) -> None:
        assert (await door.post("/decide", row(), query="dry_run=true")).status == 200
        assert (await door.post("/decide", row(), query="dry_run=false")).status == 200
        assert (await door.post("/decide", row(), query="dry_run=")).status == 400
        assert (await door.post("/decide", row(), query="dry=1")).status == 400
        infer, body = "/v2/models/fraud/infer", inference([row()])
        assert (await door.post(infer, body, query="dry_run=true")).status == 200
        assert (await door.post(infer, body, query="dry=1")).status == 400

    run(server, main)
    assert [one.dry_run for one in server.asked] == [True, False, True]


def test_an_idempotency_key_is_the_transaction_id(server: TestServer) -> None:
    """It names the only row; two names for one row are refused."""

    async def main(door: Application) -> None:
        headers = {**JSON, "idempotency-key": '"k-1"'}
        nameless = {
            name: one for name, one in row().items() if name != "transaction_id"
        }
        got = await door.post("/decide", nameless, headers=headers)
        assert got.json["transaction_id"] == "k-1"
        assert (await door.post("/decide", row("k-1"), headers=headers)).status == 200
        other = await door.post("/decide", row("k-2"), headers=headers)
        assert other.status == 422
        assert "is not the row's transaction_id" in other.json["detail"]
        several = await door.post("/decide", [row("k-1")], headers=headers)
        assert several.status == 400
        bad = await door.post("/decide", b"{", headers=headers)
        assert bad.status == 400
        headers = {**JSON, "idempotency-key": "k-\udcff"}
        no_text = await door.post("/decide", nameless, headers=headers)
        assert no_text.status == 400

    run(server, main)
    assert [one.transaction_id for one in server.asked] == ["k-1", "k-1"]


def test_without_a_server_the_rule_answers_in_time(server: TestServer) -> None:
    """Marked as such; a decision that the server made before is given again."""

    async def main(door: Application) -> None:
        assert door.door.deciders is not None
        first = await door.post("/decide", row("known"))
        server.stall()
        headers = {**JSON, "x-request-timeout-ms": "80"}
        got = await door.post("/decide", [row("new"), row("known")], headers=headers)
        server.heal()
        new, known = got.json
        assert (got.status, new["decision"], new["source"]) == (
            200,
            "review",
            "fallback",
        )
        assert new["score"] is None
        assert new["why"]
        assert (known["source"], known["score"]) == ("cached", first.json["score"])

    run(server, main)


def test_each_product_has_its_own_rule() -> None:
    """By default the middle outcome."""
    with TestServer() as server:
        server.fail("UNAVAILABLE")
        rules = {"fraud": Fallback(otherwise="decline")}
        second = msgspec.structs.replace(FRAUD, name="other")

        async def inside() -> list[str]:
            upstream = Upstream([server.url], deadline_s=1.0, fallbacks=rules)
            async with opened(upstream, products=[FRAUD, second]) as door:
                paths = ("/decide", "/decide/fraud", "/decide/other")
                got = [await door.post(path, row()) for path in paths]
                return [one.json["decision"] for one in got]

        assert asyncio.run(inside()) == ["decline", "decline", "review"]


def test_a_rule_that_a_newer_release_does_not_know_is_not_used() -> None:
    """Its outcomes are those of the release; then the middle one is given."""
    with TestServer() as server:
        server.fail("UNAVAILABLE")
        words = ("approve", "check", "decline")
        newer = msgspec.structs.replace(FRAUD, outcomes=words)

        async def decided(rule: Fallback) -> list[str]:
            upstream = Upstream([server.url], deadline_s=1.0, fallbacks={"fraud": rule})
            async with opened(upstream) as door:
                before = await door.post("/decide", row())
                door.door.follow(newer)
                await asyncio.sleep(0.01)
                after = await door.post("/decide", row())
                return [before.json["decision"], after.json["decision"]]

        fits, does_not = Fallback(otherwise="decline"), Fallback(otherwise="review")
        assert asyncio.run(decided(fits)) == ["decline", "decline"]
        assert asyncio.run(decided(does_not)) == ["review", "check"]


def test_only_callers_with_a_key_are_answered(
    server: TestServer, tmp_path: Path
) -> None:
    """Keys of the gateway's file; a new line counts after a refresh."""
    key, other = "k" * 32, "m" * 32
    path = tmp_path / "keys"
    path.write_text(f"{key} shop;\n")
    path.chmod(0o600)
    callers = Callers(path)

    async def main(door: Application) -> None:
        async def status(text: str | None) -> int:
            headers = JSON if text is None else {**JSON, "authorization": text}
            return (await door.post("/decide", row(), headers=headers)).status

        assert await status(f"Bearer {key}") == 200
        assert await status(f"bearer {key}") == 200
        for wrong in (None, "", key, f"Basic {key}", f"Bearer {other}", "Bearer "):
            assert await status(wrong) == 401
        refused = await door.post("/decide", row())
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await door.send("GET", "/v2/models/fraud")).status == 401
        assert (await door.send("GET", "/v2/health/ready")).status == 200
        path.write_text(f"{key} shop;\n{other} kiosk;\n")
        callers.refresh()
        assert await status(f"Bearer {other}") == 200
        path.write_text("nonsense")
        callers.refresh()
        assert await status(f"Bearer {other}") == 200
        path.write_text(f"{key} shop;\n")
        path.chmod(0o644)
        callers.refresh()
        assert await status(f"Bearer {other}") == 200
        path.chmod(0o600)
        callers.refresh()
        assert await status(f"Bearer {other}") == 401

    run(server, main, callers=callers)


def test_rows_beyond_the_limits_are_refused_at_once(
    server: TestServer, tmp_path: Path
) -> None:
    """429 for the caller with too many, 503 for all; both say when to come again."""
    path = tmp_path / "keys"
    path.write_text(f"{'a' * 32} shop;\n{'b' * 32} kiosk;\n")
    path.chmod(0o600)
    limits = Limits(rows_in_flight=8, caller_rows_in_flight=6)

    async def main(door: Application) -> None:
        def call(key: str, rows: int) -> Awaitable[Any]:
            headers = {**JSON, "authorization": f"Bearer {key * 32}"}
            names = [row(f"{key}-{one}") for one in range(rows)]
            return door.post("/decide", names, headers=headers)

        server.stall()
        waiting = asyncio.ensure_future(call("a", 5))
        while not server.asked:
            await asyncio.sleep(0.01)
        too_many = await call("a", 2)
        assert too_many.status == 429
        assert "6 rows of shop are in flight" in too_many.json["detail"]
        full = await call("b", 4)
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert full.json["detail"].startswith("overloaded: ")
        server.heal()
        assert (await waiting).status == 200
        assert (await call("a", 6)).status == 200
        assert (
            door.door.metrics.registry.get_sample_value("tollgate_door_rows_in_flight")
            == 0
        )

    run(server, main, callers=Callers(path), limits=limits)


def test_a_body_is_bounded_in_size_and_time(server: TestServer) -> None:
    """By its length, by the bytes that came, and by a clock."""
    limits = Limits(body_bytes=1_000, body_timeout_s=0.05)

    async def main(door: Application) -> None:
        large = b" " * 1_001
        declared = {**JSON, "content-length": "1001"}
        assert (await door.post("/decide", large, headers=declared)).status == 413
        assert (await door.post("/decide", large)).status == 413
        parts = [large[:600], large[600:]]
        assert (await door.post("/decide", b"", parts=parts)).status == 413
        text = json.dumps(row()).encode()
        got = await door.post("/decide", b"", parts=[text[:9], text[9:], b""])
        assert got.status == 200
        slow = await door.post("/decide", b"", parts=[])
        assert slow.status == 408
        assert (await door.post("/decide", row("t-2"))).status == 200

    run(server, main, limits=limits)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/decide", 405),
        ("POST", "/v2", 405),
        ("DELETE", "/v2/models/fraud/infer", 405),
        ("GET", "/nowhere", 404),
        ("HEAD", "/decide", 405),
        ("POST", "/decide/", 404),
        ("POST", "/decide/fraud/more", 404),
        ("POST", "/decide/fruad", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/fraud/versions/1", 404),
        ("GET", "/v2/models/nothing", 404),
        ("GET", "/v2/models//ready", 404),
    ],
)
def test_other_paths_and_methods_are_refused(
    server: TestServer, method: str, path: str, status: int
) -> None:
    """In the form of their route: KServe's below /v2, problem details elsewhere."""
    got = run(server, lambda door: door.send(method, path, body=row()))
    assert got.status == status
    if method != "HEAD":
        assert ("error" in got.json) == path.startswith("/v2")


def test_head_has_the_headers_of_get(server: TestServer) -> None:
    """Some load balancers probe with it."""

    async def main(door: Application) -> None:
        for path in ("/v2/health/ready", "/v2/models/fraud", "/openapi.json"):
            head, get = await door.send("HEAD", path), await door.send("GET", path)
            assert (head.status, head.headers) == (200, get.headers)
            assert head.body == b""
            assert int(head.headers["content-length"]) == len(get.body) > 0

    run(server, main)


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_only_json_is_read(server: TestServer, media_type: str, status: int) -> None:
    """curl's own type is refused, and the text says which is right."""
    headers = {"content-type": media_type}
    got = run(server, lambda door: door.post("/decide", row(), headers=headers))
    assert got.status == status


def test_kserve_describes_and_decides(server: TestServer) -> None:
    """Health, metadata, and tensors flat or nested; fallback rows are marked."""

    async def main(door: Application) -> None:
        assert (await door.send("GET", "/v2/health/live")).json == {"live": True}
        assert (await door.send("GET", "/v2/health/ready")).json == {"ready": True}
        assert (await door.send("GET", "/v2")).json["name"] == "tollgate-door"
        described = (await door.send("GET", "/v2/models/fraud")).json
        assert described["inputs"][3] == {
            "name": "amount",
            "datatype": "FP64",
            "shape": [-1, 1],
        }
        assert "versions" not in described
        assert (await door.send("GET", "/v2/models/fraud/ready")).json == {
            "name": "fraud",
            "ready": True,
        }
        # The server says that it does not serve it.
        assert (await door.send("GET", "/v2/models/other/ready")).status == 503
        rows = [row("k-0", amount=512), row("k-1", amount=-1)]
        got = (await door.post("/v2/models/fraud/infer", inference(rows))).json
        assert got.keys() == {"model_name", "id", "outputs"}
        assert (got["model_name"], got["id"]) == ("fraud", "call")
        outputs = {one["name"]: one for one in got["outputs"]}
        assert outputs["score"]["shape"] == [2, 1]
        assert outputs["score"]["datatype"] == "FP32"
        assert outputs["score"]["data"] == [0.5, None]
        assert outputs["decision"]["data"] == ["approve", ""]
        assert outputs["error"]["data"] == ["", "amount: -1.0: is negative"]
        assert outputs["source"]["data"] == ["model", ""]
        nested = inference(rows[:1], nested=True, outputs=["release", "decision"])
        got = (await door.post("/v2/models/fraud/infer", nested)).json
        assert [one["name"] for one in got["outputs"]] == ["release", "decision"]
        assert got["outputs"][0]["data"] == ["test-1"]
        bad = await door.post("/v2/models/fraud/infer", inference(rows[1:]))
        assert bad.status == 400
        assert bad.json == {"error": "row 0: amount: -1.0: is negative"}

    run(server, main, products=[FRAUD, msgspec.structs.replace(FRAUD, name="other")])


def inference(
    rows: list[dict[str, object]],
    *,
    nested: bool = False,
    outputs: list[str] | None = None,
    **parameters: object,
) -> dict[str, Any]:
    """Write rows as tensors."""
    return {
        "id": "call",
        "parameters": parameters,
        "outputs": [{"name": name} for name in outputs or []],
        "inputs": [
            {
                "name": name,
                "datatype": kind,
                "shape": [len(rows), 1],
                "data": [[one[name]] if nested else one[name] for one in rows],
            }
            for name, kind in FRAUD.inputs.items()
        ],
    }


def test_kserves_parameters_count(server: TestServer) -> None:
    """`dry_run` and `deadline_us`, as in the contract."""
    body = inference([row()], dry_run=True, deadline_us=9_000_000)
    body["outputs"] = [{"name": "decision", "parameters": {"binary_data": False}}]
    assert run(server, lambda door: door.post("/v2/models/fraud/infer", body)).json
    (asked,) = server.asked
    assert asked.dry_run
    assert asked.deadline_us is not None
    assert asked.deadline_us <= 9_000_000


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda one: one["inputs"].pop(), "input event_time: missing"),
        (
            lambda one: one["inputs"][0].update(name="colour"),
            "input colour: unknown; known are transaction_id",
        ),
        (
            lambda one: one["inputs"].append(one["inputs"][0]),
            "input transaction_id: appears twice",
        ),
        (
            lambda one: one["inputs"][3].update(datatype="FP32"),
            "input amount: is FP32, not FP64",
        ),
        (
            lambda one: one["inputs"][3].update(shape=[1, 2]),
            "input amount: shape is [1, 2], not [N, 1]",
        ),
        (
            lambda one: one["inputs"][3].update(shape=[]),
            "input amount: shape is [], not [N, 1]",
        ),
        (
            lambda one: one["inputs"][3].update(shape=[2, 1]),
            "input amount: 2 rows, but transaction_id has 1",
        ),
        (
            lambda one: one["inputs"][3].update(data=[1, 2]),
            "input amount: 2 values for shape [1, 1]",
        ),
        (
            lambda one: one["inputs"][3].update(data=[[1, 2]]),
            "input amount: row 0 of data is not one value",
        ),
        (
            lambda one: one["inputs"][0].update(parameters={"binary_data_size": 3}),
            "input transaction_id: parameters are not supported",
        ),
        (
            lambda one: one["parameters"].update(priority=1),
            "parameter priority: unknown; known are dry_run, deadline_us",
        ),
        (
            lambda one: one["parameters"].update(deadline_us=0),
            "parameter deadline_us: 0 is not an integer above 0",
        ),
        (
            lambda one: one["parameters"].update(deadline_us=10**400),
            "parameter deadline_us: 1000",
        ),
        (
            lambda one: one["parameters"].update(deadline_us=60_000_001),
            "parameter deadline_us: 60000001 is not an integer above 0 and up to",
        ),
        (
            lambda one: one["parameters"].update(dry_run=1),
            "parameter dry_run: 1 is not true or false",
        ),
        (
            lambda one: one["outputs"].append({"name": "colour"}),
            "output colour: unknown; known are decision",
        ),
        (
            lambda one: one["outputs"].append(
                {"name": "score", "parameters": {"binary_data": True}}
            ),
            "output score: parameters are not supported",
        ),
        (lambda one: one.pop("inputs"), "Object missing required field `inputs`"),
        (
            lambda one: one["inputs"][3].update(shape="1"),
            "Expected `array`, got `str` - at `$.inputs[3].shape`",
        ),
    ],
)
def test_wrong_tensors_are_refused_in_words(
    server: TestServer, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    """Status 400, with the tensor's name; nothing reaches the server."""
    body = inference([row()])
    change(body)
    got = run(server, lambda door: door.post("/v2/models/fraud/infer", body))
    assert got.status == 400
    assert got.json["error"].startswith(problem)
    assert not server.asked


def test_a_newer_release_is_followed(server: TestServer) -> None:
    """New sentences at once; new fields with a new client."""
    server.answer("t-1", Answer("review", 0.5, ("NEWER_CODE",)))

    async def main(door: Application) -> None:
        deciders = door.door.deciders
        assert deciders is not None
        client = deciders.find("fraud").client
        newer = msgspec.structs.replace(FRAUD, reasons={"NEWER_CODE": "It is newer."})
        door.door.follow(newer)
        await asyncio.sleep(0.01)
        assert deciders.find("fraud").client is client
        before = (await door.send("GET", "/openapi.json")).json
        assert (await door.post("/decide", row())).json["reasons"] == ["It is newer."]
        door.door.follow(msgspec.structs.replace(newer, fields={"colour": "BYTES"}))
        await asyncio.sleep(0.01)
        assert deciders.find("fraud").client is not client
        assert (await door.send("GET", "/v2/models/fraud")).json["inputs"][-1] == {
            "name": "colour",
            "datatype": "BYTES",
            "shape": [-1, 1],
        }
        after = (await door.send("GET", "/openapi.json")).json
        for document, added in ((before, []), (after, ["colour"])):
            schema = document["components"]["schemas"]["Row_fraud"]
            assert list(schema["properties"]) == [*FRAUD.inputs, *added]

    run(server, main)


def test_a_body_that_arrives_during_a_change_of_releases_is_decided(
    server: TestServer,
) -> None:
    """By the newer release; the client of the older one is closed by then."""
    newer = msgspec.structs.replace(FRAUD, outcomes=("approve", "check", "decline"))

    async def main(door: Application) -> None:
        async def change() -> None:
            assert door.door.deciders is not None
            old = door.door.deciders.find("fraud").client
            door.door.follow(newer)
            await asyncio.sleep(0)
            assert door.door.deciders.find("fraud").client is not old
            await old.close()

        for path, body in (
            ("/decide", row()),
            ("/v2/models/fraud/infer", inference([row()])),
        ):
            text = json.dumps(body).encode()
            door.door.follow(FRAUD)
            got = await door.post(
                path, b"", parts=[text[:9], text[9:]], before_last=change
            )
            assert got.status == 200
        assert got.json["outputs"][-1]["data"] == ["model"]

    run(server, main)


def test_a_door_that_cannot_start_ends() -> None:
    """With the reason, and without serving half of what it should."""
    sent: list[object] = []

    def broken() -> Deciders:
        raise ValueError("there is no address")

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    door = DoorApplication(broken, callers=Callers(None), limits=Limits())
    asyncio.run(door({"type": "lifespan"}, receive, send))
    problem = "there is no address"
    assert sent == [{"type": "lifespan.startup.failed", "message": problem}]


def test_the_openapi_document_fits_its_examples_and_answers(server: TestServer) -> None:
    """Every reference leads somewhere; each example is sent and its answer checked."""

    async def main(door: Application) -> None:
        document = (await door.send("GET", "/openapi.json")).json
        assert document == json.loads(
            json.dumps(openapi_document([FRAUD], limits=Limits()))
        )
        assert document["openapi"].startswith("3.1.")
        for schema in document["components"]["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)
        paths = document["paths"]
        examples = 0
        for path, operations in paths.items():
            for method, operation in operations.items():
                body: object = b""
                if "requestBody" in operation:
                    content = operation["requestBody"]["content"]["application/json"]
                    body = content["example"]
                    validate(document, content["schema"], body)
                    examples += 1
                got = await door.send(method.upper(), path, body=body)
                assert got.status == 200, path
                answer = operation["responses"]["200"]["content"]
                validate(document, answer["application/json"]["schema"], got.json)
        assert examples == 3
        problem = await door.post("/decide", b"{}")
        refused = paths["/decide"]["post"]["responses"][str(problem.status)]
        (content,) = refused["content"].values()
        validate(document, content["schema"], problem.json)
        assert (await door.send("GET", "/")).json["paths"] == sorted(paths)

    run(server, main)


def validate(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    """Check a value against a schema of the document."""
    whole = {**schema, "components": document["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def test_requests_and_rows_are_counted(server: TestServer) -> None:
    """By route and status, by source, and the requests that rows shared."""

    async def main(door: Application) -> str:
        await door.post("/decide", [row("t-1"), row("t-2"), row("t-3", amount=-1)])
        await door.post("/decide", b"{")
        await door.send("GET", "/nowhere")
        return generate_latest(door.door.metrics.registry).decode()

    page = run(server, main)
    for line in (
        'tollgate_door_requests_total{route="decide",status="200"} 1.0',
        'tollgate_door_requests_total{route="decide",status="400"} 1.0',
        'tollgate_door_requests_total{route="other",status="404"} 1.0',
        'tollgate_door_rows_total{product="fraud",source="model"} 2.0',
        'tollgate_door_rows_total{product="fraud",source="refused"} 1.0',
        'tollgate_door_calls_total{outcome="answered",product="fraud"} 1.0',
        'tollgate_door_request_seconds_count{route="decide"} 2.0',
    ):
        assert f"\n{line}\n" in page, line


def test_1000_malformed_bodies_cost_no_good_row(server: TestServer) -> None:
    """Each gets a status of 4xx and a text; a good row with each is decided."""
    chance = random.Random(20261124)

    async def main(door: Application) -> None:
        for number in range(1_000):
            path, body, headers = malformed(chance)
            good = row(f"good-{number}", amount=number)
            bad_got, good_got = await asyncio.gather(
                door.post(path, body, headers=headers), door.post("/decide", good)
            )
            assert 400 <= bad_got.status < 500, (path, body[:80], bad_got.body)
            text = bad_got.json.get("error") or bad_got.json["detail"]
            assert len(text) > 5
            assert good_got.json["score"] == number / 1024
            assert good_got.json["source"] == "model"

    run(server, main)
    assert len(server.asked) == 1_000


def malformed(chance: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """Draw a request that is wrong in one of many ways."""
    text = json.dumps(row(f"bad-{chance.random()}")).encode()
    name = chance.choice(list(FRAUD.inputs))
    words: Callable[[str], bytes] = lambda value: re_value(text, name, value)  # noqa: E731
    tensor = inference([row()])
    one = chance.choice(tensor["inputs"])
    wrong_tensors = [
        {"datatype": chance.choice(["FP32", "INT32", "BOOL", ""])},
        {"shape": chance.choice([[0, 1], [1, 2], [2, 1], [-1, 1], [1, 1, 1], [999]])},
        {
            "data": chance.choice(
                [[], [1, 2, 3], [[1, 2]], [{}], [None], [[]], ["\x00" * 200]]
            )
        },
        {"name": chance.choice(["", "colour", "__proto__"])},
        {"shape": chance.choice(["1", None, 1.5, {}, [None]])},
    ]
    one.update(chance.choice(wrong_tensors))
    plain = {**JSON}
    infer = "/v2/models/fraud/infer"
    cases: list[tuple[str, bytes, dict[str, str]]] = [
        ("/decide", text[: chance.randrange(len(text))], plain),
        ("/decide", b"[" + text + b"," + text[:-1], plain),
        (
            "/decide",
            words(chance.choice(["NaN", "Infinity", "-Infinity", "nul"])),
            plain,
        ),
        ("/decide", words(chance.choice(["true", "{}", "[1]", "[[]]", "null"])), plain),
        ("/decide", words("1" + "0" * chance.randrange(30, 9_000)), plain),
        ("/decide", words("-1e" + "9" * chance.randrange(4, 9)), plain),
        ("/decide", words('"\\ud800"'), plain),
        ("/decide", words('"' + "x" * 129 + '"'), plain),
        ("/decide", text[:-1] + b', "amount": 1}', plain),
        ("/decide", text[:-1] + b', "amo\\u0075nt": 1}', plain),
        ("/decide", text[:-1] + b', "colour": 1}', plain),
        ("/decide", text.replace(b"carol", bytes([chance.randrange(128, 256)])), plain),
        (
            "/decide",
            chance.choice([b"[", b'{"a":']) * chance.randrange(500, 50_000),
            plain,
        ),
        ("/decide", b"", plain),
        (
            "/decide",
            chance.choice([b"[]", b"7", b"null", b'"x"', b"[[]]", b"{}"]),
            plain,
        ),
        ("/decide", b" " * 10_000_000, plain),
        ("/decide", b"[" + b"{}," * 300 + b"{}]", plain),
        ("/decide", chance.randbytes(chance.randrange(1, 200)), plain),
        ("/decide", text, {"content-type": chance.choice(["text/csv", "", "json"])}),
        ("/decide", text, {**plain, "content-encoding": "gzip"}),
        ("/decide/fruad", text, plain),
        ("/v2/models/loans/infer", json.dumps(inference([row()])).encode(), plain),
        (infer, json.dumps(tensor).encode(), plain),
        (infer, json.dumps(tensor).encode()[: chance.randrange(200)], plain),
        (infer, text, plain),
        (
            infer,
            json.dumps(inference([row()])).encode(),
            {**plain, "inference-header-content-length": "9"},
        ),
    ]
    return chance.choice(cases)


def re_value(text: bytes, name: str, value: str) -> bytes:
    """Replace the value of one field in the text of a row."""
    document = json.loads(text)
    document[name] = "@@"
    return json.dumps(document).encode().replace(b'"@@"', value.encode())
