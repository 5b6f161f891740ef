"""Define the Prometheus metrics that the supervisor exports."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tollgate.errors import TollgateError
from tollgate.metrics import counter, family, gauge, histogram
from tollgate.repository.models.artifact_file import decode_training
from tollgate.repository.releases.release_file import read_release
from tollgate.schema import ARTIFACT_FILE
from tollgate.supervisor.fault_log import Fault
from tollgate.supervisor.supervisor import Supervisor
from tollgate.worker import LoopCollector

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name in brackets, from 0: proc(5).
_USER, _SYSTEM, _THREADS, _RESIDENT = 11, 12, 17, 21


class Process(msgspec.Struct, frozen=True):
    """
    Resources that a process has used so far.

    Attributes:
        process: tritonserver, redis-server, supervisor, or the name of a model.
        product: Product of the model; empty for a process that all products share.
        instance: Instance of the model; empty for a process that is not a model's.
    """

    process: str
    product: str
    instance: str
    cpu_s: float
    resident_bytes: int
    threads: int


def read_processes(
    pids: Iterator[tuple[int, str, str, str]], *, proc: Path = Path("/proc")
) -> list[Process]:
    """
    Read the resources of processes; skip one that has ended.

    Args:
        pids: Process id, and the name, product and instance to report it under.
        proc: Folder in which the kernel shows processes.
    """
    found: list[Process] = []
    for pid, process, product, instance in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            found.append(
                Process(
                    process=process,
                    product=product,
                    instance=instance,
                    cpu_s=(int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS_PER_S,
                    resident_bytes=int(stat[_RESIDENT]) * _PAGE_BYTES,
                    threads=int(stat[_THREADS]),
                )
            )
        except (OSError, IndexError, ValueError):
            continue  # the process ended meanwhile
    return found


# Collect releases, scores and processes for each scrape of the metrics.

# As in tollgate/steps/decision_metrics.py: scores closer to 0 or 1 get the log-odds of
# this value.
_CLIP = 1e-6

Versions = dict[str, int]


class ReportedRelease(msgspec.Struct, frozen=True):
    """
    A release that answers, or is on trial.

    Attributes:
        role: champion, canary or shadow.
        percent: Share of the customers that it answers, in percent.
    """

    product: str
    release: str
    role: str
    percent: float
    versions: Versions


class SupervisorCollector(Collector):
    """Collect metrics for a scrape, with training scores of a repository, if any."""

    def __init__(self, repository: Path | None) -> None:
        self._repository = repository
        self._reported: list[ReportedRelease] = []
        self._processes: list[Process] = []
        self._trained: dict[Path, tuple[float, float] | None] = {}

    def update(self, supervisor: Supervisor) -> None:
        """Update releases and processes from the supervisor."""
        self._processes = read_processes(supervisor.processes())
        reported: list[ReportedRelease] = []
        for one in supervisor.products:
            active = one.serving.active
            if active is not None:
                reported.append(
                    ReportedRelease(
                        one.name, active.release, "champion", 100.0, active.versions
                    )
                )
            reported += self._challenger(one.name)
        self._reported = reported

    def collect(self) -> Iterator[Metric]:
        """Yield metric families, the interface that prometheus_client calls."""
        yield from self._releases()
        yield from self._scores()
        yield from self._resources()

    def _challenger(self, product: str) -> list[ReportedRelease]:
        """Return the challenger on trial; empty if the repository cannot be read."""
        if self._repository is None:
            return []
        try:
            one = read_release(self._repository, product=product).challenger
        except TollgateError:
            return []
        if one is None:
            return []
        return [
            ReportedRelease(
                product, one.release, one.mode, one.percent, dict(one.versions)
            )
        ]

    def _releases(self) -> Iterator[Metric]:
        info = family("tollgate_release_info")
        share = family("tollgate_release_percent")
        for one in self._reported:
            named = [one.product, one.release, one.role]
            for model, version in one.versions.items():
                info.add_metric([*named, model, str(version)], 1)
            others = sum(
                other.percent
                for other in self._reported
                if other.product == one.product and other.role == "canary"
            )
            percent = 100.0 - others if one.role == "champion" else one.percent
            share.add_metric(named, 0.0 if one.role == "shadow" else percent)
        yield info
        yield share

    def _scores(self) -> Iterator[Metric]:
        mean = family("tollgate_score_trained_log_odds")
        deviation = family("tollgate_score_trained_deviation")
        for one in self._reported:
            found = self._score_of(one.versions)
            if found is not None:
                mean.add_metric([one.product, one.release], found[0])
                deviation.add_metric([one.product, one.release], found[1])
        yield mean
        yield deviation

    def _resources(self) -> Iterator[Metric]:
        cpu = family("tollgate_process_cpu_seconds_total")
        resident = family("tollgate_process_resident_bytes")
        threads = family("tollgate_process_threads")
        for one in self._processes:
            named = [one.process, one.product, one.instance]
            cpu.add_metric(named, one.cpu_s)
            resident.add_metric(named, one.resident_bytes)
            threads.add_metric(named, one.threads)
        yield cpu
        yield resident
        yield threads

    def _score_of(self, versions: Versions) -> tuple[float, float] | None:
        """Return mean and deviation of a release's training scores; read them once."""
        for model, version in versions.items():
            if self._repository is None:
                return None
            path = self._repository / model / str(version) / ARTIFACT_FILE
            if path not in self._trained and path.is_file():
                self._trained[path] = trained_log_odds(path)
            if self._trained.get(path) is not None:
                return self._trained[path]
        return None


def trained_log_odds(artifact: Path) -> tuple[float, float] | None:
    """
    Compute the distribution of training scores from their recorded quantiles.

    Between two quantiles, log-odds are assumed to be uniformly distributed.

    Returns:
        Mean, relative to the smallest possible value, and standard deviation of the
        log-odds; None if the file does not record them, or all scores were the same.
    """
    try:
        training = decode_training(artifact.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    if training is None or training.score is None:
        return None
    levels = training.quantiles
    odds = [_log_odds(one) for one in training.score.quantiles if one is not None]
    if len(odds) != len(levels) or not odds:
        return None
    mean = square = 0.0
    for low, high, left, right in zip(levels, levels[1:], odds, odds[1:], strict=False):
        mean += (high - low) * (left + right) / 2
        square += (high - low) * (left * left + left * right + right * right) / 3
    deviation = math.sqrt(max(0.0, square - mean * mean))
    return (mean - _log_odds(0.0), deviation) if deviation > 0 else None


def _log_odds(score: float) -> float:
    clipped = min(max(score, _CLIP), 1 - _CLIP)
    return math.log(clipped / (1 - clipped))


# A probe also waits for the queue delay: 5 ms and up.
_PROBE_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)


class SupervisorMetrics:
    """
    Hold the counters and gauges of one supervisor, in a separate registry.

    Args:
        repository: The model repository, for the training scores of models.
        capacity_per_s: Decisions per second that this server handled in a measurement;
            0 if it was not measured.
    """

    def __init__(
        self, *, repository: Path | None = None, capacity_per_s: float = 0.0
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self._scraping = threading.Lock()
        GCCollector(registry=registry)
        ProcessCollector(registry=registry)
        self._collector = SupervisorCollector(repository)
        registry.register(self._collector)
        registry.register(LoopCollector())
        capacity = gauge("tollgate_capacity_decisions_per_second", registry)
        capacity.set(capacity_per_s)
        self._faults = counter("tollgate_faults_total", registry)
        self._repair_s = histogram(
            "tollgate_mend_seconds",
            registry,
            buckets=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0),
        )
        self.probe_s = histogram(
            "tollgate_probe_seconds", registry, buckets=_PROBE_BUCKETS
        )
        self._ready = gauge("tollgate_ready", registry)
        self._stub_bytes = gauge("tollgate_step_resident_bytes", registry)
        self._stub_age_s = gauge("tollgate_step_age_seconds", registry)
        self._recycled = gauge("tollgate_steps_recycled", registry)
        started = gauge("tollgate_supervisor_start_time_seconds", registry)
        started.set(time.time())

    def fault(self, fault: Fault) -> None:
        """Count a fault."""
        named = {"product": fault.product, "part": fault.part}
        repaired = fault.mended_s is not None
        self._faults.labels(**named, mended=str(repaired).lower()).inc()
        if fault.mended_s is not None:
            self._repair_s.labels(**named).observe(fault.mended_s)

    def page(self, supervisor: Supervisor) -> bytes:
        """Return the metrics page; one scrape at a time, as each updates all values."""
        with self._scraping:
            self._update(supervisor)
            return generate_latest(self.registry)

    def _update(self, supervisor: Supervisor) -> None:
        """Update gauges and counters from the supervisor."""
        self._collector.update(supervisor)
        self._ready.clear()
        for one in supervisor.products:
            ready = one.ready and not supervisor.draining
            self._ready.labels(product=one.name, release=one.release).set(ready)
        self._recycled.set(supervisor.recycled)
        self._stub_bytes.clear()
        self._stub_age_s.clear()
        owners = {
            step: one.name for one in supervisor.products for step in one.serving.steps
        }
        for stub in supervisor.stubs:
            product = owners.get(stub.step.model, "")
            step = (stub.step.model, str(stub.step.version), stub.step.instance)
            self._stub_bytes.labels(product, *step).set(stub.resident_bytes)
            self._stub_age_s.labels(product, *step).set(stub.age_s)
