"""
Both senders keep to the schedule, whatever the server does.

Bounds on time are logical, not hopes: what is not answered before the server goes on
cannot have been answered earlier.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Phase, Scenario
from tollgate.errors import InputError, ServerError, SetupError
from tollgate.load.arrivals import F64, evenly
from tollgate.load.asyncio_sender import AsyncioSender
from tollgate.load.bodies import Load
from tollgate.load.compiled_sender import CompiledSender, compile_sender, read_ended
from tollgate.load.results import ANSWERED, NO_ANSWER, Results
from tollgate.load.sender import Sender
from tollgate.load.traffic import Traffic, fixed_width
from tollgate.server.processes.environment import free_port
from tollgate.testing import Answer, TestServer

NO_COMPILER = pytest.mark.skipif(
    not shutil.which("cc"), reason="no C compiler: apt-get install gcc libnghttp2-14"
)
Send = Callable[..., Results]


@pytest.fixture
def server() -> Iterator[TestServer]:
    """A server by script."""
    with TestServer() as one:
        yield one


@pytest.fixture(params=[pytest.param("compiled", marks=NO_COMPILER), "python"])
def send(request: pytest.FixtureRequest, tmp_path: Path) -> Send:
    """Either sender, with one face."""

    def send(load: Load, *, grpc_url: str, began: Callable[[float], None]) -> Results:
        sender: Sender = AsyncioSender(grpc_url, load.timeout_s)
        if request.param == "compiled":
            sender = CompiledSender(grpc_url, load.timeout_s, tmp_path)
        return sender.send(load, began=began)

    return send


@pytest.fixture
def load_of(tmp_path: Path) -> Callable[..., Load]:
    """Make loads of single rows."""
    number = np.arange(40)
    traffic = Traffic(
        entity_id={
            "customer_id": fixed_width(number, digits=4),
            "terminal_id": fixed_width(number, digits=4),
        },
        cents=100 + number,
        time_us=round((time.time() - 10) * 1e6) - number,
        period_us=0,
    )

    def make(
        at_s: F64, *, timeout_s: float = 10.0, retries: int = 0, poison: float = 0.0
    ) -> Load:
        scenario = Scenario(phases=(Phase(seconds=60, rate=1),), poison=poison)
        bodies = write_bodies(
            tmp_path / "bodies", traffic, scenario=scenario, at_s=at_s, first=0, seed=2
        )
        return Load(at_s=at_s, bodies=bodies, timeout_s=timeout_s, retries=retries)

    return make


def nothing(begin_s: float) -> None:
    """Do nothing at the beginning."""


def test_every_request_is_sent_once_and_has_a_result(
    server: TestServer, send: Send, load_of: Callable[..., Load]
) -> None:
    """Answers carry their decisions and bits to the right row of the table."""
    server.answer_by(
        lambda row: (
            Answer(decision="decline", degraded=1)
            if int(row.transaction_id) % 3 == 0
            else Answer(decision="review", degraded=4)
        )
    )
    results = send(
        load_of(evenly(90, rate_per_s=300)), grpc_url=server.url, began=nothing
    )
    calls = results.calls
    assert results.kinds == (ANSWERED,)
    assert sorted(int(row.transaction_id) for row in server.asked) == list(range(90))
    assert calls["declined"].tolist() == [int(one % 3 == 0) for one in range(90)]
    assert (calls["declined"] + calls["reviewed"] == 1).all()
    assert (calls["decided"] == 1).all()
    assert calls["degraded"].tolist() == calls["declined"].tolist()  # 4 is COLD_START
    assert (calls["took_us"] >= calls["late_us"]).all()
    assert (calls["late_us"] >= 0).all()
    assert results.sender_cpu_s >= 0


def test_a_stall_is_charged_to_all_that_were_due_in_it(
    server: TestServer, send: Send, load_of: Callable[..., Load]
) -> None:
    """
    No omission: 300 ms without answers, 200 requests a second, 60 of them due in it.

    Each waits at least until the stall ends, so those due in its first half wait 150 ms
    or more: 30 of 400 requests, and the 93rd percentile shows it. A closed loop with a
    few connections would show a few.
    """
    edges: dict[str, float] = {}

    def stall() -> None:
        server.stall()
        edges["stalled"] = perf_counter()

    def heal() -> None:
        edges["healed"] = perf_counter()
        server.heal()

    def began(begin_s: float) -> None:
        edges["begin"] = begin_s
        for at_s, do in ((0.7, stall), (1.0, heal)):
            timer = threading.Timer(begin_s + at_s - perf_counter(), do)
            timer.daemon = True
            timer.start()

    load = load_of(evenly(400, rate_per_s=200))
    results = send(load, grpc_url=server.url, began=began)
    calls = results.calls
    assert results.kinds == (ANSWERED,)
    due_s = edges["begin"] + load.at_s
    inside = (due_s > edges["stalled"]) & (due_s < edges["healed"])
    # On a busy machine the stall may end after the last request was due.
    last_s = min(edges["healed"], float(due_s[-1]))
    stall_s = last_s - edges["stalled"]
    assert abs(inside.sum() - 200 * stall_s) <= 1
    left_s = edges["healed"] - due_s[inside]
    assert (calls["took_us"][inside] / 1e6 >= left_s - 1e-5).all()
    slow = (calls["took_us"] / 1e6 >= stall_s / 2 - 1e-5).sum()
    assert slow >= 200 * stall_s / 2 - 1
    # Sent meanwhile: who waits for answers sends one on each of four connections.
    sent_s = due_s + calls["late_us"] / 1e6
    assert ((sent_s < edges["healed"]) & inside).sum() > 8


def test_caller_without_an_answer_gives_up_in_time(
    server: TestServer, send: Send, load_of: Callable[..., Load]
) -> None:
    """Nobody answers: every call ends after its timeout, and is counted as such."""
    server.stall()
    load = load_of(evenly(30, rate_per_s=300), timeout_s=0.3)
    results = send(load, grpc_url=server.url, began=nothing)
    server.heal()
    names = [results.kinds[kind] for kind in results.calls["kind"]]
    assert set(names) <= {NO_ANSWER, "DEADLINE_EXCEEDED"}
    assert (results.calls["took_us"] >= 290_000).all()
    assert not results.calls["decided"].any()


def test_failures_are_counted_by_kind(
    server: TestServer, send: Send, load_of: Callable[..., Load]
) -> None:
    """By gRPC status, with the server's words; a bad row is INVALID_ARGUMENT."""
    server.fail("UNAVAILABLE", words="queue is full", requests=5)
    load = load_of(evenly(60, rate_per_s=300), poison=0.3)
    results = send(load, grpc_url=server.url, began=nothing)
    names = np.array(results.kinds)[results.calls["kind"]]
    poisoned = load.bodies.poisoned > 0
    assert results.examples["UNAVAILABLE"] == "queue is full"
    assert 0 < (names == "UNAVAILABLE").sum() <= 5  # of bad rows the fault counts, too
    others = names != "UNAVAILABLE"
    assert (names[poisoned & others] == "INVALID_ARGUMENT").all()
    assert (names[~poisoned & others] == ANSWERED).all()
    assert re.search(r"row 0: \w+: .+", results.examples["INVALID_ARGUMENT"])


def test_a_caller_asks_again_as_often_as_told(
    server: TestServer, send: Send, load_of: Callable[..., Load]
) -> None:
    """Two failures, then an answer; no answer after all attempts; or in time."""
    server.fail(requests=2)
    load = load_of(np.zeros(1), retries=2)
    results = send(load, grpc_url=server.url, began=nothing)
    assert (results.kinds, results.calls["attempts"].tolist()) == ((ANSWERED,), [3])
    server.fail()
    results = send(load, grpc_url=server.url, began=nothing)
    assert results.kinds == (ANSWERED, "UNAVAILABLE")
    assert results.calls["attempts"].tolist() == [3]
    server.heal()
    server.stall()
    load = load_of(np.zeros(1), retries=2, timeout_s=0.2)
    results = send(load, grpc_url=server.url, began=nothing)
    server.heal()
    assert results.calls["attempts"].tolist() == [3]
    assert results.calls["took_us"][0] >= 580_000


def test_invalid_request_is_not_retried(
    server: TestServer, send: Send, load_of: Callable[..., Load]
) -> None:
    """A bad row stays bad."""
    load = load_of(np.zeros(1), retries=2, poison=1.0)
    results = send(load, grpc_url=server.url, began=nothing)
    assert results.kinds == (ANSWERED, "INVALID_ARGUMENT")
    assert results.calls["attempts"].tolist() == [1]


@NO_COMPILER
def test_a_server_that_goes_away_and_comes_back_is_found_again(
    server: TestServer, load_of: Callable[..., Load], tmp_path: Path
) -> None:
    """Every call ends; those that come long after the return are answered."""
    back: list[float] = []

    def away() -> None:
        server.drop()
        server.heal()
        back.append(perf_counter())

    start_times: list[float] = []

    def began(begin_s: float) -> None:
        start_times.append(begin_s)
        threading.Timer(begin_s + 0.4 - perf_counter(), away).start()

    # So many that some come when it is back, however slow this machine is.
    load = load_of(evenly(500, rate_per_s=200), timeout_s=1.0)
    sender = CompiledSender(server.url, load.timeout_s, tmp_path)
    results = sender.send(load, began=began)
    answered = results.calls["kind"] == 0
    assert answered[:10].any()
    assert answered[-10:].any() or start_times[0] + load.at_s[-20] < back[0] + 0.2
    assert set(results.kinds[1:]) <= {
        *(NO_ANSWER, "connection lost", "no connection", "UNAVAILABLE", "CANCELLED"),
        *("closed without a status", "DEADLINE_EXCEEDED"),
    }


def test_nobody_at_the_address_is_one_line(
    send: Send, load_of: Callable[..., Load]
) -> None:
    """After three seconds of trying."""
    url = f"127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(ServerError, match=f"no answer from {url}"):
        send(load_of(np.zeros(1)), grpc_url=url, began=nothing)


def test_a_missing_compiler_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no C compiler.*gcc.*libnghttp2-14"):
        compile_sender(tmp_path)


def test_answers_that_are_cut_are_refused(tmp_path: Path) -> None:
    """A sender that was killed leaves half a record."""
    file = tmp_path / "answers"
    file.write_bytes(b"\0" * 30)
    with pytest.raises(InputError, match="is cut"):
        list(read_ended(file))
