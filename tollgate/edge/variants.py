"""
Choose the variant of a device: the most exact one that its resources allow.

Each reading of the device steps down at most one variant, and steps up again only after
the device has had room to spare for a while: limits to step up are lower than those to
step down, so a load at the limit does not make it change to and fro.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.edge.limits import Limits

UP_AFTER_S = 30.0  # with room to spare
_SPARE = 0.75  # of a limit
_FEWEST = 20  # requests that show how many are late
_POWER = Path("/sys/class/power_supply")


class Resources(msgspec.Struct, frozen=True):
    """
    Hold what a device used in the last second.

    Attributes:
        late_percent: Share of the requests that took longer than the limit.
        resident_mib: Resident memory of the process.
        battery_percent: Lowest charge of a battery that is not charging; None where
            there is none.
    """

    late_percent: float
    resident_mib: float
    battery_percent: float | None = None

    def pressing(self, limits: Limits, *, part: float = 1.0) -> str:
        """
        Name the resource that is beyond a part of its limit; empty for none.

        Args:
            part: 1 for the limit itself. The charge of a battery must be the higher
                above its limit the smaller the part is.
        """
        battery = self.battery_percent
        if battery is not None and battery < limits.battery_percent / part:
            return f"battery at {battery:.0f} %"
        if self.resident_mib > limits.resident_mib * part:
            return f"{self.resident_mib:.0f} MiB resident"
        if self.late_percent > limits.late_percent * part:
            return f"{self.late_percent:.0f} % of the requests late"
        return ""


def read_resources(late_percent: float, *, power: Path = _POWER) -> Resources:
    """Read the memory of this process and the charge of the machine's batteries."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    charges = []
    for battery in power.glob("*/capacity"):
        try:
            status = (battery.parent / "status").read_text().strip()
            if status not in ("Charging", "Full"):
                charges.append(float(battery.read_text()))
        except (OSError, ValueError):  # it was removed
            continue
    return Resources(
        late_percent=late_percent,
        resident_mib=pages * os.sysconf("SC_PAGESIZE") / 2**20,
        battery_percent=min(charges, default=None),
    )


def late_share(latest: Sequence[tuple[float, bool]], *, now_s: float) -> float:
    """
    Return the share of late requests among those of the last second.

    Where these are fewer than 20, the latest 20 are judged, so that one late request
    is no reason to step down; 0 if there are not as many yet.

    Args:
        latest: When each request ended, on the monotonic clock, and whether it was
            late; in the order of time.
    """
    if len(latest) < _FEWEST:
        return 0.0
    recent = [late for ended_s, late in latest if now_s - ended_s <= 1.0]
    if len(recent) < _FEWEST:
        recent = [late for _, late in latest[-_FEWEST:]]
    return sum(recent) / len(recent)


class VariantChoice:
    """
    Step down and up between variants.

    Args:
        names: Variants, the most exact one first.
    """

    def __init__(self, names: Sequence[str], limits: Limits) -> None:
        self._names = names
        self._limits = limits
        self._place = 0
        self._spare_since_s: float | None = None
        self.reason = ""

    @property
    def name(self) -> str:
        """Return the chosen variant."""
        return self._names[self._place]

    def note(self, resources: Resources, *, now_s: float) -> str:
        """
        Take a reading; return the variant to decide by from now on.

        Args:
            now_s: On the monotonic clock.
        """
        pressing = resources.pressing(self._limits)
        if pressing:
            self._spare_since_s = None
            if self._place < len(self._names) - 1:
                self._place, self.reason = self._place + 1, pressing
        elif resources.pressing(self._limits, part=_SPARE):
            self._spare_since_s = None
        elif self._spare_since_s is None:
            self._spare_since_s = now_s
        elif self._place and now_s - self._spare_since_s >= UP_AFTER_S:
            self._place, self._spare_since_s = self._place - 1, now_s
            self.reason = f"room to spare for {UP_AFTER_S:g} s"
        return self.name


class NoModel:
    """
    Answer no probabilities: the policy then decides by its rules and its fallback.

    Args:
        labels: Number of the policy's labels.
    """

    exact = False

    def __init__(self, labels: int) -> None:
        self._labels = labels

    def probabilities(self, features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return NaN for each label of each row; float32 [N, K]."""
        return np.full((len(features), self._labels), np.nan, np.float32)
