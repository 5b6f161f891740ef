"""Hold the state of one supervised product: its loaded release and its health."""

from __future__ import annotations

import time

from tollgate.server.serving import Serving
from tollgate.supervisor.converging import Converger
from tollgate.supervisor.heartbeat import Heartbeat
from tollgate.worker import backoff_s

_RENEW_S, _MOST_RENEW_S = 5.0, 60.0


class Watched:
    """
    One of the products of a server.

    Args:
        serving: Record of the product's loaded release.
        heartbeat: Its health probe; not yet started.
        converger: Its reconciliation with the repository; not yet started.
    """

    def __init__(
        self, serving: Serving, *, heartbeat: Heartbeat, converger: Converger
    ) -> None:
        self.name = heartbeat.product
        self.serving = serving
        self.heartbeat = heartbeat
        self.converger = converger
        self._was_loaded = self.loaded
        self._renewed = 0  # consecutive restarts without success
        self._renew_again_s = 0.0

    @property
    def loaded(self) -> bool:
        """Return whether a release of the product is loaded."""
        return self.serving.active is not None

    @property
    def failures(self) -> int:
        """Number of failed probes in a row; 0 while no release is loaded."""
        if self.loaded and not self._was_loaded:
            self._was_loaded = True
            self.heartbeat.forgive()
        return self.heartbeat.failures if self.loaded else 0

    @property
    def ready(self) -> bool:
        """Return whether the product decides."""
        return self.loaded and self.heartbeat.ready

    @property
    def release(self) -> str:
        """Release that answered last."""
        return self.heartbeat.release

    @property
    def problem(self) -> str:
        """Reason why the product is not ready; empty if it is."""
        if self.loaded:
            return self.heartbeat.problem
        return f"is not loaded: {self.converger.problem}"

    def start(self) -> None:
        """Start the health probe and the reconciliation."""
        self.heartbeat.start()
        self.converger.start()

    def stop(self) -> None:
        """Stop both, after a switch in progress has ended."""
        self.converger.stop()
        self.heartbeat.stop()

    def others_answered(self) -> bool:
        """Return whether other callers get answers, even if the probe does not."""
        return self.loaded and self.heartbeat.others_answered()

    def may_renew(self) -> bool:
        """
        Return whether its steps may be restarted again, and count the restart.

        Each restart costs the other products computing time: the pause doubles after
        each restart that did not help, up to a minute.
        """
        now_s = time.monotonic()
        if now_s < self._renew_again_s:
            return False
        lived_s = now_s - self._renew_again_s
        self._renewed = 0 if lived_s > _MOST_RENEW_S else self._renewed + 1
        pause_s = backoff_s(self._renewed + 1, first_s=_RENEW_S, most_s=_MOST_RENEW_S)
        self._renew_again_s = now_s + pause_s
        return True
