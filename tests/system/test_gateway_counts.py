"""What a real nginx does with requests is what its metrics say."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.gateway.gateways import (
    PATIENT_S,
    SERVICE,
    Place,
    ask,
    bearer,
    live,
    running,
)
from tollgate.gateway.gateway_metrics import GatewayMetrics
from tollgate.gateway.template import Gateway
from tollgate.testing import TestServer
from tollgate_client.addresses import infer_method
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

pytestmark = pytest.mark.system("nginx", "openssl")

INFER = f"{SERVICE}ModelInfer"
ROW = {
    "transaction_id": ["t-1"],
    "customer_id": ["c"],
    "terminal_id": ["m"],
    "amount": [12.5],
    "event_time": [1_700_000_000_000_000],
}
(REQUEST,) = requests_of(
    check_columns(ROW, inputs=FRAUD_INPUTS),
    product="fraud",
    size=1,
    dry_run=False,
    deadline_s=PATIENT_S,
)
Series = tuple[str, str, str, str]


class Counts:
    """A gateway's metrics, read until all requests are in them."""

    def __init__(self, gateway: Gateway) -> None:
        self.metrics = GatewayMetrics(gateway.requests, limits=gateway.limits)

    def of(self, requests: int) -> Counter[Series]:
        """Give what was asked, outcome, caller and status of so many requests."""
        until = time.monotonic() + PATIENT_S
        while True:
            self.metrics.update()
            found: Counter[Series] = Counter()
            for family in self.metrics.registry.collect():
                for sample in family.samples:
                    if sample.name == "tollgate_gateway_requests_total":
                        told = sample.labels
                        names = (told["asked"], told["outcome"])
                        key = (*names, told["caller"], told["status"])
                        found[key] += int(sample.value)
            if found.total() >= requests:
                return found
            assert time.monotonic() < until, found
            time.sleep(0.05)


@contextlib.contextmanager
def counting(gateway: Gateway) -> Iterator[Counts]:
    """Run a gateway, and count."""
    counts = Counts(gateway)
    with running(gateway), contextlib.closing(counts.metrics):
        yield counts


def counted_at(place: Place, upstream: str, **changes: object) -> Gateway:
    """Describe a gateway whose requests are counted."""
    name = f"requests-{time.monotonic_ns()}.log"
    return place.gateway(upstream, requests=place.folder / name, **changes)


def test_a_flood_is_counted_to_the_last_request(
    place: Place, upstream: TestServer
) -> None:
    """As many passed and refused as the caller was told; another caller by itself."""
    told = counted_at(place, upstream.url, rate=1, burst=3)
    with counting(told) as counts:
        with place.channel(told.listen) as opened:
            said = Counter(live(opened, key=place.shop) for _ in range(60))
            said_bank = live(opened, key=place.bank)
        found = counts.of(61)
    assert said_bank == "OK"
    assert said["RESOURCE_EXHAUSTED"] > 50
    assert found == {
        ("health", "passed", "shop", "OK"): said["OK"],
        ("health", "rate", "shop", "RESOURCE_EXHAUSTED"): said["RESOURCE_EXHAUSTED"],
        ("health", "passed", "bank", "OK"): 1,
    }


def test_each_refusal_is_counted_by_its_reason(place: Place) -> None:
    """And what passed by the server's own status; a wrong key names no caller."""
    with TestServer() as behind:
        told = counted_at(place, behind.url, workers=1)
        with counting(told) as counts, place.channel(told.listen) as opened:
            for path, key, body in (
                (INFER, "", b""),
                (INFER, "0" * 64, b""),
                (f"{SERVICE}RepositoryModelLoad", place.shop, b""),
                (INFER, place.shop, bytes(200_000)),
                (f"{SERVICE}ServerMetadata", place.shop, b""),
                (INFER, place.shop, REQUEST[:-1]),
                (INFER, place.shop, REQUEST),
                (INFER, place.shop, REQUEST.replace(b"fraud", b"other")),
            ):
                ask(opened, path, key=key, body=body)
            behind.drop()
            ask(opened, INFER, key=place.shop, body=REQUEST)
            found = counts.of(9)
    assert found == {
        ("metadata", "passed", "shop", "UNIMPLEMENTED"): 1,
        ("decision", "malformed", "shop", "INVALID_ARGUMENT"): 1,
        ("decision", "passed", "shop", "OK"): 1,
        ("decision", "denied", "shop", "PERMISSION_DENIED"): 1,
        ("decision", "unauthenticated", "", "UNAUTHENTICATED"): 2,
        ("other", "denied", "shop", "PERMISSION_DENIED"): 1,
        ("decision", "size", "shop", "RESOURCE_EXHAUSTED"): 1,
        ("decision", "no_server", "shop", "UNAVAILABLE"): 1,
    }


def test_bulk_is_told_from_payments_and_who_gives_up_from_both(
    place: Place, upstream: TestServer
) -> None:
    """One of bulk under way; the second is refused; both callers go away."""
    told = counted_at(place, upstream.url, bulk_in_flight=1, workers=1)
    bulk = (*bearer(place.shop), ("tollgate-class", "bulk"))
    upstream.stall()
    with counting(told) as counts, place.channel(told.listen) as opened:
        infer = infer_method(opened)
        until = time.monotonic() + PATIENT_S
        kept = []
        for metadata in (bulk, bearer(place.bank)):
            before = len(upstream.asked)
            kept.append(infer.future(REQUEST, metadata=metadata, timeout=PATIENT_S))
            while len(upstream.asked) == before:
                assert time.monotonic() < until
                time.sleep(0.002)
        with pytest.raises(grpc.RpcError, match="overloaded: "):
            infer(REQUEST, metadata=bulk, timeout=PATIENT_S)
        for one in kept:
            one.cancel()
        found = counts.of(3)
    upstream.heal()
    assert found == {
        ("bulk", "gave_up", "shop", ""): 1,
        ("bulk", "overloaded", "shop", "UNAVAILABLE"): 1,
        ("decision", "gave_up", "bank", ""): 1,
    }


def test_a_caller_with_a_certificate_is_told_by_its_subject(
    place: Place, upstream: TestServer
) -> None:
    """Proven ones alone: whoever shows another authority's gets no series."""
    told = counted_at(
        place, upstream.url, auth="mtls", client_ca=place.pem("ca"), keys=None
    )
    with counting(told) as counts:
        for certificate, said in (("caller", "OK"), ("", "UNAUTHENTICATED")):
            with place.channel(told.listen, certificate=certificate) as opened:
                assert live(opened) == said
        found = counts.of(2)
    assert found == {
        ("health", "passed", "CN=caller", "OK"): 1,
        ("health", "unauthenticated", "", "UNAUTHENTICATED"): 1,
    }


def test_a_full_disk_and_nobody_who_counts_cost_no_answer(
    place: Place, upstream: TestServer
) -> None:
    """nginx cannot write a single line, and answers as ever."""
    full = place.gateway(upstream.url, requests=Path("/dev/full"))
    with running(full), place.channel(full.listen) as opened:
        until = time.monotonic() + 2.5  # it writes after a second
        while time.monotonic() < until:
            assert live(opened, key=place.shop) == "OK"
            time.sleep(0.01)
