"""Run the work that follows each seal: late checks, reasons and hourly retention."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tollgate.audit.chain import Chain
from tollgate.audit.flags import flag_new
from tollgate.audit.reasons import ReasonSealer
from tollgate.audit.releases import ReleaseArchive
from tollgate.audit.retention import retain
from tollgate.audit.times import now_us
from tollgate.errors import JournalError

_RETAIN_EVERY_S = 3_600.0


class SealFollowUp:
    """
    Runs the follow-up work of one journal's seals.

    Args:
        chain: Journal to work on.
        releases: Releases archived in the journal.
        repository: Model repository with the rest of their files; None for none.
        keep_s: Retention of segments in seconds; None keeps them forever.
        say: Called with a message if a step fails; the next seal tries it again.
    """

    def __init__(
        self,
        chain: Chain,
        releases: ReleaseArchive,
        *,
        repository: Path | None,
        keep_s: float | None,
        say: Callable[[str], None],
    ) -> None:
        self._chain = chain
        self._releases = releases
        self._reason_sealer = ReasonSealer(chain, releases, repository=repository)
        self._keep_s = keep_s
        self._say = say
        self._due_s = 0.0

    def __call__(self) -> None:
        """
        Run the late checks and the reasons once, and retention if an hour has passed.
        """
        try:
            flag_new(self._chain, self._releases)
            self._reason_sealer.seal_new()
            if self._keep_s is not None and time.monotonic() >= self._due_s:
                self._due_s = time.monotonic() + _RETAIN_EVERY_S
                retain(self._chain, before_us=now_us() - int(self._keep_s * 1e6))
        except JournalError as exc:
            self._say(f"tollgate: {exc}")
