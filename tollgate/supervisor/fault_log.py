"""Log faults and how they were repaired, for later analysis."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from tollgate.repository.atomic import replace_file

log = logging.getLogger(__name__)

FAULTS_FILE = "faults.jsonl"
_MOST_BYTES = 1 << 20


class Fault(msgspec.Struct, frozen=True):
    """
    One fault.

    Attributes:
        time: Time when it was noticed, RFC 3339 in UTC.
        part: The process, step or product that failed.
        mended_s: Seconds from notice to repair; None if it was not repaired.
        outcome: Description of how it ended.
        release: Release that was served at that time.
        product: Product of the part; empty for a part that all products share.
    """

    time: str
    part: str
    what: str
    mended_s: float | None
    outcome: str
    release: str
    product: str = ""


def now_text() -> str:
    """Return the current time in the format of faults: RFC 3339 in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FaultLog:
    """
    Append faults to a file of the state folder; drop the older half when it is full.

    Products are repaired in parallel, so several threads may add.
    """

    def __init__(self, state: Path) -> None:
        self.path = state / FAULTS_FILE
        self._adding = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Store a fault; if the disk is full, log a warning and go on serving."""
        try:
            with self._adding:
                self._add(msgspec.json.encode(fault) + b"\n")
        except OSError as error:
            log.warning("%s: a fault was not stored: %s", self.path, error.strerror)

    def _add(self, line: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size > _MOST_BYTES:
            lines = self.path.read_bytes().splitlines(keepends=True)
            replace_file(self.path, b"".join(lines[len(lines) // 2 :]))
        with self.path.open("ab") as file:
            file.write(line)


def read_faults(state: Path) -> list[Fault]:
    """Read the faults in a state folder, oldest first; skip unreadable lines."""
    path = state / FAULTS_FILE
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found.append(msgspec.json.decode(line, type=Fault))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
