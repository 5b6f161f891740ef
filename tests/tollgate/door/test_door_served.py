"""The door before the real product, started and called as people do."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tollgate.server.processes.environment import free_port
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.testing import TestServer
from tollgate_client import DecisionClient, Fallback, Options

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
REPOSITORY = CHECKOUT / "model_repository"
PATIENT_S = 60.0
UNVERIFIED = ssl._create_unverified_context()
PATIENT = {"content-type": "application/json", "x-request-timeout-ms": "60000"}


class Door(msgspec.Struct, frozen=True):
    """A door that a command runs."""

    process: subprocess.Popen[str]
    port: int
    metrics_port: int


def row(name: str, **more: object) -> dict[str, object]:
    """A purchase of now."""
    return {
        "transaction_id": name,
        "customer_id": f"customer-{name}",
        "terminal_id": "corner-shop",
        "amount": 12.34,
        "event_time": time.time_ns() // 1000,
        **more,
    }


def post(
    port: int, body: bytes | object, path: str = "/decide", **headers: str
) -> tuple[int, Any]:
    """Send a body; return the status and the answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENT_S)
    with contextlib.closing(connection):
        connection.request("POST", path, body=content, headers={**PATIENT, **headers})
        got = connection.getresponse()
        return got.status, json.loads(got.read())


@contextlib.contextmanager
def door(server_url: str, *options: str) -> Iterator[Door]:
    """Run `tollgate door` until the context ends; it must end well."""
    code = "import sys; from tollgate.cli import main; sys.exit(main())"
    port, metrics_port = free_port(), free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", code, "door", "--repository", str(REPOSITORY)),
            *("--url", server_url, "--port", str(port)),
            *("--metrics-port", str(metrics_port), *options),
        ],
        cwd=CHECKOUT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_ready(process, port, "https" if "--door-cert" in options else "http")
        yield Door(process, port, metrics_port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENT_S)
    assert process.returncode in (0, -signal.SIGKILL)


def wait_ready(process: subprocess.Popen[str], port: int, scheme: str = "http") -> None:
    """Wait until the door answers."""
    until_s = time.monotonic() + PATIENT_S
    while time.monotonic() < until_s:
        assert process.poll() is None
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(
                f"{scheme}://127.0.0.1:{port}/v2/health/ready", context=UNVERIFIED
            ),
        ):
            return
        time.sleep(0.05)
    raise AssertionError("the door did not start")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """The fused product of this checkout."""
    state = tmp_path_factory.mktemp("state")
    with serve(REPOSITORY, state=state, form="fused") as running:
        yield running


@pytest.fixture(scope="module")
def opened(server: Embedded) -> Iterator[Door]:
    """A door before it, for everybody."""
    with door(server.grpc_url) as running:
        yield running


def test_it_gives_the_decisions_that_grpc_gives(opened: Door, server: Embedded) -> None:
    """The same answer for the same transaction id; other content is a conflict."""
    rows = [row(f"same-{one}", amount=400.0 * one + 1) for one in range(40)]
    status, answers = post(opened.port, rows)
    assert status == 200
    assert {one["source"] for one in answers} == {"model"}
    assert {"decline", "approve"} <= {one["decision"] for one in answers}
    with DecisionClient(
        server.grpc_url,
        fallback=Fallback(otherwise="review"),
        options=Options(deadline_s=PATIENT_S),
    ) as client:
        for one, answer in zip(rows, answers, strict=True):
            got = client.decide(one, dry_run=True)
            assert got.decision == answer["decision"]
            assert got.score == answer["score"]
            assert list(got.reason_codes) == answer["reason_codes"]
            assert got.release == answer["release"]
    stored = f"tollgate:fraud:decided:{rows[0]['transaction_id']}"
    wait_stored(server, stored)
    assert post(opened.port, rows[0])[1]["score"] == answers[0]["score"]
    status, refused = post(opened.port, {**rows[0], "amount": 7.0})
    assert status == 422
    assert refused["errors"][0]["field"] == "transaction_id"
    assert "conflict: was decided with other content" in refused["detail"]


def wait_stored(server: Embedded, key: str) -> None:
    """Wait until the journal's thread stored a decision."""
    import redis

    until_s = time.monotonic() + PATIENT_S
    with redis.Redis.from_url(server.store_url) as store:
        while not store.exists(key):
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_sentences_of_the_policy_explain_a_decision(opened: Door) -> None:
    """A large first purchase of a card."""
    _, answer = post(opened.port, row("large", amount=1500.0))
    assert answer["reason_codes"]
    assert "The amount is unusually large." in answer["reasons"]
    assert answer["degraded"] == ["COLD_START"]


@pytest.mark.system("h2load")
@pytest.mark.parametrize("protocol", ["--h1", "--npn-list=h2c"])
def test_both_protocols_are_spoken(opened: Door, tmp_path: Path, protocol: str) -> None:
    """h2load over HTTP/1.1 and over HTTP/2 with prior knowledge, many at once."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps(row(f"h2load{protocol}")))
    choice = ["--h1"] if protocol == "--h1" else ["-p", "h2c", "-m", "8"]
    done = subprocess.run(
        [
            *("h2load", *choice, "-n", "200", "-c", "8", "-d", str(body)),
            *("-H", "content-type: application/json"),
            *("-H", "x-request-timeout-ms: 60000"),
            f"http://127.0.0.1:{opened.port}/decide",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "status codes: 200 2xx, 0 3xx, 0 4xx, 0 5xx" in done.stdout


@pytest.mark.system("curl")
def test_the_examples_of_the_page_are_answered(
    server: Embedded, tmp_path: Path
) -> None:
    """As they are printed, with a key that the command drew."""
    code = "from tollgate.cli import main; main()"
    drawn = subprocess.run(
        [
            *(sys.executable, "-c", code, "gateway", "key", "shop"),
            *("--api-keys", str(tmp_path / "keys")),
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "shop.key").write_text(drawn.stdout)
    page = (CHECKOUT / "docs" / "door.md").read_text()
    commands = re.findall(r"^```curl\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (rule,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "rules.yaml").write_text(rule)
    options = ("--api-keys", str(tmp_path / "keys"), "--deadline-ms", "60000")
    rules = ("--fallback", str(tmp_path / "rules.yaml"))
    with door(server.grpc_url, *options, *rules) as opened:
        assert post(opened.port, row("stranger"))[0] == 401
        answers = []
        for command in commands:
            done = subprocess.run(
                ["sh", "-euc", command.replace(":8080", f":{opened.port}")],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
            )
            answers.append(json.loads(done.stdout))
    one, several, inferred = answers
    (printed,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    wanted = json.loads(printed)
    assert one.keys() == wanted.keys()
    for name in ("decision", "reasons", "reason_codes", "degraded", "source"):
        assert one[name] == wanted[name]
    assert several[0]["error"]["field"] == "amount"
    assert several[1]["decision"] == "approve"
    assert [tensor["data"] for tensor in inferred["outputs"]] == [
        ["approve"],
        ["model"],
    ]


def test_callers_that_are_slow_or_wrong_keep_nobody_waiting(opened: Door) -> None:
    """Half a header, half a body, an endless header, no HTTP at all."""
    address = ("127.0.0.1", opened.port)
    head = b"POST /decide HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        slow = []
        for text in (
            head,
            head + b"content-length: 100\r\n\r\n{",
            b"",
        ):
            one = stack.enter_context(socket.create_connection(address, PATIENT_S))
            one.sendall(text)
            slow.append(one)
        for number in range(20):
            assert post(opened.port, row(f"meanwhile-{number}"))[0] == 200
        assert b" 408 " in slow[1].recv(4096).partition(b"\r\n")[0]
    with socket.create_connection(address, PATIENT_S) as endless:
        with contextlib.suppress(OSError):
            endless.sendall(head + b"x: " + b"y" * 1_000_000)
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in endless.recv(4096).partition(b"\r\n")[0]
    with socket.create_connection(address, PATIENT_S) as nonsense:
        nonsense.sendall(b"\x16\x03\x01" + os.urandom(200) + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in nonsense.recv(4096).partition(b"\r\n")[0]
    assert post(opened.port, b" " * 10_000_000)[0] == 413
    assert post(opened.port, row("after"))[0] == 200


def test_metrics_have_the_rows(opened: Door) -> None:
    """For Prometheus, from the process that decides."""
    post(opened.port, row("counted"))
    url = f"http://127.0.0.1:{opened.metrics_port}/metrics"
    with urllib.request.urlopen(url) as page:
        text = page.read().decode()
    assert 'tollgate_door_rows_total{product="fraud",source="model"}' in text
    assert 'tollgate_background_failures{loop="door-refresh"} 0.0' in text


def test_a_request_in_flight_is_answered_before_the_end(server: Embedded) -> None:
    """SIGTERM while rows are at the server."""
    with door(server.grpc_url) as opened:
        os.kill(server.triton.pid, signal.SIGSTOP)
        try:
            answers: list[tuple[int, Any]] = []
            caller = threading.Thread(
                target=lambda: answers.append(post(opened.port, row("in-flight")))
            )
            caller.start()
            wait_in_flight(opened)
            opened.process.send_signal(signal.SIGTERM)
        finally:
            os.kill(server.triton.pid, signal.SIGCONT)
        caller.join(PATIENT_S)
    ((status, answer),) = answers
    assert (status, answer["source"]) == (200, "model")


def wait_in_flight(opened: Door) -> None:
    """Wait until the door has a row in flight."""
    url = f"http://127.0.0.1:{opened.metrics_port}/metrics"
    until_s = time.monotonic() + PATIENT_S
    while time.monotonic() < until_s:
        with urllib.request.urlopen(url) as page:
            if b"\ntollgate_door_rows_in_flight 1.0\n" in page.read():
                return
        time.sleep(0.02)
    raise AssertionError("no row is in flight")


def test_every_call_is_answered_while_the_server_is_killed(tmp_path: Path) -> None:
    """By the model before, by the rule after; each one is marked."""
    with (
        serve(REPOSITORY, state=tmp_path, form="fused") as server,
        door(server.grpc_url) as opened,
    ):
        sources = asyncio.run(callers_of(opened, server.triton.pid))
    flat = [source for one in sources for source in one]
    assert len(flat) == 16 * 30
    assert flat.count("model") >= 16 * 5
    assert set(flat) <= {"model", "fallback", "cached"}
    assert {one[-1] for one in sources} == {"fallback"}


async def callers_of(opened: Door, server_pid: int) -> list[list[str]]:
    """Call from 16 callers, 30 rows each; the server is killed after the fifth."""
    reached = asyncio.Event()
    count = 0

    async def caller(number: int) -> list[str]:
        nonlocal count
        found = []
        for one in range(30):
            name = f"killed-{number}-{one}"
            timeout = "60000" if one < 5 else "50"
            status, answer = await asyncio.to_thread(
                post, opened.port, row(name), **{"x-request-timeout-ms": timeout}
            )
            assert status == 200
            found.append(answer["source"])
            if one == 4:
                count += 1
                if count == 16:
                    reached.set()
            if one == 14:
                await killed.wait()
        return found

    killed = asyncio.Event()

    async def kill() -> None:
        await reached.wait()
        os.kill(server_pid, signal.SIGKILL)
        killed.set()

    *sources, _ = await asyncio.gather(*(caller(one) for one in range(16)), kill())
    return sources


def children_of(pid: int) -> list[int]:
    """The processes that a process started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in text.split()]


def test_the_process_that_decides_is_restarted_and_ends_with_its_parent() -> None:
    """Nothing holds the port after the command was killed."""
    with TestServer() as server, door(server.url) as opened:
        (worker,) = children_of(opened.process.pid)
        os.kill(worker, signal.SIGKILL)
        until_s = time.monotonic() + PATIENT_S
        while children_of(opened.process.pid) in ([], [worker]):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        wait_ready(opened.process, opened.port)
        assert post(opened.port, row("after"))[1]["source"] == "model"
        (second,) = children_of(opened.process.pid)
        opened.process.kill()
        while Path(f"/proc/{second}").exists():
            assert time.monotonic() < until_s + PATIENT_S
            time.sleep(0.05)


@pytest.mark.system("curl", "openssl")
def test_tls_is_spoken_with_both_protocols(tmp_path: Path) -> None:
    """With the certificates that the gateway's command makes."""
    code = "from tollgate.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, "gateway", "certificates", str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    )
    certificate = ("--door-cert", str(tmp_path / "server.pem"))
    key = ("--door-key", str(tmp_path / "server.key"))
    with TestServer() as server, door(server.url, *certificate, *key) as opened:
        for option, version in (("--http1.1", "1.1"), ("--http2", "2")):
            done = subprocess.run(
                [
                    *("curl", "-sS", option, "--cacert", str(tmp_path / "ca.pem")),
                    *(
                        "-w",
                        "\n%{http_version}",
                        "-d",
                        json.dumps(row(f"tls-{version}")),
                    ),
                    *("-H", "content-type: application/json"),
                    *("-H", "x-request-timeout-ms: 60000"),
                    f"https://127.0.0.1:{opened.port}/decide",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            answer, spoken = done.stdout.rsplit("\n", 1)
            assert spoken == version
            assert json.loads(answer)["source"] == "model"
            head = subprocess.run(
                [
                    *("curl", "-sS", "-I", option, "-m", str(PATIENT_S)),
                    *("--cacert", str(tmp_path / "ca.pem")),
                    f"https://127.0.0.1:{opened.port}/v2/health/ready",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            assert " 200" in head.stdout.splitlines()[0]
        opened.process.send_signal(signal.SIGHUP)  # its terminal is gone
        assert opened.process.wait(PATIENT_S) == 0
