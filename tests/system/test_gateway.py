"""A real nginx with the gateway's configuration, before a server by script."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.support.gateway.gateways import PATIENT_S, SERVICE, Place, ask, live, running
from tollgate.gateway.template import Gateway
from tollgate.load.hostile_requests import good_request
from tollgate.testing import TestServer
from tollgate_client import (
    Client,
    DecisionClient,
    Fallback,
    InvalidRequest,
    Options,
    tls_from,
)

pytestmark = pytest.mark.system("nginx", "openssl")

PASSED_ON = (
    *("ModelInfer", "ServerLive", "ServerReady", "ModelReady"),
    *("ServerMetadata", "ModelMetadata"),
)
NOW_US = 1_700_000_000_000_000
ROW = {
    "transaction_id": ["t-1"],
    "customer_id": ["c"],
    "terminal_id": ["m"],
    "amount": [12.5],
    "event_time": [NOW_US],
}


@pytest.fixture(scope="module")
def gateway(place: Place, upstream: TestServer) -> Iterator[Gateway]:
    """A gateway that asks for keys."""
    told = place.gateway(upstream.url)
    with running(told):
        yield told


@pytest.fixture
def channel(place: Place, gateway: Gateway) -> Iterator[grpc.Channel]:
    """A connection to it, without a certificate."""
    with place.channel(gateway.listen) as opened:
        yield opened


def test_only_the_right_key_is_answered(place: Place, channel: grpc.Channel) -> None:
    """None, another, a part, more, or other letters: not authenticated."""
    assert live(channel, key=place.shop) == "OK"
    assert live(channel, key=place.bank) == "OK"
    for wrong in (
        "",
        "0" * 64,
        place.shop[:-1],
        f"{place.shop}0",
        place.shop.upper(),
        f"{place.shop} ",
        "default",
    ):
        assert live(channel, key=wrong) == "UNAUTHENTICATED", wrong


@pytest.mark.parametrize(
    "method",
    [
        one.name
        for one in service_pb2.DESCRIPTOR.services_by_name[
            "GRPCInferenceService"
        ].methods
    ],
)
def test_only_decisions_health_and_metadata_are_passed_on(
    place: Place, channel: grpc.Channel, method: str
) -> None:
    """With the right key, all other methods of Triton are denied by the gateway."""
    named = service_pb2.ModelReadyRequest(name="fraud").SerializeToString()
    bodies = {
        "ModelReady": named,
        "ModelMetadata": named,
        "ModelInfer": good_request(1, tag="t").SerializeToString(),
    }
    said = ask(channel, SERVICE + method, key=place.shop, body=bodies.get(method, b""))
    assert (said != "PERMISSION_DENIED") == (method in PASSED_ON)


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        f"{SERVICE}ModelInfer/../RepositoryModelLoad",
        f"{SERVICE}RepositoryModelLoad?ModelInfer",
        f"{SERVICE}%52epositoryModelLoad",
        f"{SERVICE}modelinfer",
        f"{SERVICE}ModelInfer/",
        "/",
    ],
)
def test_no_way_of_writing_a_path_gets_past(
    place: Place, channel: grpc.Channel, path: str
) -> None:
    """What nginx takes a path for is what it compares."""
    assert ask(channel, path, key=place.shop) == "PERMISSION_DENIED"


def test_what_is_denied_is_403_in_http(place: Place, gateway: Gateway) -> None:
    """Who does not speak gRPC is denied too, with or without a key."""
    host, _, port = gateway.listen.partition(":")
    proof = ssl.create_default_context(cafile=str(place.pem("ca")))
    for method, path in (
        ("GET", "/"),
        ("GET", f"{SERVICE}ModelInfer"),
        ("POST", f"{SERVICE}ModelInfer"),
        ("POST", f"{SERVICE}RepositoryModelLoad"),
        ("GET", "/v2/health/ready"),
    ):
        asked = http.client.HTTPSConnection(host, int(port), context=proof, timeout=20)
        headers = {
            "authorization": f"Bearer {place.shop}",
            "content-type": "application/grpc",
        }
        asked.request(method, path, headers=headers)
        answer = asked.getresponse()
        assert (answer.status, answer.getheader("grpc-status")) == (403, "7")
        assert answer.read() == b""
        asked.close()


def test_nothing_is_answered_in_the_clear(gateway: Gateway) -> None:
    """HTTP without TLS is 403, gRPC without TLS no connection, TLS 1.2 no TLS."""
    host, _, port = gateway.listen.partition(":")
    asked = http.client.HTTPConnection(host, int(port), timeout=20)
    asked.request("GET", f"{SERVICE}ModelInfer")
    assert asked.getresponse().status == 403
    asked.close()
    with grpc.insecure_channel(gateway.listen) as clear:
        assert live(clear) == "UNAVAILABLE"
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    asked = http.client.HTTPSConnection(host, int(port), context=old, timeout=20)
    with pytest.raises(ssl.SSLError):
        asked.request("GET", "/")
    asked.close()


def test_the_largest_request_passes_and_a_larger_one_does_not(
    place: Place, channel: grpc.Channel, upstream: TestServer
) -> None:
    """128 KiB is the limit; the connection goes on after it."""
    path = f"{SERVICE}ModelInfer"
    for _ in range(2):
        for id_bytes, said in (
            (130_000, "INVALID_ARGUMENT"),  # by the server: the id is too long
            (131_072, "RESOURCE_EXHAUSTED"),
            (1_000_000, "RESOURCE_EXHAUSTED"),
        ):
            before = len(upstream.asked)
            request = good_request(1, tag="x" * id_bytes)
            body = request.SerializeToString()
            assert ask(channel, path, key=place.shop, body=body) == said
            assert len(upstream.asked) - before == (id_bytes == 130_000)


def test_the_server_sees_the_trace_and_not_the_key(
    place: Place, gateway: Gateway, upstream: TestServer
) -> None:
    """Metadata pass, but for what is between caller and gateway."""
    options = Options(
        deadline_s=PATIENT_S,
        tls=tls_from(authority=place.pem("ca")),
        token=place.shop,
    )
    rule = Fallback(otherwise="review")
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    one = {name: column[0] for name, column in ROW.items()}
    with DecisionClient(gateway.listen, fallback=rule, options=options) as client:
        answer = client.decide(one, traceparent=trace)
    assert answer.source == "model"
    seen = upstream.asked[-1].metadata
    assert seen["traceparent"] == trace
    assert "authorization" not in seen


def test_statuses_of_the_server_pass_unchanged(
    place: Place, gateway: Gateway, upstream: TestServer
) -> None:
    """The words for 32 bad rows are longer than nginx's usual buffer."""
    rows = {name: column * 32 for name, column in ROW.items()}
    rows["customer_id"] = ["x" * 200] * 32
    rows["terminal_id"] = ["y" * 200] * 32
    tls = tls_from(authority=place.pem("ca"))
    with Client(
        gateway.listen, timeout_s=PATIENT_S, tls=tls, token=place.shop
    ) as client:
        with pytest.raises(InvalidRequest, match="row 31: "):
            client.decide(rows)
        upstream.fail("INTERNAL", words="w" * 16_000, requests=1)
        with pytest.raises(Exception, match="w" * 16_000):
            client.decide(ROW)
        upstream.heal()
        assert client.decide(ROW).decision.tolist() == ["approve"]


def test_a_server_that_is_away_is_unavailable(place: Place) -> None:
    """The gateway says so at once, and finds the server again."""
    with TestServer() as behind:
        told = place.gateway(behind.url)
        with running(told), place.channel(told.listen) as opened:
            assert live(opened, key=place.shop) == "OK"
            behind.drop()
            assert live(opened, key=place.shop) == "UNAVAILABLE"
            behind.heal()
            assert live(opened, key=place.shop) == "OK"


def test_a_probe_needs_no_proof(gateway: Gateway) -> None:
    """/healthz says that nginx runs; nothing else is there."""
    for path, status in (("/healthz", 200), ("/", 404), (f"{SERVICE}ModelInfer", 404)):
        asked = http.client.HTTPConnection(gateway.health_listen, timeout=20)
        asked.request("GET", path)
        assert asked.getresponse().status == status
        asked.close()
