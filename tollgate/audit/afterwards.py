"""What follows a seal: late checks, reasons, and once an hour retention."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tollgate.audit.chain import Chain
from tollgate.audit.flags import flag_new
from tollgate.audit.reasons import Reasons
from tollgate.audit.releases import Releases
from tollgate.audit.retention import retain
from tollgate.audit.times import now_us
from tollgate.errors import JournalError

_RETAIN_EVERY_S = 3_600.0


class Afterwards:
    """
    Does what the sealed decisions of one journal need.

    Args:
        chain: The journal.
        releases: What it kept of releases.
        repository: Where the rest of them is; None for nowhere.
        keep_s: How long segments stay; None for ever.
        say: Told of what went wrong; it is tried again after the next seal.
    """

    def __init__(
        self,
        chain: Chain,
        releases: Releases,
        *,
        repository: Path | None,
        keep_s: float | None,
        say: Callable[[str], None],
    ) -> None:
        self._chain = chain
        self._releases = releases
        self._reasons = Reasons(chain, releases, repository=repository)
        self._keep_s = keep_s
        self._say = say
        self._due_s = 0.0

    def __call__(self) -> None:
        """Do it once."""
        try:
            flag_new(self._chain, self._releases)
            self._reasons.find_new()
            if self._keep_s is not None and time.monotonic() >= self._due_s:
                self._due_s = time.monotonic() + _RETAIN_EVERY_S
                retain(self._chain, before_us=now_us() - int(self._keep_s * 1e6))
        except JournalError as exc:
            self._say(f"tollgate: {exc}")
