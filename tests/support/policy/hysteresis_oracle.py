"""Hysteresis written a second time, plainly: dictionaries and sorted lists."""

from __future__ import annotations

from typing import Any


class Machine:
    """One machine whose alarms have an n of m, a minimum duration and a cool-down."""

    def __init__(
        self, *, of: int, at_least: int, hold_us: int, cool_down_us: int
    ) -> None:
        self.of, self.at_least = of, at_least
        self.hold_us, self.cool_down_us = hold_us, cool_down_us
        self.window: dict[bytes, dict[str, Any]] = {}
        self.level = 0
        self.began_us: int | None = None
        self.ended_us: int | None = None
        self.served_us: int | None = None

    def serve(self, time_us: int) -> None:
        """Take a row of maintenance: what was before it is forgotten."""
        if self.served_us is not None and time_us <= self.served_us:
            return
        self.served_us = time_us
        for name in [*self.window]:
            if self.window[name]["time"] <= time_us:
                del self.window[name]
        if self.began_us is not None and self.began_us <= time_us:
            self.level = 0

    def read(self, time_us: int, name: bytes, raw: int) -> tuple[int, str]:
        """Take a reading; return the answered level and the word for it."""
        if name in self.window:
            return self.window[name]["said"]
        oldest = min(
            ((one["time"], key) for key, one in self.window.items()), default=None
        )
        full = len(self.window) == self.of
        served = self.served_us is not None and time_us <= self.served_us
        if served or (full and oldest is not None and (time_us, name) < oldest):
            return (raw if raw < self.level else self.level), "LATE"
        if full and oldest is not None:
            self.window.pop(oldest[1])
        self.window[name] = {"time": time_us, "raw": raw}
        said = self.settle(raw)
        self.window[name]["said"] = said
        return said

    def settle(self, raw: int) -> tuple[int, str]:
        """Move the level on to the newest reading."""
        now_us = max(one["time"] for one in self.window.values())
        confirmed = 0
        for level in (1, 2):
            reaching = [one for one in self.window.values() if one["raw"] >= level]
            if len(reaching) >= self.at_least:
                confirmed = level
        old = self.level
        if old == 0:
            cooling = (
                self.ended_us is not None and now_us < self.ended_us + self.cool_down_us
            )
            if confirmed and cooling:
                return 0, "COOLING_DOWN"
            new = confirmed
        elif confirmed >= old:
            new = confirmed
        else:
            assert self.began_us is not None
            new = old if now_us < self.began_us + self.hold_us else confirmed
        self.level = new
        if new > old:
            self.began_us = now_us
            return new, "RAISED"
        if old and not new:
            self.ended_us = now_us
        if new > raw:
            return new, "HELD"
        return new, "UNCONFIRMED" if new < raw else "NONE"
