"""Each background loop outlives an error that nobody foresaw, and works after it."""

from __future__ import annotations

import signal
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tollgate import worker
from tollgate.audit.worker.audit_worker import JournalWorker
from tollgate.challenger.challenger_worker import TrialWorker
from tollgate.cli.decisions import monitor_command
from tollgate.cli.operations import gateway_commands, supervised_server
from tollgate.errors import StoreError
from tollgate.server import http_listener
from tollgate.server.processes import redis_server
from tollgate.server.processes.redis_server import YieldingChildren
from tollgate.server.triton.metrics_page import MetricsPage
from tollgate.steps.loops import LoopMetrics
from tollgate.steps.metric_buffer import export_each_second
from tollgate.steps.second_lookup import SecondLookup
from tollgate.store.fallback.circuit_breaker import (
    BreakerRules,
    BreakerState,
    CircuitBreaker,
    Prober,
)
from tollgate.stream.consumer import StreamConsumer
from tollgate.supervisor.fault_log import Fault
from tollgate.supervisor.supervisor_metrics import SupervisorMetrics
from tollgate.tracing import Tracing, collecting
from tollgate.tracing.collecting import SpanCollector
from tollgate.worker import tallies


class UnforeseenError(LookupError):
    """No code of ours knows it."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "MOST_PAUSE_S", 0.01)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A command sets handlers of signals; they are taken back."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until_s, "it never did"
        time.sleep(0.001)


class Loop:
    """
    A call inside of a loop: it fails until it is mended.

    Args:
        name: Of the loop.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.broken = True
        self.worked = 0
        self._before = self._tally().errors

    def _tally(self) -> worker.Tally:
        return tallies().get(self.name, worker.Tally(0, 0, ""))

    def __call__(self, *_: object, **__: object) -> Any:
        """Fail, or work."""
        if self.broken:
            raise UnforeseenError("x")
        self.worked += 1
        return None

    def fails(self, times: int = 1) -> None:
        """Wait until its errors are counted and it is named."""
        wait_until(lambda: self._tally().errors - self._before >= times)

    def recovers(self) -> None:
        """Mend it, and wait until it works."""
        self.broken = False
        worked = self.worked
        wait_until(lambda: self.worked > worked and not self._tally().failures)


def test_the_probe_of_a_store() -> None:
    """The store is found again after probes that failed in a way nobody foresaw."""
    loop = Loop("store-prober")
    breaker = CircuitBreaker(
        time.monotonic, lambda: 0.5, rules=BreakerRules(probe_interval_s=0.001)
    )
    prober = Prober(breaker, lambda: loop() is None)
    while not breaker.failed():
        pass
    prober.wake()
    loop.fails(3)
    assert breaker.state is BreakerState.OPEN
    loop.recovers()
    wait_until(lambda: breaker.state is BreakerState.HALF_OPEN)
    prober.close()


class Sender:
    """Takes an answer, or fails."""

    def __init__(self, answers: list[str], call: Callable[[], None]) -> None:
        self._answers = answers
        self._call = call

    def send(self, response: str, flags: int) -> None:
        """Take an answer."""
        self._call()
        self._answers.append(response)


def second_lookup(answers: list[str]) -> SecondLookup:
    """Look up again without a store: the first answer is sent."""

    def no_ladder() -> Any:
        raise StoreError("away")

    return SecondLookup(
        SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1),
        open_chain=no_ladder,
        score=lambda *a, **k: None,  # type: ignore[arg-type, return-value]
        respond=lambda pending, features, context: pending.batch,
        deadline_s=0.005,
        limit_s=1.0,
    )


def waiting(name: str, sender: Sender) -> Any:
    """Make a request that waits."""
    context = np.zeros(1, [("degraded", "<u4")])
    return SimpleNamespace(
        batch=name, features=None, context=context, deadline_s=1.0, sender=sender
    )


def test_the_second_lookup() -> None:
    """A request that cannot be answered costs the others nothing, at the end too."""
    answers: list[str] = []
    loop = Loop("second-lookup")
    second = second_lookup(answers)
    second.add(waiting("a", Sender(answers, loop)))
    loop.fails()
    loop.broken = False
    second.add(waiting("b", Sender(answers, loop)))
    wait_until(lambda: answers == ["b"])
    broken = Loop("none")
    for name, call in (("c", broken), ("d", loop), ("e", broken), ("f", loop)):
        second._queue.put(waiting(name, Sender(answers, call)))
    second.close()
    assert answers == ["b", "d", "f"]


def test_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans reach the collector again."""
    loop = Loop("traces")
    exporter = SimpleNamespace(export=loop, close=lambda: None)
    monkeypatch.setattr(collecting, "_exporter", lambda endpoint: exporter)
    monkeypatch.setattr(collecting, "_INTERVAL_S", 0.001)
    monkeypatch.setattr(collecting, "read_spans", lambda content: ([None], b""))
    with SpanCollector(Tracing("http://127.0.0.1:1"), folder=tmp_path):
        loop.fails(3)
        loop.recovers()


def test_the_children_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get their priority, as soon as that works."""
    loop = Loop("redis-children")
    monkeypatch.setattr(redis_server, "_LOOK_S", 0.001)
    looking = YieldingChildren(1)
    monkeypatch.setattr(
        looking, "_children", SimpleNamespace(read_text=lambda: loop() or "1")
    )
    monkeypatch.setattr(looking, "_returns", True)
    monkeypatch.setattr(redis_server, "_allow", lambda *a, **k: None)
    loop.fails(3)
    loop.recovers()
    looking.close()


def test_the_metrics_page_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers after its server failed."""
    loop = Loop("metrics-page")
    served = http_listener._Server

    class Breakable(served):  # type: ignore[misc, valid-type]
        def handle_request(self) -> None:
            loop()
            super().handle_request()

    monkeypatch.setattr(http_listener, "_Server", Breakable)
    page = MetricsPage("127.0.0.1", 0, triton_port=lambda: 1)
    loop.fails(3)
    loop.broken = False
    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/", timeout=60) as answer:
        assert answer.status == 200
    page.close()


@pytest.mark.parametrize("name", ["feature-metrics", "decision-metrics", "refusals"])
def test_metrics_of_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are exported again, and once more at the end."""
    monkeypatch.setattr("tollgate.steps.metric_buffer.INTERVAL_S", 0.001)
    loop = Loop(name)
    thread = export_each_second(loop, name=name)
    loop.fails(3)
    loop.recovers()
    thread.stop()
    worked = loop.worked
    thread.stop()
    assert loop.worked == worked


class Page:
    """Stands for Triton's metrics: values by name and labels."""

    COUNTER, GAUGE = 1, 2
    broken = False
    values: ClassVar[dict[tuple[str, str], float]] = {}

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name = name

    def Metric(self, labels: dict[str, str]) -> Any:
        """Make one."""
        key = (self.name, labels["loop"])

        def increment(number: float) -> None:
            if Page.broken:
                raise UnforeseenError("x")
            Page.values[key] = Page.values.get(key, 0) + number

        def set_(number: float) -> None:
            Page.values[key] = number

        return SimpleNamespace(increment=increment, set=set_)


def test_the_metrics_of_loops_count_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No error is lost on the page, though it was this loop that failed."""
    monkeypatch.setattr("tollgate.steps.metric_buffer.INTERVAL_S", 0.001)
    Page.broken = True
    Page.values = {}
    before = tallies().get("loop-metrics", worker.Tally(0, 0, "")).errors
    ill = worker.Worker("an ill loop", Loop("an ill loop"), pause_s=0.001)
    ill.start()
    exported = LoopMetrics(SimpleNamespace(MetricFamily=Page), labels={})
    wait_until(lambda: tallies()["loop-metrics"].errors > before + 2)
    Page.broken = False
    name = "tollgate_background_failures"
    wait_until(lambda: Page.values.get((name, "an ill loop"), 0) >= 5)
    ill.stop()
    wait_until(lambda: Page.values[name, "an ill loop"] == 0)
    exported.close()
    name = "tollgate_background_errors_total"
    assert Page.values[name, "an ill loop"] >= tallies()["an ill loop"].errors - 8


def test_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle of a fault fails; the next fault has one, also the last."""
    loop = Loop("bundle")
    monkeypatch.setattr(supervised_server, "write_at_fault", loop)
    fault = Fault("now", "a step", "ended", None, "mended", "fraud-1")
    with supervised_server._fault_recorder(
        SupervisorMetrics(), state=tmp_path, repository=tmp_path
    ) as record:
        record(fault)
        loop.fails()
        loop.broken = False
        record(fault)
        wait_until(lambda: loop.worked == 1)
        record(fault)
    assert loop.worked == 2


class Source:
    """Gives entries out as the test wants."""

    def __init__(self, poll: Callable[..., list[Any]]) -> None:
        self.poll = poll
        self.acknowledged: list[bytes] = []
        self.commits = 0

    def require_chain(self, mark: object, hashes: object) -> None:
        """Find it sound."""

    def note(self, mark: object) -> None:
        """Note nothing."""

    def acknowledge(self, ids: list[bytes]) -> None:
        """Note what was acknowledged."""
        self.acknowledged += ids

    def backlog(self) -> int:
        """Count nothing."""
        return 0

    def partitions(self) -> int:
        """Count one."""
        return 1

    def commit(self) -> None:
        """Count it."""
        self.commits += 1


def runs(run: Callable[[threading.Event], None]) -> tuple[threading.Event, Any]:
    """Run a command's loop in a thread until the event."""
    stopped = threading.Event()
    thread = threading.Thread(target=run, args=(stopped,))
    thread.start()
    return stopped, thread


def once(entries: list[Any], loop: Loop) -> Callable[..., list[Any]]:
    """Hand entries out once; fail before, and again when asked for more."""
    left = [entries]

    def poll(**_: object) -> list[Any]:
        loop()
        return left.pop() if left else []

    return poll


def test_the_journals_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took before an error is sealed after it, each entry once."""
    polling = Loop("journal-worker")
    entry = SimpleNamespace(id=b"1-0", end=b"", chunk=b"x")
    second = SimpleNamespace(id=b"2-0", end=b"", chunk=b"y")
    source = Source(once([entry, second], polling))
    chain = SimpleNamespace(mark=lambda: None, hashes=[], links=[])
    made = JournalWorker(
        source,  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        chain=chain,  # type: ignore[arg-type]
        seal_s=0.0,
    )
    taking = Loop("journal-worker")
    taken: list[bytes] = []

    def take(one: Any) -> None:
        if one.chunk == b"y":
            taking()
        taken.append(one.id)

    monkeypatch.setattr(made, "_decode_entry", take)
    stopped, thread = runs(made.run)
    polling.fails(3)
    polling.broken = False
    wait_until(lambda: taken == [b"1-0"])
    taking.fails(4)
    taking.broken = False
    wait_until(lambda: source.acknowledged == [b"1-0", b"2-0"])
    stopped.set()
    thread.join(60)
    assert taken == [b"1-0", b"2-0"]


def test_the_worker_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts what it took before an error, and acknowledges nothing uncounted."""
    polling, taking = Loop("trial-worker"), Loop("trial-worker")
    source = Source(
        once(
            [SimpleNamespace(id=b"1", chunk=b"x"), SimpleNamespace(id=b"2", chunk=b"")],
            polling,
        )
    )
    monkeypatch.setattr(TrialWorker, "__init__", lambda self: None)
    made: Any = TrialWorker()  # type: ignore[call-arg]
    made._source, made._runs, made._entries = source, {"a": None}, deque()
    made._ids, made._due_s, made._judge_s = [], 0.0, 0.001
    made._save = lambda: (source.acknowledge(made._ids), made._ids.clear())
    made._judge = made._update_trials = lambda: None
    taken: list[bytes] = []

    def take(one: Any) -> None:
        if one.chunk:
            taking()
        taken.append(one.id)

    made._count_entry = take
    stopped, thread = runs(made.run)
    polling.fails(3)
    polling.broken = False
    taking.fails(6)
    assert source.acknowledged == []
    taking.broken = False
    wait_until(lambda: source.acknowledged == [b"1", b"2"])
    stopped.set()
    thread.join(60)
    assert taken == [b"1", b"2"]


def test_the_streams_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was polled before an error is applied after it, then committed."""
    polling, taking = Loop("stream-consumer"), Loop("stream-consumer")
    source = Source(once(["a", "b"], polling))
    gauge = SimpleNamespace(set=lambda number: None)
    metrics = SimpleNamespace(backlog=gauge, partitions=gauge, no_lag=lambda: None)
    monkeypatch.setattr("tollgate.stream.consumer.EventCodec", lambda spec: None)
    consumer = StreamConsumer(
        source,  # type: ignore[arg-type]
        SimpleNamespace(spec=None),  # type: ignore[arg-type]
        metrics=metrics,  # type: ignore[arg-type]
    )
    applied: list[str] = []

    def take(messages: list[str]) -> None:
        taking()
        applied.extend(messages)

    monkeypatch.setattr(consumer, "_take", take)
    stopped, thread = runs(consumer.run)
    polling.fails(3)
    polling.broken = False
    taking.fails(6)
    assert source.commits == 0
    taking.broken = False
    wait_until(lambda: source.commits == 1)
    stopped.set()
    thread.join(60)
    assert applied == ["a", "b"]


def ended_after(loop: Loop) -> threading.Event:
    """Return an event that is set once a loop has failed three times and worked."""
    event = threading.Event()

    def end() -> None:
        loop.fails(3)
        loop.broken = False
        wait_until(lambda: loop.worked > 1)
        event.set()

    threading.Thread(target=end, daemon=True).start()
    return event


def test_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks again."""
    loop = Loop("monitor")
    stopped = ended_after(loop)
    monkeypatch.setattr(monitor_command, "stop_on_signal", lambda: stopped)
    watch: Any = object.__new__(monitor_command.Watch)
    watch._check_readable = lambda: loop() or []
    watch._print_changes = lambda drifted: drifted
    watch.repeat(0.001)
    assert loop.worked > 1


def test_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues to watch nginx."""
    loop = Loop("gateway")
    monkeypatch.setattr(gateway_commands, "_CHECK_S", 0.001)
    nginx = SimpleNamespace(alive=lambda: True, reload_if_changed=loop)
    gateway_commands._watch(nginx, None, ended_after(loop))  # type: ignore[arg-type]
    assert loop.worked > 1
