"""Hold the state of one supervised product: its loaded release and its health."""

from __future__ import annotations

import time

from tollgate.server.serving import Serving
from tollgate.supervisor.converging import Reconciler
from tollgate.supervisor.heartbeat import HealthProbe
from tollgate.worker import backoff_s

_RESTART_S, _MOST_RESTART_S = 5.0, 60.0


class SupervisedProduct:
    """
    One of the products of a server.

    Args:
        serving: Record of the product's loaded release.
        health_probe: Its health probe; not yet started.
        reconciler: Its reconciliation with the repository; not yet started.
    """

    def __init__(
        self, serving: Serving, *, health_probe: HealthProbe, reconciler: Reconciler
    ) -> None:
        self.name = health_probe.product
        self.serving = serving
        self.health_probe = health_probe
        self.reconciler = reconciler
        self._was_loaded = self.loaded
        self._restarts = 0  # consecutive restarts without success
        self._next_restart_s = 0.0

    @property
    def loaded(self) -> bool:
        """Return whether a release of the product is loaded."""
        return self.serving.active is not None

    @property
    def failures(self) -> int:
        """Number of failed probes in a row; 0 while no release is loaded."""
        if self.loaded and not self._was_loaded:
            self._was_loaded = True
            self.health_probe.reset_failures()
        return self.health_probe.failures if self.loaded else 0

    @property
    def ready(self) -> bool:
        """Return whether the product decides."""
        return self.loaded and self.health_probe.ready

    @property
    def release(self) -> str:
        """Release that answered last."""
        return self.health_probe.release

    @property
    def problem(self) -> str:
        """Reason why the product is not ready; empty if it is."""
        if self.loaded:
            return self.health_probe.problem
        return f"is not loaded: {self.reconciler.problem}"

    def start(self) -> None:
        """Start the health probe and the reconciliation."""
        self.health_probe.start()
        self.reconciler.start()

    def stop(self) -> None:
        """Stop both, after a switch in progress has ended."""
        self.reconciler.stop()
        self.health_probe.stop()

    def others_get_answers(self) -> bool:
        """Return whether other callers get answers, even if the probe does not."""
        return self.loaded and self.health_probe.others_get_answers()

    def may_restart_steps(self) -> bool:
        """
        Return whether its steps may be restarted again, and count the restart.

        Each restart costs the other products computing time: the pause doubles after
        each restart that did not help, up to a minute.
        """
        now_s = time.monotonic()
        if now_s < self._next_restart_s:
            return False
        lived_s = now_s - self._next_restart_s
        self._restarts = 0 if lived_s > _MOST_RESTART_S else self._restarts + 1
        pause_s = backoff_s(
            self._restarts + 1, first_s=_RESTART_S, most_s=_MOST_RESTART_S
        )
        self._next_restart_s = now_s + pause_s
        return True
