"""Run the supervised server of `up` and `serve`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tollgate.cli import console
from tollgate.cli.repositories import at_server, to_follow
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError, ObjectStoreError, RepositoryError
from tollgate.repository.check import require_sound
from tollgate.repository.source import Source
from tollgate.server.address import announce
from tollgate.server.embedded import Embedded, serve
from tollgate.server.launcher import bracketed
from tollgate.server.resources import raise_file_limit
from tollgate.server.store_engine import find_engine
from tollgate.settings import Settings
from tollgate.supervisor.arrivals import Arrival, Arrivals
from tollgate.supervisor.bundle import write_at_fault
from tollgate.supervisor.converging import Converger
from tollgate.supervisor.faults import Fault, FaultLog, now_text
from tollgate.supervisor.heartbeat import Heartbeat
from tollgate.supervisor.json_log import JsonFormatter
from tollgate.supervisor.metrics import SupervisorMetrics
from tollgate.supervisor.recycling import Recycling
from tollgate.supervisor.served import Served
from tollgate.supervisor.shadowing import Shadows
from tollgate.supervisor.side_port import side_port as open_side_port
from tollgate.supervisor.supervisor import Supervisor
from tollgate.supervisor.watched import Watched
from tollgate.tracing import Tracing
from tollgate.worker import Worker

log = logging.getLogger(__name__)


def supervise(
    chosen: Settings,
    *,
    side_port: int,
    host: str = "127.0.0.1",
    recycling: Recycling | None = None,
    drain_delay_s: float = 0.0,
    log_format: str = "text",
    recall: bool = False,
) -> None:
    """
    Serve until SIGTERM or Ctrl-C.

    Args:
        chosen: The settings.
        side_port: HTTP port of readiness and metrics; 0 takes a free one.
        host: Address of all ports.
        recycling: Condition to restart a step although it works.
        drain_delay_s: Time to serve on after SIGTERM while not ready, s.
        log_format: "text" or "json".
        recall: True to serve the release that was served here before, if the desired
            one cannot be.

    Raises:
        ServerError: A part died, and restarts did not help.
    """
    tracing = tracing_of(chosen)
    raise_file_limit()
    if not chosen.store_url:
        find_engine(chosen.store_server)  # refuse a wrong path before all else
    stopped = stop_on_signal()
    watched: list[Watched] = []
    _log_lines(log_format, lambda: ", ".join(one.release for one in watched))
    state = chosen.state_path
    sources = _sources(chosen, recall=recall)
    repository = at_server(chosen)
    with contextlib.ExitStack() as stack:
        embedded = stack.enter_context(
            serve(
                repository,
                products=chosen.products,
                state=state,
                grpc_port=chosen.grpc_port,
                metrics_port=chosen.metrics_port,
                store_url=chosen.store_url or None,
                store_server=chosen.store_server,
                journal_url=chosen.journal_url,
                model_config_name=chosen.model_config_name,
                cache_mb=chosen.cache_mb,
                allocator=chosen.allocator,
                host=host,
                recall=recall,
                tracing=tracing,
            )
        )
        metrics = SupervisorMetrics(
            repository=repository, capacity_per_s=chosen.capacity_per_s
        )
        keep = stack.enter_context(_keeper(metrics, state=state, repository=repository))
        place = _Place(embedded, chosen, repository=repository, host=host)
        for product, source in sources.items():
            watched.append(_watched(embedded, chosen, product, source, keep, metrics))
        supervisor = Supervisor(
            Served(embedded, announce=place.announce),
            products=watched,
            recycling=recycling or Recycling(),
            fault=keep,
        )
        arrivals = [] if chosen.repository_url else _arrivals(chosen, watched, keep)
        for looking in arrivals:
            stack.enter_context(looking)
        port = stack.enter_context(
            open_side_port(
                supervisor, metrics, arrivals=arrivals, host=host, port=side_port
            )
        )
        place.side_port = port
        place.announce()
        _say_ready(embedded, chosen, port=port)
        supervisor.run(stopped)
        console.say("draining …")
        time.sleep(drain_delay_s)


def tracing_of(chosen: Settings) -> Tracing | None:
    """Read the tracing settings: our own endpoint, or OpenTelemetry's variables."""
    if chosen.trace_rate < 0:
        raise InputError("--trace-rate", f"{chosen.trace_rate} is below 0")
    named = [f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT" for kind in ("", "TRACES_")]
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not chosen.otlp_endpoint and (off or not any(map(os.environ.get, named))):
        if chosen.trace_rate:
            raise InputError("--trace-rate", "needs --otlp-endpoint")
        return None
    return Tracing(endpoint=chosen.otlp_endpoint, rate=chosen.trace_rate)


def _sources(chosen: Settings, *, recall: bool) -> dict[str, Source]:
    """
    Open the source that each product follows, with a release to serve.

    With `recall`, a product without a release does not stop the other products.
    """
    sources = {one: to_follow(chosen, product=one) for one in chosen.products}
    for product, source in sources.items():
        try:
            source.begin()
        except (RepositoryError, ObjectStoreError) as error:
            if not recall or len(sources) == 1:
                raise
            log.error("%s: %s", product, error)
        if not recall:
            name = chosen.model_config_name
            require_sound(source.folder, product=product, config_name=name)
    return sources


def _watched(
    embedded: Embedded,
    chosen: Settings,
    product: str,
    source: Source,
    keep: Callable[[Fault], None],
    metrics: SupervisorMetrics,
) -> Watched:
    """Put one product under supervision, independently of the others."""
    observe = metrics.probe_s.labels(product=product).observe
    beat = Heartbeat(embedded.triton, product, observe=observe)
    converger = Converger(
        embedded.serving[product],
        source=source,
        product=product,
        config_name=chosen.model_config_name,
        problem=embedded.problems.get(product, ""),
        refused=partial(_refused, keep, beat),
    )
    return Watched(embedded.serving[product], heartbeat=beat, converger=converger)


class _Place:
    """Announces the server's addresses to other processes after each start."""

    def __init__(
        self, embedded: Embedded, chosen: Settings, *, repository: Path, host: str
    ) -> None:
        self._embedded = embedded
        self._repository = repository
        self._chosen = chosen
        self._host = host
        self.side_port = 0

    def announce(self) -> None:
        announce(
            self._embedded.triton,
            state=self._chosen.state_path,
            repository=self._repository,
            origin=self._chosen.repository_url,
            products=self._chosen.products,
            store_url=self._embedded.store_url,
            side_port_url=f"http://{bracketed(self._host)}:{self.side_port}",
        )


def _refused(
    keep: Callable[[Fault], None], beat: Heartbeat, release: str, why: str
) -> None:
    keep(
        Fault(
            time=now_text(),
            part=beat.product,
            what=f"release {release} was not taken",
            mended_s=None,
            outcome=why,
            release=beat.release,
            product=beat.product,
        )
    )


def _arrivals(
    chosen: Settings, watched: Sequence[Watched], keep: Callable[[Fault], None]
) -> list[Arrivals]:
    """Detect versions that are copied into the repository; a mirror gets none."""
    return [
        Arrivals(
            chosen.repository_path,
            product=one.name,
            quiet_s=chosen.arrival_quiet_s,
            bad=partial(_arrived, keep, one),
            sound=Shadows(chosen.repository_path).begin,
        )
        for one in watched
    ]


def _arrived(keep: Callable[[Fault], None], one: Watched, arrival: Arrival) -> None:
    where = f"; moved to {arrival.moved_to}" if arrival.moved_to else ""
    keep(
        Fault(
            time=now_text(),
            part=arrival.step,
            what=f"version {arrival.version} was copied in and is bad",
            mended_s=None,
            outcome=arrival.reason + where,
            release=one.release,
            product=one.name,
        )
    )


@contextlib.contextmanager
def _keeper(
    metrics: SupervisorMetrics, *, state: Path, repository: Path
) -> Iterator[Callable[[Fault], None]]:
    """Count and record faults, and write a support bundle in the background."""
    faults = FaultLog(state)
    wanted = threading.Event()

    def pack() -> None:
        if not wanted.is_set():
            return
        wanted.clear()
        try:
            write_at_fault(state=state, repository=repository)
        except (InputError, OSError) as error:
            log.warning("no bundle was written: %s", error)

    def keep(fault: Fault) -> None:
        metrics.fault(fault)
        faults.add(fault)
        wanted.set()
        worker.wake()

    # The bundle of the fault that ends the supervisor matters most: wait for it at
    # exit.
    worker = Worker("bundle", pack, pause_s=None, finish=pack)
    worker.start()
    try:
        yield keep
    finally:
        worker.stop()


def _say_ready(embedded: Embedded, chosen: Settings, *, port: int) -> None:
    host = embedded.metrics_url.removeprefix("http://").rpartition(":")[0]
    limits = embedded.triton.limits
    for product, serving in embedded.serving.items():
        problem = embedded.problems.get(product)
        told = f"NOT READY  {product}: {problem}"
        if problem is None:
            told = f"READY  {product}, release {serving.release}"
        console.out.print(told, highlight=False, markup=False, soft_wrap=True)
    console.out.print(
        f"grpc     {embedded.grpc_url}\n"
        f"metrics  {embedded.metrics_url}\n"
        f"health   http://{host}:{port}/readyz\n"
        f"logs     {chosen.state_path / 'logs'}\n"
        f"limits   {limits.text(len(chosen.products)) if limits else 'not measured'}",
        highlight=False,
    )


def _log_lines(kind: str, release: Callable[[], str]) -> None:
    """Write the project's own log lines to standard error."""
    handler = logging.StreamHandler()
    if kind == "json":
        handler.setFormatter(JsonFormatter(release=release))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    own = logging.getLogger("tollgate")
    own.handlers[:] = [handler]
    own.setLevel(logging.INFO)
    own.propagate = False
