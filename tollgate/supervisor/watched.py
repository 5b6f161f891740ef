"""One product under supervision: what is loaded of it, and how it does."""

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
        serving: What the server has loaded of it.
        heartbeat: Asks it for decisions; not yet started.
        converger: Keeps it at the release of its repository; likewise.
    """

    def __init__(
        self, serving: Serving, *, heartbeat: Heartbeat, converger: Converger
    ) -> None:
        self.name = heartbeat.product
        self.serving = serving
        self.heartbeat = heartbeat
        self.converger = converger
        self._was_loaded = self.loaded
        self._renewed = 0  # times in a row, in vain
        self._renew_again_s = 0.0

    @property
    def loaded(self) -> bool:
        """Whether it has a release to decide by."""
        return self.serving.active is not None

    @property
    def failures(self) -> int:
        """How many probes in a row failed; while nothing is loaded none is counted."""
        if self.loaded and not self._was_loaded:
            self._was_loaded = True
            self.heartbeat.forgive()
        return self.heartbeat.failures if self.loaded else 0

    @property
    def ready(self) -> bool:
        """Whether it decides."""
        return self.loaded and self.heartbeat.ready

    @property
    def release(self) -> str:
        """The release that answered last."""
        return self.heartbeat.release

    @property
    def problem(self) -> str:
        """Why it is not ready; empty when it is."""
        if self.loaded:
            return self.heartbeat.problem
        return f"is not loaded: {self.converger.problem}"

    def start(self) -> None:
        """Begin to ask it, and to follow its repository."""
        self.heartbeat.start()
        self.converger.start()

    def stop(self) -> None:
        """End both; a switch that is under way ends first."""
        self.converger.stop()
        self.heartbeat.stop()

    def others_answered(self) -> bool:
        """Tell whether it answers callers, if not us in time."""
        return self.loaded and self.heartbeat.others_answered()

    def may_renew(self) -> bool:
        """
        Tell whether its steps may be restarted once more, and count the restart.

        Each restart costs the other products computing time: the pause doubles after
        each one that did not help, up to a minute.
        """
        now_s = time.monotonic()
        if now_s < self._renew_again_s:
            return False
        lived_s = now_s - self._renew_again_s
        self._renewed = 0 if lived_s > _MOST_RENEW_S else self._renewed + 1
        pause_s = backoff_s(self._renewed + 1, first_s=_RENEW_S, most_s=_MOST_RENEW_S)
        self._renew_again_s = now_s + pause_s
        return True
