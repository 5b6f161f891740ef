"""The system under test: our own product with a filled store, or an address."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from loadtests import harness
from loadtests.harness import Population, StoreContents, say
from loadtests.paced.raw import Server
from loadtests.paced.troubles import Target
from loadtests.results.measure import use_now, work_of, work_since
from loadtests.results.surroundings import measured_with
from loadtests.servers.proxy import Proxy
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.errors import StoreError
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
        grpc_url: Address for requests.
        server: Our server; None for an address.
        target: Its parts into which faults can be injected.
        traffic: The purchases to send.
        store: Description of the store's contents before the load.
        folder: Folder for files.
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
def served(
    repository: Path,
    population: Population,
    *,
    folder: Path,
    behind_proxy: bool,
    config_name: str = "",
) -> Iterator[Bench]:
    """
    Serve a repository with a store that holds a history.

    Args:
        repository: The model repository.
        population: Size of the history.
        folder: Folder for state and files.
        behind_proxy: True if the store is behind a proxy that can slow it.
        config_name: Named configuration to use where a model has it.

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
            harness.served(
                contents,
                folder / STATE_FOLDER,
                repository=repository,
                store_url=store_url,
                model_config_name=config_name,
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
    """
    Count the work of a server during the block; the list has one element at its end.
    """
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
