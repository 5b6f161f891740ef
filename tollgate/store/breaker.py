"""
When to stop asking a store that does not answer, and when to ask again.

    CLOSED ──too many failures──► OPEN ──a probe is answered──► HALF_OPEN
       ▲                           ▲                               │
       └───── its call succeeds ───┼───── its call fails ──────────┘

While it is open, no request waits for the store: a thread of the step's own probes
it. The answer to a probe lets one batch through; that batch decides.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

import msgspec


class State(enum.IntEnum):
    """What the breaker lets through; the numbers are those of its metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Rules(msgspec.Struct, frozen=True):
    """
    When a breaker opens, and how often it probes.

    Attributes:
        failures_in_a_row: Opens it: a store that is away.
        recent_calls: How many calls the share looks back on.
        failed_share: Of these, opens it: a store that is slow now and then.
        probe_interval_s: Between probes.
        probe_jitter: Part of the interval by which it is varied, both ways, so
            that replicas do not probe a store that comes back all at once.
    """

    failures_in_a_row: int = 5
    recent_calls: int = 20
    failed_share: float = 0.5
    probe_interval_s: float = 0.25
    probe_jitter: float = 0.2


class Breaker:
    """
    The state of one store, as one caller sees it.

    Only the caller closes and opens it, and only while it does not wait for a probe;
    only the prober half-opens it. So neither needs a lock.

    Args:
        clock: Monotonic, seconds.
        chance: Uniform within [0, 1).
        rules: When it opens and how often it probes.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        chance: Callable[[], float],
        *,
        rules: Rules | None = None,
    ) -> None:
        self.rules = rules or Rules()
        self.state = State.CLOSED
        self.opened = 0  # how often it opened
        self._clock = clock
        self._chance = chance
        self._in_a_row = 0
        self._recent: deque[bool] = deque(maxlen=self.rules.recent_calls)
        self._probe_at_s = 0.0

    def allows(self) -> bool:
        """Tell whether a batch may call the store now."""
        return self.state is not State.OPEN

    def succeeded(self) -> None:
        """Note a call that was answered in time."""
        if self.state is State.HALF_OPEN:
            self._recent.clear()
            self.state = State.CLOSED
        self._in_a_row = 0
        self._recent.append(False)

    def failed(self) -> bool:
        """
        Note a call that failed or came late.

        Returns:
            Whether this opened it.
        """
        self._in_a_row += 1
        self._recent.append(True)
        rules = self.rules
        many = len(self._recent) == rules.recent_calls and (
            sum(self._recent) >= rules.failed_share * rules.recent_calls
        )
        if (
            self.state is State.CLOSED
            and self._in_a_row < rules.failures_in_a_row
            and not many
        ):
            return False
        self._recent.clear()
        self._in_a_row = 0
        self.opened += 1
        self._plan_probe()
        self.state = State.OPEN
        return True

    def until_probe_s(self) -> float:
        """Tell how long it is to the next probe; 0 when that is due."""
        return max(0.0, self._probe_at_s - self._clock())

    def probed(self, answered: bool) -> None:
        """Note how a probe ended."""
        self._plan_probe()
        if answered:
            self.state = State.HALF_OPEN

    def _plan_probe(self) -> None:
        rules = self.rules
        varied = 1 + rules.probe_jitter * (2 * self._chance() - 1)
        self._probe_at_s = self._clock() + rules.probe_interval_s * varied
