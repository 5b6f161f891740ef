"""nginx before the real ensemble, started and called as people do."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.gateways import (
    PATIENT_S,
    SERVICE,
    Place,
    ask,
    bearer,
    free_port,
)
from tollgate.load.hostile_requests import good_request, hostile_requests
from tollgate.server.serving.embedded import Embedded, serve
from tollgate_client import (
    AsyncDecisionClient,
    Client,
    Decision,
    DecisionClient,
    Fallback,
    InvalidRequest,
    Options,
    Tls,
    Unavailable,
    tls_from,
)
from tollgate_client.wire import decisions_of

pytestmark = [pytest.mark.slow, pytest.mark.system("nginx", "openssl")]

CHECKOUT = Path(__file__).parents[2]
RULE = Fallback(otherwise="review")


class Opened(msgspec.Struct, frozen=True):
    """A gateway that a command runs."""

    listen: str
    state: Path
    metrics: str


def command(*arguments: str) -> list[str]:
    """Call the command line."""
    code = "import sys; from tollgate.cli import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]


def purchase(name: str) -> dict[str, object]:
    """Buy something now."""
    return {
        "transaction_id": name,
        "customer_id": f"customer-{name}",
        "terminal_id": "corner-shop",
        "amount": 12.34,
        "event_time": time.time_ns() // 1000,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """The product of this checkout, as cloned."""
    state = tmp_path_factory.mktemp("state")
    with serve(CHECKOUT / "model_repository", state=state) as running:
        yield running


@pytest.fixture(scope="module")
def opened(place: Place, server: Embedded) -> Iterator[Opened]:
    """`tollgate gateway run`, which asks for a key and a certificate."""
    listen, health = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    metrics_port = free_port()
    state = place.folder / "state"
    run = subprocess.Popen(
        command(
            *("gateway", "run", "--upstream", server.grpc_url, "--listen", listen),
            *("--tls-cert", str(place.pem("server")), "--auth", "both"),
            *("--tls-key", str(place.folder / "server.key")),
            *("--client-ca", str(place.pem("ca")), "--api-keys", str(place.keys)),
            *("--health-listen", health, "--state", str(state)),
            *("--metrics-port", str(metrics_port)),
        ),
        cwd=CHECKOUT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    assert f"{listen} → {server.grpc_url}, both" in run.stderr.readline()
    yield Opened(listen, state, f"http://127.0.0.1:{metrics_port}/metrics")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=PATIENT_S)
    assert run.returncode == 0


@pytest.fixture(scope="module")
def proof(place: Place) -> Tls:
    """What a caller shows beside the key."""
    return tls_from(
        authority=place.pem("ca"),
        certificate=place.pem("caller"),
        key=place.folder / "caller.key",
    )


def test_every_client_gets_decisions(place: Place, opened: Opened, proof: Tls) -> None:
    """Ours for threads and for asyncio, and the one for whole files."""
    options = Options(deadline_s=PATIENT_S, tls=proof, token=place.shop)
    with DecisionClient(opened.listen, fallback=RULE, options=options) as client:
        assert client.decide(purchase("g-1")).source == "model"

    async def several() -> list[str]:
        async with AsyncDecisionClient(
            opened.listen, fallback=RULE, options=options
        ) as client:
            asked = (client.decide(purchase(f"g-2-{one}")) for one in range(40))
            return [answer.source for answer in await asyncio.gather(*asked)]

    assert set(asyncio.run(several())) == {"model"}
    rows = [purchase(f"g-3-{one}") for one in range(100)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    with Client(
        opened.listen, timeout_s=PATIENT_S, tls=proof, token=place.shop
    ) as many:
        answers = list(many.decide_many(columns))
        assert {word for one in answers for word in one.decision} == {"approve"}
        bad = {name: column[:32] for name, column in columns.items()}
        bad["amount"] = [-1.0] * 32
        with pytest.raises(InvalidRequest, match=r"row 31: amount"):
            many.decide(bad)
    with (
        Client(opened.listen, timeout_s=PATIENT_S, tls=proof) as keyless,
        pytest.raises(Unavailable, match="no valid key"),
    ):
        keyless.decide({name: column[:1] for name, column in columns.items()})


def test_score_asks_through_it(place: Place, opened: Opened, tmp_path: Path) -> None:
    """A file is decided with a certificate and a key out of a file."""
    row = purchase("g-4")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "token").write_text(f"{place.shop}\n")
    done = subprocess.run(
        command(
            *("score", str(tmp_path / "rows.jsonl"), "--url", opened.listen),
            *(
                "--tls-ca",
                str(place.pem("ca")),
                "--token-file",
                str(tmp_path / "token"),
            ),
            *("--tls-cert", str(place.pem("caller"))),
            *("--tls-key", str(place.folder / "caller.key")),
        ),
        cwd=CHECKOUT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decision"] == "approve"


def test_health_and_metadata_are_answered_and_control_is_not(
    place: Place, opened: Opened, server: Embedded
) -> None:
    """A model that somebody unloads through it stays; Triton is not asked."""
    key = bearer(place.shop)
    with place.channel(opened.listen, certificate="caller") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        ready = service_pb2.ModelReadyRequest(name="fraud")
        described = service_pb2.ModelMetadataRequest(name="fraud")
        assert stub.ServerReady(service_pb2.ServerReadyRequest(), metadata=key).ready
        assert stub.ModelMetadata(described, metadata=key).platform == "ensemble"
        assert stub.ServerMetadata(
            service_pb2.ServerMetadataRequest(), metadata=key
        ).name
        assert ask(channel, "/grpc.health.v1.Health/Check", key=place.shop) == "OK"
        unload = service_pb2.RepositoryModelUnloadRequest(model_name="fraud")
        with pytest.raises(grpc.RpcError) as denied:
            stub.RepositoryModelUnload(unload, metadata=key)
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for method in ("ModelStatistics", "ModelConfig", "TraceSetting", "LogSettings"):
            said = ask(channel, SERVICE + method, key=place.shop)
            assert said == "PERMISSION_DENIED"
        assert stub.ModelReady(ready, metadata=key).ready
    with grpc.insecure_channel(server.grpc_url) as direct:
        # The server answers without a key, and keeps its statistics to itself.
        assert ask(direct, f"{SERVICE}ServerReady") == "OK"
        assert ask(direct, f"{SERVICE}ModelStatistics") == "UNAVAILABLE"


def test_metrics_tell_what_callers_were_told(
    place: Place, opened: Opened, proof: Tls
) -> None:
    """A decision, a request of bad rows, one without a key: by caller and status."""
    rows = {name: [value] for name, value in purchase("g-6").items()}
    with Client(
        opened.listen, timeout_s=PATIENT_S, tls=proof, token=place.bank
    ) as client:
        client.decide(rows)
        with pytest.raises(InvalidRequest):
            client.decide({**rows, "amount": [-1.0]})
    with (
        Client(opened.listen, timeout_s=PATIENT_S, tls=proof) as keyless,
        pytest.raises(Unavailable),
    ):
        keyless.decide(rows)
    wanted = (
        'caller="bank",outcome="passed",status="OK"} 1.0',
        'caller="bank",outcome="passed",status="INVALID_ARGUMENT"} 1.0',
        'caller="",outcome="unauthenticated",status="UNAUTHENTICATED"}',
        'tollgate_gateway_in_flight_limit{of="all"} 40.0',
        "tollgate_gateway_unreadable_lines_total 0.0",
    )
    until = time.monotonic() + PATIENT_S
    while True:
        with urllib.request.urlopen(opened.metrics, timeout=10) as answer:
            page = answer.read().decode()
        if all(line in page for line in wanted):
            break
        assert time.monotonic() < until, page
        time.sleep(0.1)


def test_a_key_that_is_drawn_is_good_a_moment_later(
    place: Place, opened: Opened, proof: Tls
) -> None:
    """`tollgate gateway key` prints it, and the running command has it read."""
    done = subprocess.run(
        command("gateway", "key", "newcomer", "--api-keys", str(place.keys)),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    options = Options(deadline_s=PATIENT_S, tls=proof, token=done.stdout.strip())
    until = time.monotonic() + PATIENT_S
    told: list[Decision] = []
    while not (told and told[-1].source == "model") and time.monotonic() < until:
        with DecisionClient(opened.listen, fallback=RULE, options=options) as client:
            told.append(client.decide(purchase(f"g-5-{len(told)}")))
        time.sleep(0.1)
    assert told[-1].source == "model", (len(told), told[0].why, told[-1].why)
    log = (opened.state / "gateway" / "nginx.log").read_text()
    assert done.stdout.strip() not in log


def test_300_fuzzed_requests_cost_no_good_one(
    place: Place, opened: Opened, server: Embedded
) -> None:
    """Those that end tritonserver are among them; it is the same process afterwards."""
    before = server.triton.pid
    folder = opened.state / "gateway" / "suspended"
    kinds = set()
    with place.channel(opened.listen, certificate="caller") as channel:
        good = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        for number, one in enumerate(itertools.islice(hostile_requests(3), 300)):
            kinds.add(one.kind)
            ask(channel, one.path, key=place.bank, body=one.body[5:])
            for record in folder.iterdir():  # so that the next one is inspected too
                record.unlink()
            answer = good(
                good_request(1, tag=f"good-{number}"),
                metadata=bearer(place.shop),
                timeout=PATIENT_S,
            )
            (decision,) = decisions_of(
                answer.SerializeToString(), latency_s=0.0
            ).decision
            assert decision in ("approve", "review", "decline")
    assert "classification" in kinds
    assert server.triton.pid == before
    assert server.triton.alive()


def test_a_signal_while_nginx_starts_ends_both(place: Place, tmp_path: Path) -> None:
    """The command ends with status 0, and no nginx goes on without it."""
    listen, health = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    run = subprocess.Popen(
        command(
            *("gateway", "run", "--listen", listen, "--health-listen", health),
            *("--tls-cert", str(place.pem("server")), "--api-keys", str(place.keys)),
            *("--tls-key", str(place.folder / "server.key"), "--state", str(tmp_path)),
        ),
        cwd=CHECKOUT,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    until = time.monotonic() + PATIENT_S
    while not children.read_text():  # nginx checks its configuration, then starts
        assert time.monotonic() < until
    run.send_signal(signal.SIGTERM)
    _, stderr = run.communicate(timeout=PATIENT_S)
    assert run.returncode == 0, stderr
    for address in (listen, health):
        host, port = address.split(":")
        with socket.socket() as caller:
            assert caller.connect_ex((host, int(port))) != 0
