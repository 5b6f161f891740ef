"""Repair one part, log the fault, and give up on a part that keeps failing."""

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

_AGAIN_S = 1.0  # pause after a repair that failed
LEFT_S = 60.0  # pause for a failing part of a product, while others decide


class Mender:
    """
    Repair the parts that a supervisor finds broken.

    Args:
        heartbeats: Probes of the products that a fault may have affected.
        fault: Called with each fault, after its repair succeeded or failed.
        flapping: Decides when to give up.
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
        Repair a part and log the fault; after a failure the next look tries again.

        Args:
            part: The part that is broken.
            what: Description of the fault.
            action: Repairs it, or raises ServerError or RepositoryError.
            product: Product of the part; empty for a part that all products share.

        Returns:
            False if the repair failed.

        Raises:
            ServerError: The part was repaired too often, so it is not repaired again,
                and no other product decides either.
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
        """Skip a part for a while if other products decide; else give up for good."""
        others = [beat for beat in self._heartbeats if beat.product != fault.product]
        if fault.product and any(not beat.failures for beat in others):
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
