"""Define the Prometheus metrics that the supervisor exports."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from tollgate.supervisor.collecting import SupervisorCollector
from tollgate.supervisor.faults import Fault
from tollgate.supervisor.supervisor import Supervisor
from tollgate.worker import LoopCollector

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
        capacity = Gauge(
            "tollgate_capacity_decisions_per_second",
            "Decisions a second that this server handled when measured; 0 if unknown",
            registry=registry,
        )
        capacity.set(capacity_per_s)
        self._faults = Counter(
            "tollgate_faults",
            "Faults of a process, a step or a product",
            ["product", "part", "mended"],
            registry=registry,
        )
        self._repair_s = Histogram(
            "tollgate_mend_seconds",
            "Time from the detection of a fault to its repair",
            ["product", "part"],
            buckets=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0),
            registry=registry,
        )
        self.probe_s = Histogram(
            "tollgate_probe_seconds",
            "Time of a decision on a synthetic purchase, requested every second",
            ["product"],
            buckets=_PROBE_BUCKETS,
            registry=registry,
        )
        self._ready = Gauge(
            "tollgate_ready",
            "Whether the product decided within the last seconds",
            ["product", "release"],
            registry=registry,
        )
        self._stub_bytes = Gauge(
            "tollgate_step_resident_bytes",
            "Resident memory of a Python step",
            ["product", "model", "version", "instance"],
            registry=registry,
        )
        self._stub_age_s = Gauge(
            "tollgate_step_age_seconds",
            "Seconds since the start of a Python step",
            ["product", "model", "version", "instance"],
            registry=registry,
        )
        self._recycled = Gauge(
            "tollgate_steps_recycled",
            "Working Python steps restarted because of age or size",
            registry=registry,
        )
        started = Gauge(
            "tollgate_supervisor_start_time_seconds",
            "Start time of the supervisor, seconds since the epoch",
            registry=registry,
        )
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
