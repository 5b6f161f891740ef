"""State the resources that a device may use."""

from __future__ import annotations

import msgspec

from tollgate.errors import ArgumentError


class Limits(msgspec.Struct, frozen=True):
    """
    State the resources that a device may use.

    Attributes:
        late_ms: Time that a request may take until its decision is on disk.
        late_percent: Share of the requests of a second that may take longer.
        resident_mib: Resident memory of the process.
        battery_percent: Charge of a battery that is not charging, below which the
            device steps down.
    """

    late_ms: float = 5.0
    late_percent: float = 5.0
    resident_mib: float = 120.0
    battery_percent: float = 20.0

    def check(self) -> None:
        """
        Refuse a limit that is out of range.

        Raises:
            ArgumentError: It is not above 0, or a percentage is above 100.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            most = 100.0 if name.endswith("percent") else float("inf")
            if not 0 < value <= most:
                raise ArgumentError(
                    name, f"{value:g} is not above 0 and up to {most:g}"
                )
