"""A real nginx with the gateway's bounds, before a server that keeps requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

from tests.support.gateway.gateways import PATIENT_S, Place, bearer, live, running
from tollgate.gateway.template import Gateway
from tollgate.testing import TestServer
from tollgate_client import Overloaded
from tollgate_client.addresses import infer_method
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.errors import client_error
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

pytestmark = pytest.mark.system("nginx", "openssl")

ROW = {
    "transaction_id": ["t-1"],
    "customer_id": ["c"],
    "terminal_id": ["m"],
    "amount": [12.5],
    "event_time": [1_700_000_000_000_000],
}
BULK = (("tollgate-class", "bulk"),)


@pytest.fixture(scope="module")
def gateway(place: Place, upstream: TestServer) -> Iterator[Gateway]:
    """A gateway that lets in four, three of one caller, one that can wait."""
    told = place.gateway(
        upstream.url, in_flight=4, caller_in_flight=3, bulk_in_flight=1, workers=1
    )
    with running(told):
        yield told


class Asking:
    """Requests of callers that a server keeps until it is told otherwise."""

    def __init__(self, channel: grpc.Channel, server: TestServer) -> None:
        self._infer = infer_method(channel)
        self._server = server
        (self._request,) = requests_of(
            check_columns(ROW, inputs=FRAUD_INPUTS),
            product="fraud",
            size=1,
            dry_run=False,
            deadline_s=PATIENT_S,
        )
        self.kept: list[grpc.Future] = []

    def ask(self, key: str, *more: tuple[str, str]) -> str:
        """Ask; 'let in' once the server has it, else the words of the refusal."""
        before = len(self._server.asked)
        call = self._infer.future(
            self._request, timeout=PATIENT_S, metadata=(*bearer(key), *more)
        )
        while not call.done():
            if len(self._server.asked) > before:
                self.kept.append(call)
                return "let in"
            time.sleep(0.002)
        error = client_error(call.exception(), where="fraud", deadline_s=PATIENT_S)
        assert isinstance(error, Overloaded)
        return str(error)


@pytest.fixture
def asking(place: Place, gateway: Gateway, upstream: TestServer) -> Iterator[Asking]:
    """Callers of it, while the server answers nobody."""
    upstream.stall()
    with place.channel(gateway.listen) as channel:
        found = Asking(channel, upstream)
        yield found
        upstream.heal()
        for call in found.kept:
            assert call.exception(PATIENT_S) is None


REFUSED = "fraud: overloaded: more is asked than can be decided in time"


def test_one_caller_leaves_room_for_another(asking: Asking, place: Place) -> None:
    """The fourth of one is refused, the first of the other let in, then none."""
    assert [asking.ask(place.shop) for _ in range(4)] == ["let in"] * 3 + [REFUSED]
    assert [asking.ask(place.bank) for _ in range(2)] == ["let in", REFUSED]


def test_what_can_wait_leaves_room_for_payments(asking: Asking, place: Place) -> None:
    """A second one of bulk is refused while payments are let in."""
    assert [asking.ask(place.shop, *BULK) for _ in range(2)] == ["let in", REFUSED]
    assert asking.ask(place.bank, *BULK) == REFUSED
    assert asking.ask(place.bank) == "let in"


def test_who_is_answered_makes_room(
    asking: Asking, place: Place, gateway: Gateway, upstream: TestServer
) -> None:
    """And whether the server lives may be asked however much is under way."""
    assert [asking.ask(place.shop) for _ in range(4)][-1] == REFUSED
    with place.channel(gateway.listen) as channel:
        assert live(channel, key=place.shop) == "OK"
    upstream.heal()
    for call in asking.kept:
        assert call.exception(PATIENT_S) is None
    upstream.stall()
    assert asking.ask(place.shop) == "let in"


def test_the_server_is_told_when_a_request_came(
    asking: Asking, place: Place, upstream: TestServer
) -> None:
    """By the gateway's clock, whatever the caller says."""
    before_s = time.time()
    assert asking.ask(place.shop, ("tollgate-arrived", "12.5")) == "let in"
    came_s = float(upstream.asked[-1].metadata["tollgate-arrived"])
    assert before_s - 0.1 < came_s < time.time() + 0.1
