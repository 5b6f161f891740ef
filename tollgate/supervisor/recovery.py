"""Repair one part, log the fault, and give up on a part that keeps failing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from tollgate.errors import RepositoryError, ServerError
from tollgate.supervisor.fault_log import Fault, now_text
from tollgate.supervisor.health_probe import HealthProbe

# Decide when to stop restarting a part that keeps failing.

MOST = 8
LIVED_S = 5.0


class Flapping:
    """
    Count how often in a row each part died young or could not be repaired.

    A part that works in between is worth a restart, however often it is killed. A part
    that dies again at once eight times will do so the ninth time too.

    Args:
        most: Number of early deaths of one part in a row after which it is still
            restarted.
        lived_s: Seconds that a repaired part must live so that its next death starts a
            new count.
    """

    def __init__(self, *, most: int = MOST, lived_s: float = LIVED_S) -> None:
        self._most = most
        self._lived_s = lived_s
        self._young: dict[str, int] = {}
        # Time of each part's last repair; no entry while its last repair failed.
        self._repaired_s: dict[str, float] = {}

    def failed(self, part: str, *, now_s: float) -> str:
        """
        Count a failure at a monotonic time; return the reason to give up, or "".
        """
        first = part not in self._young
        repaired_s = self._repaired_s.pop(part, None)
        lived = repaired_s is not None and now_s - repaired_s >= self._lived_s
        young = 0 if first or lived else self._young[part] + 1
        self._young[part] = young
        if young <= self._most:
            return ""
        return (
            f"{part} failed {young} times in a row within {self._lived_s:g} s of "
            "being repaired"
        )

    def repaired(self, part: str, *, now_s: float) -> None:
        """Record that a part works again."""
        self._repaired_s[part] = now_s

    def forget(self, part: str) -> None:
        """Reset the count of a part."""
        self._young.pop(part, None)


log = logging.getLogger(__name__)

_RETRY_S = 1.0  # pause after a repair that failed
SKIP_S = 60.0  # pause for a failing part of a product, while others decide


class Recovery:
    """
    Repair the parts that a supervisor finds broken.

    Args:
        health_probes: Probes of the products that a fault may have affected.
        fault: Called with each fault, after its repair succeeded or failed.
    """

    def __init__(
        self,
        health_probes: Sequence[HealthProbe],
        *,
        fault: Callable[[Fault], None],
        flapping: Flapping,
    ) -> None:
        self._probes = health_probes
        self._fault = fault
        self._flapping = flapping
        self._retry_at_s: dict[str, float] = {}

    def repair(
        self, part: str, what: str, action: Callable[[], None], *, product: str = ""
    ) -> bool:
        """
        Repair a part and log the fault; after a failure the next check tries again.

        Args:
            action: Repairs it, or raises ServerError or RepositoryError.
            product: Product of the part; empty for a part that all products share.

        Returns:
            False if the repair failed.

        Raises:
            ServerError: The part was repaired too often, so it is not repaired again,
                and no other product decides either.
        """
        started_s, noticed = time.monotonic(), now_text()
        if started_s < self._retry_at_s.get(part, started_s):
            return True
        log.error("%s: %s", part, what)
        reason = self._flapping.failed(part, now_s=started_s)
        if reason:
            self._give_up(Fault(noticed, part, what, None, reason, "", product))
            return True
        try:
            action()
        except (ServerError, RepositoryError) as error:
            self._retry_at_s[part] = time.monotonic() + _RETRY_S
            self._report(Fault(noticed, part, what, None, str(error), "", product))
            return False
        ended_s = time.monotonic()
        self._flapping.repaired(part, now_s=ended_s)
        for probe in self._probes_of(product):
            probe.reset_failures()
        repair_s = ended_s - started_s
        self._report(Fault(noticed, part, what, repair_s, "mended", "", product))
        return True

    def _give_up(self, fault: Fault) -> None:
        """Skip a part for a while if other products decide; else give up for good."""
        others = [probe for probe in self._probes if probe.product != fault.product]
        if fault.product and any(not probe.failures for probe in others):
            self._retry_at_s[fault.part] = time.monotonic() + SKIP_S
            self._flapping.forget(fault.part)
            self._report(fault, f"left for {SKIP_S:g} s: {fault.outcome}")
            return
        self._report(fault, f"given up: {fault.outcome}")
        raise ServerError(fault.part, f"{fault.what}; gives up: {fault.outcome}")

    def _probes_of(self, product: str) -> list[HealthProbe]:
        return [probe for probe in self._probes if product in ("", probe.product)]

    def _report(self, fault: Fault, outcome: str = "") -> None:
        release = ", ".join(
            filter(None, (one.release for one in self._probes_of(fault.product)))
        )
        reported = msgspec.structs.replace(
            fault, outcome=outcome or fault.outcome, release=release
        )
        log.warning("%s: %s: %s", reported.part, reported.what, reported.outcome)
        self._fault(reported)
