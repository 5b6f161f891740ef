"""The system under test: our own product with a filled store, or an address."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter

import msgspec

from loadtests.harness import Population, StoreContents, say, serve_filled
from loadtests.paced.raw import Mark, Server
from loadtests.paced.scenario import Scenario, ScenarioFault
from loadtests.results.measure import use_now, work_of, work_since
from loadtests.results.surroundings import measured_with
from loadtests.servers.proxy import Proxy
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.errors import InputError, StoreError
from tollgate.load.surroundings import measured_on
from tollgate.load.traffic import Traffic
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded

# Load the store as the journal's worker does, without sealing segments.

_MOST = 64  # entries per read, as the worker takes them
_WAIT_S = 0.5
_ACKNOWLEDGED_EACH_S = 1.0


@contextmanager
def stream_read(store_url: str, *, product: str) -> Iterator[None]:
    """
    Read and acknowledge the decisions of a product while the block runs.

    Without it the stream would hold every decision of a run, and the store would
    rewrite ever larger files. Segments are not sealed: another machine does that.
    """
    ended = threading.Event()
    source = ChunkSource(store_url, product=product)
    thread = threading.Thread(
        target=_read, args=(source, ended), name="stream-reader", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        source.close()


def _read(source: ChunkSource, ended: threading.Event) -> None:
    held: list[bytes] = []
    due_s = time.monotonic() + _ACKNOWLEDGED_EACH_S
    while not ended.is_set():
        with suppress(StoreError):  # the store may have a fault: try again
            held += [one.id for one in source.poll(most=_MOST, wait_s=_WAIT_S)]
            if held and time.monotonic() > due_s:
                source.acknowledge(held)
                held = []
                due_s = time.monotonic() + _ACKNOWLEDGED_EACH_S
        # Entries come in groups, as to a worker that decodes the previous ones.
        ended.wait(0.02)


STATE_FOLDER = "state"  # of our server, in the bench's folder
_TELLS_S = 5.0  # limit for the journal to report counts; it does each second
_SETTLES_S = 60.0
_QUIET_S = 0.5  # time without a purchase
_RECORDS = "tollgate_journal_records_total{"
_TAKEN = ('fate="written"', 'fate="spooled"')


class Bench(msgspec.Struct, frozen=True):
    """
    The system under test, shared by all runs.

    Attributes:
        server: Our server; None for an address.
        target: Its parts into which faults can be injected.
        store: Description of the store's contents before the load.
        repository: The model repository, as committed.
    """

    grpc_url: str
    server: Embedded | None
    target: Target
    traffic: Traffic
    store: str
    folder: Path
    repository: Path

    def measured(self) -> str:
        """Describe date, commit, machine and versions."""
        return measured_on() if self.server is None else measured_with(self.server)


@contextmanager
def open_bench(
    repository: Path,
    population: Population,
    *,
    folder: Path,
    behind_proxy: bool,
    config_name: str = "",
    form: str = "",
) -> Iterator[Bench]:
    """
    Serve a repository with a store that holds a history.

    Args:
        behind_proxy: True if the store is behind a proxy that can slow it.
        config_name: Named configuration to use where a model has it.
        form: Form of the product; "" for its own.

    Raises:
        TollgateError: The repository cannot be served.
    """
    say("simulating the history")
    contents = StoreContents(population, repository=repository)
    with ExitStack() as stack:
        proxy, store_url = None, None
        if behind_proxy:
            redis = stack.enter_context(EmbeddedRedis(folder / "store"))
            place = folder / "proxy.sock"
            proxy = stack.enter_context(Proxy(redis.socket_path, listen=place))
            store_url = proxy.url
        server = stack.enter_context(
            serve_filled(
                contents,
                folder / STATE_FOLDER,
                repository=repository,
                store_url=store_url,
                model_config_name=config_name,
                form=form,
            )
        )
        yield Bench(
            grpc_url=server.grpc_url,
            server=server,
            target=Target(server_pid=server.triton.pid, proxy=proxy),
            traffic=contents.traffic,
            store=f"{len(contents.history):,} purchases, {population}",
            folder=folder,
            repository=repository,
        )


def remote_bench(
    grpc_url: str, repository: Path, population: Population, *, folder: Path
) -> Bench:
    """Take a server at an address; its store may not hold the history."""
    return Bench(
        grpc_url=grpc_url,
        server=None,
        target=Target(),
        traffic=StoreContents(population, repository=repository).traffic,
        store="of its own",
        folder=folder,
        repository=repository,
    )


@contextmanager
def counting(server: Embedded | None) -> Iterator[list[Server]]:
    """Count a server's work during the block; the list has one element at its end."""
    found: list[Server] = []
    if server is None:
        yield found
        return
    _settle(server)
    before, journalled = work_of(server), _journalled(server)
    with stream_read(server.store_url, product="fraud"):
        yield found
        _settle(server)
    work = work_since(before, work_of(server))
    until_s = time.monotonic() + _TELLS_S
    while _journalled(server) - journalled < work.purchases:
        if time.monotonic() > until_s:
            break
        time.sleep(0.2)
    found.append(
        Server(
            release=server.serving["fraud"].release,
            purchases=work.purchases,
            feature_batches=work.feature_batches,
            model_batches=work.model_batches,
            writes=work.writes,
            journalled=_journalled(server) - journalled,
            cpu_s=work.cpu_s,
            pss_mb=use_now(server).pss_mb,
        )
    )


def _settle(server: Embedded) -> None:
    """Wait until the server has worked off requests whose callers gave up."""
    until_s = time.monotonic() + _SETTLES_S
    before, now = -1, work_of(server).purchases
    while before != now and time.monotonic() < until_s:
        time.sleep(_QUIET_S)
        before, now = now, work_of(server).purchases


def _journalled(server: Embedded) -> int:
    with urllib.request.urlopen(server.metrics_url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        round(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith(_RECORDS) and any(fate in line for fate in _TAKEN)
    )


# Inject faults into a server while a scenario runs.


class Target(msgspec.Struct, frozen=True):
    """
    Parts of the system into which faults can be injected.

    Attributes:
        server_pid: Process id of tritonserver; 0 when it is not ours.
        proxy: Proxy in front of the store; None without one.
    """

    server_pid: int = 0
    proxy: Proxy | None = None


class FaultInjection:
    """The fault of one run; `began` schedules it."""

    def __init__(self, trouble: ScenarioFault | None, target: Target) -> None:
        self._timers: list[threading.Timer] = []
        self._trouble = trouble
        if trouble is not None:
            self._begin, self._end = _actions(trouble, target)

    def began(self, begin_s: float) -> None:
        """Schedule the fault; `begin_s` is the run's start on time.perf_counter."""
        if self._trouble is None:
            return
        at_s = begin_s + self._trouble.at_s - perf_counter()
        for wait_s, do in (
            (at_s, self._begin),
            (at_s + self._trouble.seconds, self._end),
        ):
            timer = threading.Timer(max(0.0, wait_s), do)
            timer.start()
            self._timers.append(timer)

    def stop(self) -> None:
        """End the fault, if it has not ended."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
        if self._timers:
            self._end()


@contextmanager
def fault_injection(scenario: Scenario, target: Target) -> Iterator[FaultInjection]:
    """
    Inject the fault of a scenario while the block runs.

    Raises:
        InputError: It cannot be injected into this server.
    """
    found = FaultInjection(scenario.trouble, target)
    try:
        yield found
    finally:
        found.stop()


def _actions(
    trouble: ScenarioFault, target: Target
) -> tuple[Callable[[], None], Callable[[], None]]:
    if trouble.kind == "store-slow" and target.proxy is not None:
        proxy = target.proxy
        slow = f"slow {trouble.delay_ms / 1e3:g}"
        return lambda: proxy.order(slow), lambda: proxy.order("pass")
    if trouble.kind == "server-stopped" and target.server_pid:
        pid = target.server_pid
        return (
            lambda: os.kill(pid, signal.SIGSTOP),
            lambda: os.kill(pid, signal.SIGCONT),
        )
    raise InputError("--grpc-url", f"{trouble.kind} needs a server of our own")


def marks_of(scenario: Scenario) -> tuple[Mark, ...]:
    """Return the moments at which the parts of a scenario begin, in order."""
    marks = []
    at_s = 0.0
    for phase in scenario.phases:
        to = "" if phase.to is None else f" to {phase.to:,.0f}"
        marks.append(Mark(at_s, f"{phase.rate:,.0f}{to} requests/s"))
        at_s += phase.seconds
    if scenario.trouble is not None:
        one = scenario.trouble
        marks.append(Mark(one.at_s, one.kind))
        marks.append(Mark(one.at_s + one.seconds, f"{one.kind} over"))
    if scenario.shift is not None:
        marks.append(Mark(scenario.shift.at_s, "other purchases"))
    return tuple(sorted(marks, key=lambda mark: mark.at_s))
