"""Serve a product under supervision: what `up` and `serve` share."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tollgate.cli import console
from tollgate.cli.repositories import to_follow
from tollgate.errors import InputError
from tollgate.repository.check import require_sound
from tollgate.server.address import announce
from tollgate.server.embedded import Embedded, serve
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
from tollgate.supervisor.shadowing import begin_shadow
from tollgate.supervisor.side_port import side_port as open_side_port
from tollgate.supervisor.supervisor import Supervisor

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
        chosen: Where things are.
        side_port: HTTP port of readiness and metrics; 0 takes a free one.
        host: Address of all ports.
        recycling: When a step is started anew although it works.
        drain_delay_s: How long to serve on after SIGTERM while not ready.
        log_format: "text" or "json".
        recall: Serve what was served here before, when the release cannot be.

    Raises:
        ServerError: Something died and would not stay mended.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    heartbeats: list[Heartbeat] = []
    _log_lines(log_format, lambda: ", ".join(beat.release for beat in heartbeats))
    product, state = chosen.product, chosen.state_path
    source = to_follow(chosen)
    repository = source.folder
    if not recall:
        require_sound(repository, product=product, config_name=chosen.model_config_name)
    with contextlib.ExitStack() as stack:
        embedded = stack.enter_context(
            serve(
                repository,
                product=product,
                state=state,
                grpc_port=chosen.grpc_port,
                metrics_port=chosen.metrics_port,
                store_url=chosen.store_url or None,
                journal_url=chosen.journal_url,
                model_config_name=chosen.model_config_name,
                host=host,
                recall=recall,
            )
        )
        metrics = SupervisorMetrics()
        heartbeats.append(
            Heartbeat(embedded.triton, product, observe=metrics.probe_s.observe)
        )
        keep = _keeper(metrics, state=state, repository=repository)
        place = _Place(embedded, chosen, repository=repository, host=host)
        converger = Converger(
            embedded.serving,
            source=source,
            product=product,
            config_name=chosen.model_config_name,
            refused=partial(_refused, keep, product, heartbeats[0]),
        )
        supervisor = Supervisor(
            Served(embedded, announce=place.announce),
            heartbeats=heartbeats,
            convergers=[converger],
            recycling=recycling or Recycling(),
            fault=keep,
        )
        arrivals = _arrivals(chosen, partial(_arrived, keep, heartbeats[0]))
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
        supervisor.run(stopped.wait)
        console.say("draining …")
        time.sleep(drain_delay_s)


class _Place:
    """Tells other processes where the server is, after each start."""

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
            product=self._chosen.product,
            store_url=self._embedded.store_url,
            side_port_url=f"http://{self._host}:{self.side_port}",
        )


def _refused(
    keep: Callable[[Fault], None],
    product: str,
    beat: Heartbeat,
    release: str,
    why: str,
) -> None:
    keep(
        Fault(
            time=now_text(),
            part=product,
            what=f"release {release} was not taken",
            mended_s=None,
            outcome=why,
            release=beat.release,
        )
    )


def _arrivals(chosen: Settings, bad: Callable[[Arrival], None]) -> list[Arrivals]:
    """Look for versions that are copied in; nobody does that to a mirror."""
    if chosen.repository_url:
        return []
    looking = Arrivals(
        chosen.repository_path,
        product=chosen.product,
        quiet_s=chosen.arrival_quiet_s,
        bad=bad,
        sound=partial(begin_shadow, chosen.repository_path),
    )
    return [looking]


def _arrived(keep: Callable[[Fault], None], beat: Heartbeat, arrival: Arrival) -> None:
    where = f"; moved to {arrival.moved_to}" if arrival.moved_to else ""
    keep(
        Fault(
            time=now_text(),
            part=arrival.step,
            what=f"version {arrival.version} was copied in and is bad",
            mended_s=None,
            outcome=arrival.reason + where,
            release=beat.release,
        )
    )


def _keeper(
    metrics: SupervisorMetrics, *, state: Path, repository: Path
) -> Callable[[Fault], None]:
    """Count a fault, keep it, and pack a bundle beside the work."""
    faults = FaultLog(state)
    one_at_a_time = threading.Lock()

    def pack() -> None:
        try:
            with one_at_a_time:
                write_at_fault(state=state, repository=repository)
        except (InputError, OSError) as error:
            log.warning("no bundle was written: %s", error)

    def keep(fault: Fault) -> None:
        metrics.fault(fault)
        faults.add(fault)
        # No daemon: the bundle of the fault that ends the supervisor counts most.
        threading.Thread(target=pack, name="bundle").start()

    return keep


def _say_ready(embedded: Embedded, chosen: Settings, *, port: int) -> None:
    host = embedded.metrics_url.removeprefix("http://").rpartition(":")[0]
    console.out.print(
        f"READY  {chosen.product}, release {embedded.release}\n"
        f"grpc     {embedded.grpc_url}\n"
        f"metrics  {embedded.metrics_url}\n"
        f"health   http://{host}:{port}/readyz\n"
        f"logs     {chosen.state_path / 'logs'}",
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
