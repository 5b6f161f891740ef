"""Run the supervised server of `up` and `serve`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import msgspec

from tollgate.cli import console
from tollgate.cli.repositories import open_source, served_folder
from tollgate.cli.signals import stop_on_signal
from tollgate.console import Console, ConsoleSources, SignIn, read_console_secret
from tollgate.console.sign_in import is_loopback
from tollgate.errors import InputError, ObjectStoreError, RepositoryError
from tollgate.repository.lint.product_rules import require_sound
from tollgate.repository.remote.repository_source import Source
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.address import announce
from tollgate.server.processes.resources import raise_file_limit
from tollgate.server.processes.store_engine import find_engine
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton.launcher import ADMIN_HEADER, bracketed
from tollgate.settings import Settings
from tollgate.supervisor.admin_port import serve_admin_port
from tollgate.supervisor.bundle import write_at_fault
from tollgate.supervisor.fault_log import Fault, FaultLog, now_text
from tollgate.supervisor.health_probe import HealthProbe
from tollgate.supervisor.product_supervisor import SupervisedProduct
from tollgate.supervisor.reconciler import Reconciler
from tollgate.supervisor.recycling import Recycling
from tollgate.supervisor.supervisor import ServingProcesses, Supervisor
from tollgate.supervisor.supervisor_metrics import SupervisorMetrics
from tollgate.supervisor.version_detection import (
    DetectedVersion,
    ShadowStarter,
    VersionDetector,
)
from tollgate.tracing import Tracing
from tollgate.worker import Worker

# Format log records as JSON objects, one per line, for a log collector.


class JsonFormatter(logging.Formatter):
    """
    Format a record as one line of JSON: time, level, logger, message, release.

    Args:
        release: Returns the name of the release that is served now.
    """

    def __init__(self, *, release: Callable[[], str]) -> None:
        super().__init__()
        self._release = release

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "release": self._release(),
        }
        trace = getattr(record, "trace_id", "")
        if trace:
            line["trace_id"] = trace
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


log = logging.getLogger(__name__)


def supervise(
    chosen: Settings,
    *,
    admin_port: int,
    host: str = "127.0.0.1",
    recycling: Recycling | None = None,
    drain_delay_s: float = 0.0,
    log_format: str = "text",
    recall: bool = False,
    console_secret_file: Path | None = None,
) -> None:
    """
    Serve until SIGTERM or Ctrl-C.

    Args:
        chosen: The settings.
        admin_port: HTTP port of readiness and metrics; 0 takes a free one.
        host: Address of all ports.
        recycling: Condition to restart a step although it works.
        drain_delay_s: Time to serve on after SIGTERM while not ready, s.
        log_format: "text" or "json".
        recall: True to serve the release that was served here before, if the desired
            one cannot be.
        console_secret_file: File with the secret of the console; None for the server's
            admin secret, or for none if `host` is a loopback address.

    Raises:
        ServerError: A part died, and restarts did not help.
    """
    tracing = tracing_of(chosen)
    secret = read_console_secret(console_secret_file) if console_secret_file else ""
    raise_file_limit()
    if not chosen.store_url:
        find_engine(chosen.store_server)  # refuse a wrong path before all else
    stopped = stop_on_signal()
    supervised: list[SupervisedProduct] = []
    _configure_logging(log_format, lambda: ", ".join(one.release for one in supervised))
    state = chosen.state_path
    repository = served_folder(chosen)
    snapshot = RepositorySnapshot(repository, config_name=chosen.model_config_name)
    sources = _sources(chosen, snapshot, recall=recall)
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
                snapshot=snapshot,
                form=chosen.form,
            )
        )
        metrics = SupervisorMetrics(
            repository=repository, capacity_per_s=chosen.capacity_per_s
        )
        record_fault = stack.enter_context(
            _fault_recorder(metrics, state=state, repository=repository)
        )
        address = _PublishedAddress(embedded, chosen, repository=repository, host=host)
        for product, source in sources.items():
            supervised.append(
                _supervised_product(
                    embedded, chosen, product, source, record_fault, metrics
                )
            )
        supervisor = Supervisor(
            ServingProcesses(embedded, announce=address.announce),
            products=supervised,
            recycling=recycling or Recycling(),
            fault=record_fault,
        )
        detectors = (
            []
            if chosen.repository_url
            else _version_detectors(chosen, supervised, record_fault)
        )
        for detector in detectors:
            stack.enter_context(detector)
        web_console = stack.enter_context(
            _web_console(embedded, supervisor, chosen, secret=secret, host=host)
        )
        port = stack.enter_context(
            serve_admin_port(
                supervisor,
                metrics,
                detectors=detectors,
                console=web_console,
                host=host,
                port=admin_port,
            )
        )
        address.admin_port = port
        address.announce()
        _print_ready(embedded, chosen, port=port)
        supervisor.run(stopped)
        console.say("draining …")
        time.sleep(drain_delay_s)


def _web_console(
    embedded: Embedded,
    supervisor: Supervisor,
    chosen: Settings,
    *,
    secret: str,
    host: str,
) -> Console:
    """Make the console; other machines need a secret, by default the admin secret."""
    if not secret and not is_loopback(host):
        secret = embedded.triton.admin_headers[ADMIN_HEADER]
    sources = ConsoleSources(
        supervisor=supervisor,
        metrics_url=embedded.metrics_url,
        repository=served_folder(chosen),
        state=chosen.state_path,
        stream_url=lambda: embedded.triton.journal_url,
    )
    return Console(sources, sign_in=SignIn(secret))


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


def _sources(
    chosen: Settings, snapshot: RepositorySnapshot, *, recall: bool
) -> dict[str, Source]:
    """
    Open the source that each product follows, with a release to serve.

    With `recall`, a product without a release does not stop the other products.
    """
    sources = {one: open_source(chosen, product=one) for one in chosen.products}
    for product, source in sources.items():
        try:
            source.begin()
        except (RepositoryError, ObjectStoreError) as error:
            if not recall or len(sources) == 1:
                raise
            log.error("%s: %s", product, error)
        if not recall:
            require_sound(snapshot, product=product)
    return sources


def _supervised_product(
    embedded: Embedded,
    chosen: Settings,
    product: str,
    source: Source,
    record_fault: Callable[[Fault], None],
    metrics: SupervisorMetrics,
) -> SupervisedProduct:
    """Put one product under supervision, independently of the others."""
    observe = metrics.probe_s.labels(product=product).observe
    probe = HealthProbe(embedded.triton, product, observe=observe)
    reconciler = Reconciler(
        embedded.serving[product],
        source=source,
        product=product,
        config_name=chosen.model_config_name,
        problem=embedded.problems.get(product, ""),
        on_failure=partial(_report_failed_release, record_fault, probe),
    )
    return SupervisedProduct(
        embedded.serving[product], health_probe=probe, reconciler=reconciler
    )


class _PublishedAddress:
    """Announces the server's addresses to other processes after each start."""

    def __init__(
        self, embedded: Embedded, chosen: Settings, *, repository: Path, host: str
    ) -> None:
        self._embedded = embedded
        self._repository = repository
        self._chosen = chosen
        self._host = host
        self.admin_port = 0

    def announce(self) -> None:
        announce(
            self._embedded.triton,
            state=self._chosen.state_path,
            repository=self._repository,
            origin=self._chosen.repository_url,
            products=self._chosen.products,
            store_url=self._embedded.store_url,
            side_port_url=f"http://{bracketed(self._host)}:{self.admin_port}",
        )


def _report_failed_release(
    record_fault: Callable[[Fault], None], probe: HealthProbe, release: str, reason: str
) -> None:
    record_fault(
        Fault(
            time=now_text(),
            part=probe.product,
            what=f"release {release} was not loaded",
            mended_s=None,
            outcome=reason,
            release=probe.release,
            product=probe.product,
        )
    )


def _version_detectors(
    chosen: Settings,
    supervised: Sequence[SupervisedProduct],
    record_fault: Callable[[Fault], None],
) -> list[VersionDetector]:
    """Detect versions that are copied into the repository; a mirror gets none."""
    return [
        VersionDetector(
            chosen.repository_path,
            product=one.name,
            quiet_s=chosen.arrival_quiet_s,
            on_bad=partial(_report_bad_version, record_fault, one),
            on_valid=ShadowStarter(chosen.repository_path).start,
        )
        for one in supervised
    ]


def _report_bad_version(
    record_fault: Callable[[Fault], None],
    one: SupervisedProduct,
    version: DetectedVersion,
) -> None:
    where = f"; moved to {version.moved_to}" if version.moved_to else ""
    record_fault(
        Fault(
            time=now_text(),
            part=version.step,
            what=f"version {version.version} was copied in and is bad",
            mended_s=None,
            outcome=version.reason + where,
            release=one.release,
            product=one.name,
        )
    )


@contextlib.contextmanager
def _fault_recorder(
    metrics: SupervisorMetrics, *, state: Path, repository: Path
) -> Iterator[Callable[[Fault], None]]:
    """Count and record faults, and write a support bundle in the background."""
    faults = FaultLog(state)
    wanted = threading.Event()

    def write_bundle() -> None:
        if not wanted.is_set():
            return
        wanted.clear()
        try:
            write_at_fault(state=state, repository=repository)
        except (InputError, OSError) as error:
            log.warning("no bundle was written: %s", error)

    def record(fault: Fault) -> None:
        metrics.fault(fault)
        faults.add(fault)
        wanted.set()
        worker.wake()

    # The bundle of the fault that ends the supervisor matters most: wait for it at
    # exit.
    worker = Worker("bundle", write_bundle, pause_s=None, finish=write_bundle)
    worker.start()
    try:
        yield record
    finally:
        worker.stop()


def _print_ready(embedded: Embedded, chosen: Settings, *, port: int) -> None:
    host = embedded.metrics_url.removeprefix("http://").rpartition(":")[0]
    limits = embedded.triton.limits
    for product, serving in embedded.serving.items():
        problem = embedded.problems.get(product)
        line = f"NOT READY  {product}: {problem}"
        if problem is None:
            line = f"READY  {product}, release {serving.release}"
        console.result(line)
    console.result(
        f"grpc     {embedded.grpc_url}\n"
        f"metrics  {embedded.metrics_url}\n"
        f"health   http://{host}:{port}/readyz\n"
        f"console  http://{host}:{port}/console\n"
        f"logs     {chosen.state_path / 'logs'}\n"
        f"limits   {limits.text(len(chosen.products)) if limits else 'not measured'}"
    )


def _configure_logging(kind: str, release: Callable[[], str]) -> None:
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
