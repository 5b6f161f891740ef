"""Mend one thing, tell of it, and know when to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from tollgate.errors import RepositoryError, ServerError
from tollgate.supervisor.faults import Fault, now_text
from tollgate.supervisor.flapping import Flapping
from tollgate.supervisor.heartbeat import Heartbeat

log = logging.getLogger(__name__)

_AGAIN_S = 1.0  # after one that did not help
LEFT_S = 60.0  # a product's part that would not stay mended, while others decide


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

    def mend(
        self, part: str, what: str, action: Callable[[], None], *, product: str = ""
    ) -> bool:
        """
        Mend something, and tell of it; what could not be is left for the next look.

        Args:
            part: What is broken.
            what: How.
            action: Mends it, or raises ServerError or RepositoryError.
            product: Whose part it is; empty for what all share.

        Returns:
            False when it was tried in vain.

        Raises:
            ServerError: It was mended too often, so it is not mended at all, and
                no other product decides either.
        """
        begun_s, noticed = time.monotonic(), now_text()
        if begun_s < self._again_s.get(part, begun_s):
            return True
        log.error("%s: %s", part, what)
        why = self._flapping.failed(part, now_s=begun_s)
        if why:
            self._give_up(Fault(noticed, part, what, None, why, "", product))
            return True
        try:
            action()
        except (ServerError, RepositoryError) as error:
            self._again_s[part] = time.monotonic() + _AGAIN_S
            self._tell(Fault(noticed, part, what, None, str(error), "", product))
            return False
        ended_s = time.monotonic()
        self._flapping.mended(part, now_s=ended_s)
        for beat in self._of(product):
            beat.forgive()
        taken_s = ended_s - begun_s
        self._tell(Fault(noticed, part, what, taken_s, "mended", "", product))
        return True

    def _give_up(self, fault: Fault) -> None:
        """Leave a part for a while, if others decide; else for good."""
        others = [beat for beat in self._heartbeats if beat.product != fault.product]
        if fault.product and any(beat.ready for beat in others):
            self._again_s[fault.part] = time.monotonic() + LEFT_S
            self._flapping.forget(fault.part)
            self._tell(fault, f"left for {LEFT_S:g} s: {fault.outcome}")
            return
        self._tell(fault, f"given up: {fault.outcome}")
        raise ServerError(fault.part, f"{fault.what}; gives up: {fault.outcome}")

    def _of(self, product: str) -> list[Heartbeat]:
        return [beat for beat in self._heartbeats if product in ("", beat.product)]

    def _tell(self, fault: Fault, outcome: str = "") -> None:
        release = ", ".join(filter(None, (b.release for b in self._of(fault.product))))
        told = msgspec.structs.replace(
            fault, outcome=outcome or fault.outcome, release=release
        )
        log.warning("%s: %s: %s", told.part, told.what, told.outcome)
        self._fault(told)
