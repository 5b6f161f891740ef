"""Requests for lists of items pass the gateway as requests for decisions do."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.support.gateway.gateways import PATIENT_S, SERVICE, Place, ask, running
from tollgate.gateway.template import Gateway
from tollgate.testing import RankedAnswer, TestServer
from tollgate_client import FallbackItems, Options, Recommender, RetryRules, tls_from
from tollgate_client.contract import SHOP_FIELDS, SHOP_INPUTS

pytestmark = pytest.mark.system("nginx", "openssl")

OWN = FallbackItems(("best-1", "best-2", "best-3"))
NOW_US = 1_760_000_000_000_000


@pytest.fixture(scope="module")
def shop() -> Iterator[TestServer]:
    """A server of a product that ranks, by script."""
    items = RankedAnswer(items=("i-1", "i-2", "i-3", "i-4"))
    with TestServer(
        "shop", inputs=SHOP_INPUTS, fields=SHOP_FIELDS, default=items
    ) as server:
        yield server


def opened(place: Place, gateway: Gateway, *, attempts: int = 3) -> Recommender:
    """Open the client of a caller with a key."""
    options = Options(
        product="shop",
        inputs=SHOP_INPUTS,
        fields=SHOP_FIELDS,
        deadline_s=PATIENT_S,
        retry=RetryRules(attempts=attempts),
        tls=tls_from(authority=place.pem("ca")),
        token=place.shop,
    )
    return Recommender([gateway.listen], fallback=OWN, options=options)


def test_a_list_of_any_length_passes(place: Place, shop: TestServer) -> None:
    """With everything that a request for items may have, as the server's list."""
    gateway = place.gateway(shop.url, products=("fraud", "shop"))
    with running(gateway), opened(place, gateway) as client:
        found = client.recommend(
            "r-1",
            "carol",
            count=3,
            slot="home",
            device="app",
            exclude=["i-9", "i-8"],
            event_time=NOW_US,
            dry_run=True,
        )
    assert found.source_of_list == "server"
    assert found.items == ("i-1", "i-2", "i-3")
    (asked,) = shop.asked
    assert asked.values["exclude"] == "i-9|i-8"
    assert asked.dry_run


def test_a_list_is_inspected_and_its_product_checked(
    place: Place, shop: TestServer
) -> None:
    """The output of items is text, so `classification` on it would crash Triton."""
    good = service_pb2.ModelInferRequest(model_name="shop")
    for name, kind, value in (
        ("request_id", "BYTES", b"r-1"),
        ("user_id", "BYTES", b"carol"),
        ("event_time", "INT64", NOW_US.to_bytes(8, "little")),
    ):
        good.inputs.add(name=name, datatype=kind, shape=[1, 1])
        prefix = len(value).to_bytes(4, "little") if kind == "BYTES" else b""
        good.raw_input_contents.append(prefix + value)
    good.parameters["count"].int64_param = 2
    text, harmful = (service_pb2.ModelInferRequest() for _ in range(2))
    for one in (text, harmful):
        one.CopyFrom(good)
    text.parameters["count"].string_param = "2"
    output = harmful.outputs.add(name="items")
    output.parameters["classification"].int64_param = 1

    def status(channel: grpc.Channel, request: service_pb2.ModelInferRequest) -> str:
        body = request.SerializeToString()
        return ask(channel, SERVICE + "ModelInfer", key=place.shop, body=body)

    gateway = place.gateway(shop.url, products=("shop",))
    with running(gateway), place.channel(gateway.listen) as channel:
        assert status(channel, good) == "OK"
        assert status(channel, text) == "INVALID_ARGUMENT"
        assert status(channel, harmful) == "INVALID_ARGUMENT"
    others = place.gateway(shop.url, products=("fraud",))
    with running(others), place.channel(others.listen) as channel:
        assert status(channel, good) != "OK"


def test_a_caller_above_the_rate_gets_its_own_list(
    place: Place, shop: TestServer
) -> None:
    """As a caller for decisions gets its rule."""
    gateway = place.gateway(shop.url, products=("shop",), rate=1, burst=2)
    with running(gateway), opened(place, gateway, attempts=1) as client:
        found = [
            client.recommend(f"r-{at}", "carol", count=2, event_time=NOW_US)
            for at in range(12)
        ]
    sources = [one.source_of_list for one in found]
    assert sources[0] == "server"
    assert "client" in sources
    assert {one.items for one in found} == {("i-1", "i-2"), ("best-1", "best-2")}
