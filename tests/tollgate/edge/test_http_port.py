"""A device answers HTTP in the words of the door, with the bits of gRPC."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge.bundles import REPOSITORY, Keys
from tollgate import Engine
from tollgate.edge.device import Device
from tollgate.edge.http_port import HttpPort
from tollgate.errors import SetupError

NOW = datetime.now(UTC).replace(microsecond=250_000)
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def device(bundle: Path, keys: Keys, tmp_path: Path) -> Iterator[Device]:
    """Open a device on an empty folder."""
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        yield device


@pytest.fixture
def port(device: Device) -> Iterator[HttpPort]:
    """Serve it."""
    with HttpPort(device, address="127.0.0.1:0") as port:
        yield port


class Caller:
    """A connection that stays open until it is closed."""

    def __init__(self, port: HttpPort) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port.port)

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def post(
        self, body: object, path: str = "/decide", headers: dict[str, str] = JSON
    ) -> tuple[int, Any]:
        """Send a body; return status and JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("POST", path, body=content, headers=headers)
        return self.response()

    def get(self, path: str) -> tuple[int, Any]:
        """Request a page."""
        self._connection.request("GET", path)
        return self.response()

    def response(self) -> tuple[int, Any]:
        """Read a response."""
        found = self._connection.getresponse()
        return found.status, json.loads(found.read())


@pytest.fixture
def caller(port: HttpPort) -> Iterator[Caller]:
    """Open a connection."""
    with closing(Caller(port)) as caller:
        yield caller


def row(number: int, **changed: object) -> dict[str, Any]:
    """Make a purchase."""
    return {
        "transaction_id": f"t{number}",
        "customer_id": f"c{number % 3}",
        "terminal_id": "m1",
        "amount": 10.25 + 400 * number,
        "event_time": (NOW + timedelta(milliseconds=number)).isoformat(),
        **changed,
    }


def test_rows_have_the_answers_of_an_engine(caller: Caller) -> None:
    """A list, a row alone, a dry run, over one connection; every bit of the score."""
    assert caller.get("/v2/health/ready") == (200, {"ready": True})
    rows = [row(number) for number in range(20)]
    with Engine.open(REPOSITORY, product="fraud") as engine:
        wanted = engine.decide(
            {name: [one[name] for one in rows] for name in rows[0]}
            | {
                "event_time": [
                    round(datetime.fromisoformat(one["event_time"]).timestamp() * 1e6)
                    for one in rows
                ]
            }
        )
    for path in ("/decide/fraud?dry_run=true", "/decide/fraud", "/decide"):
        status, found = caller.post(rows, path)
        assert status == 200
        assert [one["transaction_id"] for one in found] == [
            one["transaction_id"] for one in rows
        ]
        assert [one["decision"] for one in found] == wanted["decision"].tolist()
        assert [struct.pack("<f", one["score"]) for one in found] == [
            struct.pack("<f", one) for one in wanted["score"].tolist()
        ]
        assert ["|".join(one["reason_codes"]) for one in found] == wanted[
            "reason_codes"
        ].tolist()
        assert {one["release"] for one in found} == {"fraud-1"}
        assert {one["source"] for one in found} == {"model"}
    assert len(set(wanted["score"].tolist())) > 5
    status, alone = caller.post(rows[7])
    assert (status, alone) == (200, found[7])  # the first decision stands


def test_a_bad_row_fails_alone(caller: Caller) -> None:
    """By its type, by a rule, by its id sent before; the message names the field."""
    caller.post(row(3))
    rows = [
        row(0),
        row(1, amount="12"),
        row(2, customer_id=""),
        row(3, amount=7.5),
        [],
        row(5, event_time="yesterday"),
    ]
    status, found = caller.post(rows)
    assert status == 200
    assert "decision" in found[0]
    assert [one["error"]["row"] for one in found[1:]] == [1, 2, 3, 4, 5]
    assert [one["error"]["field"] for one in found[1:]] == [
        "amount",
        "customer_id",
        "transaction_id",
        "",
        "event_time",
    ]
    status, found = caller.post([rows[3]])
    assert status == 422
    assert "was decided with other content" in found["detail"]
    assert caller.post(row(8))[0] == 200


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "says"),
    [
        (b"{", "/decide", JSON, 400, "not valid JSON"),
        (b"", "/decide", JSON, 400, "the body is empty"),
        (b"[]", "/decide", JSON, 400, "0 rows"),
        (b"{}", "/decide", {}, 415, "content-type"),
        (b"{}", "/decide/other", JSON, 404, "decides by fraud"),
        (b"{}", "/decide?dry=1", JSON, 400, "known is dry_run"),
        (b"{}", "/decide", JSON, 422, "transaction_id: missing"),
        (b" " * 300_000, "/decide", JSON, 413, "262144"),
    ],
)
def test_a_request_is_refused_in_words(
    caller: Caller,
    body: bytes,
    path: str,
    headers: dict[str, str],
    status: int,
    says: str,
) -> None:
    """As problem details."""
    found_status, found = caller.post(body, path, headers)
    assert (found_status, found["status"]) == (status, status)
    assert says in found["detail"]


def test_more_than_32_rows_and_unknown_pages_are_refused(caller: Caller) -> None:
    """As a door refuses them."""
    status, found = caller.post([row(number) for number in range(33)])
    assert status == 400
    assert "33 rows" in found["detail"]
    assert caller.get("/metrics")[0] == 404


def test_an_open_connection_is_refused_after_the_end(
    device: Device, port: HttpPort, caller: Caller
) -> None:
    """Its caller tries again, and reaches the device that has opened by then."""
    assert caller.post(row(1))[0] == 200
    port.close()
    assert caller.post(row(2))[0] == 503
    with closing(Caller(port)) as late, pytest.raises(ConnectionError):
        late.post(row(2))
    with (
        HttpPort(device, address="127.0.0.1:0") as other,
        closing(Caller(other)) as again,
    ):
        assert again.post(row(2))[0] == 200


def test_an_idempotency_key_is_the_id_of_a_row(caller: Caller) -> None:
    """As at the door."""
    rows = row(1)
    del rows["transaction_id"]
    status, found = caller.post(rows, headers=JSON | {"Idempotency-Key": "k1"})
    assert (status, found["transaction_id"]) == (200, "k1")
    assert caller.post(rows, headers=JSON | {"Idempotency-Key": "k1"})[1] == found


def test_a_port_that_is_taken_is_named(device: Device, port: HttpPort) -> None:
    """In one line."""
    address = f"127.0.0.1:{port.port}"
    with pytest.raises(SetupError, match=address):
        HttpPort(device, address=address)


def exchanged(port: HttpPort, *parts: bytes) -> list[bytes]:
    """Send each part after a response to the one before; end; return what came."""
    found = []
    with socket.create_connection(("127.0.0.1", port.port), timeout=20.0) as caller:
        for part in parts[:-1]:
            caller.sendall(part)
            found.append(caller.recv(65_536))
        caller.sendall(parts[-1])
        caller.shutdown(socket.SHUT_WR)
        rest = b""
        while chunk := caller.recv(65_536):
            rest += chunk
    return [*found, rest]


def test_a_caller_that_waits_for_100_continue_is_answered(port: HttpPort) -> None:
    """It sends its body only then."""
    body = json.dumps(row(1)).encode()
    head = b"POST /decide HTTP/1.1\r\nContent-Type: application/json\r\n"
    head += b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    first, second = exchanged(port, head, body)
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert second.startswith(b"HTTP/1.1 200 ")


def test_a_body_of_another_length_is_no_request(port: HttpPort, device: Device) -> None:
    """It is not decided, and no byte of it is taken for the next request."""
    body = json.dumps(row(1)).encode()
    head = b"POST /decide HTTP/1.1\r\nContent-Type: application/json\r\n"
    length = b"Content-Length: %d\r\n"
    (short,) = exchanged(port, head + length % (len(body) + 9) + b"\r\n" + body)
    assert short.startswith(b"HTTP/1.1 400 ")
    assert b"the body ends after %d of %d bytes" % (len(body), len(body) + 9) in short
    for other in (b"Transfer-Encoding: chunked\r\n", length % 4):
        both = head + other + length % len(body) + b"\r\n"
        (refused,) = exchanged(port, both + body)
        assert refused.startswith(b"HTTP/1.1 411 ")
        assert refused.count(b"HTTP/1.1") == 1
    page = b"GET /v2/health/ready HTTP/1.1\r\n" + length % 4 + b"\r\nPOST"
    (ready,) = exchanged(port, page)
    assert ready.startswith(b"HTTP/1.1 200 ")
    assert ready.count(b"HTTP/1.1") == 1
    assert device._store.next == 0


def test_a_caller_that_goes_away_costs_nobody_anything(
    port: HttpPort, caller: Caller, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends within its headers, within its body, or without reading the answer."""
    head = b"POST /decide HTTP/1.1\r\nContent-Type: application/json\r\n"
    body = json.dumps(row(1)).encode()
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for sent in (head, whole[:-20], whole):
        with socket.create_connection(("127.0.0.1", port.port)) as away:
            away.sendall(sent)
            away.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
    assert caller.post(row(2))[0] == 200
    assert "Traceback" not in capfd.readouterr().err
