"""Mend one thing, tell of it, and know when to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tollgate.errors import RepositoryError, ServerError
from tollgate.supervisor.faults import Fault, now_text
from tollgate.supervisor.flapping import Flapping
from tollgate.supervisor.heartbeat import Heartbeat

log = logging.getLogger(__name__)

_AGAIN_S = 1.0  # after one that did not help


class Mender:
    """
    Mends what a supervisor finds broken.

    Args:
        heartbeats: Of the products that may have suffered.
        fault: Called with each thing that went wrong, once it is mended or not.
        flapping: When to give up.
    """

    def __init__(
        self,
        heartbeats: Sequence[Heartbeat],
        *,
        fault: Callable[[Fault], None],
        flapping: Flapping,
    ) -> None:
        self._heartbeats = heartbeats
        self._fault = fault
        self._flapping = flapping
        self._again_s: dict[str, float] = {}

    def mend(self, part: str, what: str, action: Callable[[], None]) -> None:
        """
        Mend something, and tell of it; what could not be is left for the next look.

        Args:
            part: What is broken.
            what: How.
            action: Mends it, or raises ServerError or RepositoryError.

        Raises:
            ServerError: It was mended too often, so it is not mended at all.
        """
        begun_s, noticed = time.monotonic(), now_text()
        if begun_s < self._again_s.get(part, begun_s):
            return
        log.error("%s: %s", part, what)
        why = self._flapping.failed(part, now_s=begun_s)
        if why:
            self._tell(noticed, part, what, None, f"given up: {why}")
            raise ServerError(part, f"{what}; gives up: {why}")
        try:
            action()
        except (ServerError, RepositoryError) as error:
            self._again_s[part] = time.monotonic() + _AGAIN_S
            self._tell(noticed, part, what, None, str(error))
            return
        ended_s = time.monotonic()
        self._flapping.mended(part, now_s=ended_s)
        for beat in self._heartbeats:
            beat.forgive()
        self._tell(noticed, part, what, ended_s - begun_s, "mended")

    def _tell(
        self, noticed: str, part: str, what: str, mended_s: float | None, outcome: str
    ) -> None:
        log.warning("%s: %s: %s", part, what, outcome)
        release = ", ".join(beat.release for beat in self._heartbeats)
        self._fault(
            Fault(
                time=noticed,
                part=part,
                what=what,
                mended_s=mended_s,
                outcome=outcome,
                release=release,
            )
        )
