"""What a product and its helpers log while everything goes wrong: no id, no amount."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import redis
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repair.spool_segments import segments
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.store.store_events import Packer
from tollgate_client import Client, ClientError
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]
NOW_US = time.time_ns() // 1000
DAY_US = 86_400_000_000
# In every id, and in every amount: in currency, in cents, in the words of a row.
ID, AMOUNT, CENTS = "XqMarkerXq", 8_414_271.83, 841_427_183
MARKERS = (ID.encode(), b"8414271", b"8,414,271", b"841427183", b"841,427,183")
LONG_S = 600.0


def rows(count: int = 3, *, first: int = 0, **changes: object) -> dict[str, object]:
    """Purchases that carry the markers; a change replaces a column."""
    names = [f"{ID}{first + row}" for row in range(count)]
    return {
        "transaction_id": names,
        "customer_id": [f"{ID}c{row}" for row in range(count)],
        "terminal_id": [f"{ID}m{row}" for row in range(count)],
        "amount": [AMOUNT] * count,
        "event_time": [NOW_US + first + row for row in range(count)],
    } | changes


def ask_badly(client: Client, server: Embedded) -> None:
    """Send every kind of bad row, bad requests, and a request that is no such thing."""
    for column, value in (
        ("transaction_id", (ID * 30).encode()),
        ("customer_id", ID.encode() + b"\xc3\x28"),
        ("terminal_id", b""),
        ("amount", -AMOUNT),
        ("amount", AMOUNT * 1e3),
        ("amount", math.nan),
        ("event_time", 1),
    ):
        good = rows()
        mixed = [value, *list(good[column])[1:]]  # type: ignore[call-overload]
        answer = client.decide(good | {column: mixed}, dry_run=True)
        assert answer.error[0]
        with pytest.raises(ClientError):
            client.decide(rows(1, **{column: [value]}))
    (request,) = requests_of(
        check_columns(rows(2), inputs=FRAUD_INPUTS),
        product="fraud",
        size=32,
        dry_run=False,
        deadline_s=1.0,
    )
    requests = [service_pb2.ModelInferRequest.FromString(request) for _ in range(4)]
    requests[0].parameters["dry_run"].string_param = ID
    requests[1].parameters["deadline_us"].string_param = ID
    requests[2].inputs[0].shape[0] = 9  # of two rows
    requests[3].inputs[0].name = ID
    with grpc.insecure_channel(server.grpc_url) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        for one in requests:
            with pytest.raises(grpc.RpcError):
                infer(one, timeout=20)


def until(done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def break_the_store(
    client: Client, store: EmbeddedRedis, spec: FeatureSpec, state: Path
) -> None:
    """
    Damage values, refuse the function, its keys and the whole store, hang it, kill it.

    What is scored meanwhile is spooled, and drained when the store is back; a purchase
    of a damaged value becomes a dead letter.
    """
    number = iter(range(1_000, 100_000, 10))

    def score() -> None:
        assert not any(client.decide(rows(first=next(number))).error)

    with redis.Redis.from_url(store.url) as other:
        score()
        packer = Packer(spec)
        other.set(packer.key(0, f"{ID}c0".encode()), b"damaged" * 9)
        score()
        listed = packer.key(1, f"{ID}m1".encode())
        other.delete(listed)
        other.lpush(listed, "no value of ours")
        for rights in ("-evalsha", "+evalsha -set", "+set -get", "+get"):
            for _ in range(7):  # until it is left alone
                score()
            other.execute_command("ACL", "SETUSER", "default", *rights.split())
            time.sleep(0.5)
        other.delete(listed)
        other.client_pause(400)
        score()
    os.kill(store.pid, signal.SIGSTOP)
    for _ in range(7):
        score()
    os.kill(store.pid, signal.SIGCONT)
    store.stop()
    for _ in range(7):
        score()
    store.__enter__()
    until(lambda: not segments(state / "spool" / "fraud"))
    assert (state / "spool" / "fraud" / "dead-letters.jsonl").exists()


def command(*words: str, store_url: str) -> subprocess.Popen[bytes]:
    """Start `tollgate WORDS` over a store; what it says is kept."""
    return subprocess.Popen(
        [sys.executable, "-c", "from tollgate.cli import main; main()", *words],
        cwd=CHECKOUT,
        env=os.environ | {"TOLLGATE_STORE_URL": store_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def events() -> list[bytes]:
    """Messages for a stream: good, early, late, of a damaged value, and poison."""
    purchase = {
        "event": "purchase",
        "transaction_id": f"{ID}s1",
        "customer_id": f"{ID}c7",
        "terminal_id": f"{ID}m7",
        "event_time": NOW_US,
        "cents": CENTS,
    }
    label = {name: value for name, value in purchase.items() if name != "cents"}
    label |= {"event": "label", "label": 1, "label_time": NOW_US}
    objects = [
        purchase,
        purchase,
        label,
        purchase | {"transaction_id": f"{ID}s2", "event_time": NOW_US - 90 * DAY_US},
        purchase | {"transaction_id": f"{ID}s3", "customer_id": f"{ID}c0"},
        purchase | {"event": ID},
        purchase | {"cents": str(CENTS)},
        purchase | {"cents": -CENTS},
        purchase | {"customer_id": ID * 30},
        purchase | {"event_time": ID},
        purchase | {"kept": {ID: ID}},
        label | {"label": CENTS},
        {ID: CENTS},
    ]
    texts = [json.dumps(one).encode() for one in objects]
    # The shortest first: an error about it has room for all of it.
    return [ID.encode(), *texts, texts[0][:-9], ID.encode() + b"\xff"]


def stream_badly(store: EmbeddedRedis) -> bytes:
    """Let a stream's store, feed and dead letters fail; what it said."""
    feed = "tollgate.fraud.events"
    with redis.Redis.from_url(store.url) as other:
        other.set(f"{feed}:dead-letters", "no stream")
        for event in events():
            other.xadd(f"{feed}:0", {"event": event})
        child = command("stream", "--until-idle", store_url=store.url)
        time.sleep(2.5)
        other.delete(f"{feed}:dead-letters")
        until(lambda: other.xlen(f"{feed}:dead-letters") > 0)
        said = child.communicate(timeout=LONG_S)[0]
        assert child.returncode == 0, said
        assert other.xlen(f"{feed}:dead-letters") >= 12
        other.execute_command("ACL", "SETUSER", "default", "-evalsha")
        for event in events():
            other.xadd(f"{feed}:0", {"event": event})
        child = command("stream", store_url=store.url)
        time.sleep(2.5)
        other.execute_command("ACL", "SETUSER", "default", "-xreadgroup", "+evalsha")
        time.sleep(1.0)
        child.terminate()
        said += child.communicate(timeout=LONG_S)[0]
        other.execute_command("ACL", "SETUSER", "default", "+xreadgroup")
    return said


def feed_badly(store: EmbeddedRedis, folder: Path) -> bytes:
    """Feed and materialize a history into a store that refuses; what they said."""
    history = folder / "history.csv"
    lines = ["transaction_id,customer_id,terminal_id,amount,event_time"]
    lines += [
        f"{ID}h{row},{ID}c{row},{ID}m{row},{AMOUNT},2024-04-01 10:00:{row:02}"
        for row in range(20)
    ]
    history.write_text("\n".join(lines) + "\n")
    said = b""
    with redis.Redis.from_url(store.url) as other:
        for rights in ("+evalsha", "-xadd -evalsha"):
            other.execute_command("ACL", "SETUSER", "default", *rights.split())
            for word in ("feed", "materialize"):
                child = command(word, str(history), store_url=store.url)
                said += child.communicate(timeout=LONG_S)[0]
        other.execute_command("ACL", "SETUSER", "default", "+xadd", "+evalsha")
        other.set("tollgate.fraud.events:0", "no stream")
        child = command("feed", str(history), store_url=store.url)
        said += child.communicate(timeout=LONG_S)[0]
        said += b"\n".join(
            part for one in other.slowlog_get(10_000) for part in [one["command"]]
        )
    return said


def logs(state: Path) -> dict[str, bytes]:
    """Read every file of a state folder that is no data: of store, spool, feed."""
    return {
        path.name: path.read_bytes()
        for path in state.rglob("*")
        if path.is_file() and path.relative_to(state).parts[0] not in ("redis", "spool")
    }


def test_no_log_names_an_id_or_an_amount(
    tmp_path: Path, spec: FeatureSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Good rows, bad rows, poison and every fault of the store, and then all logs.

    Triton's with the steps' in it, Redis's, its slow log, those of streams, drain,
    feed and back-fill. What is answered to a caller may repeat what he sent.
    """
    state, folder = tmp_path / "state", tmp_path / "store"
    caplog.set_level("DEBUG", logger="tollgate")
    with EmbeddedRedis(folder) as store:
        with redis.Redis.from_url(store.url) as other:
            slow = int(
                other.config_get("slowlog-log-slower-than")["slowlog-log-slower-than"]
            )
            if slow >= 0:
                other.config_set("slowlog-log-slower-than", 0)
        with (
            serve(
                CHECKOUT / "model_repository", state=state, store_url=store.url
            ) as server,
            Client(server.grpc_url, timeout_s=20) as client,
        ):
            client.decide(rows())
            ask_badly(client, server)
            break_the_store(client, store, spec, state)
            told = {"stream": stream_badly(store), "feed": feed_badly(store, tmp_path)}
        with contextlib.suppress(redis.RedisError):
            np.testing.assert_equal(server.triton.alive(), False)
    told |= logs(state) | logs(folder) | {"tests": caplog.text.encode()}
    assert told["stream"].count(b"dead letters") >= 1
    assert b"the store is left alone" in told["triton.log"]
    assert {"triton.log", "redis.log"} <= told.keys()
    for name, text in told.items():
        lines = text.splitlines()
        found = [one for one in lines if any(marker in one for marker in MARKERS)]
        assert not found, (name, found[:3])
