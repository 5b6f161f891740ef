"""What went wrong and how it was mended, kept for whoever asks later."""

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
    One thing that went wrong.

    Attributes:
        time: When it was noticed, RFC 3339 in UTC.
        part: A process, a step or a product.
        what: What was wrong with it.
        mended_s: Seconds from noticing to mended; None when it was not.
        outcome: How it ended, in words.
        release: What was served then.
        product: Whose part it is; empty for what all share.
    """

    time: str
    part: str
    what: str
    mended_s: float | None
    outcome: str
    release: str
    product: str = ""


def now_text() -> str:
    """Tell the time as faults do."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FaultLog:
    """
    Appends faults to a file of the state folder; the older half goes when it is full.

    Products are mended beside each other, so several threads may add.

    Args:
        state: The state folder.
    """

    def __init__(self, state: Path) -> None:
        self.path = state / FAULTS_FILE
        self._adding = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Keep a fault; a disk that is full costs the record, not the service."""
        try:
            with self._adding:
                self._add(msgspec.json.encode(fault) + b"\n")
        except OSError as error:
            log.warning("%s: a fault was not kept: %s", self.path, error.strerror)

    def _add(self, line: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size > _MOST_BYTES:
            lines = self.path.read_bytes().splitlines(keepends=True)
            replace_file(self.path, b"".join(lines[len(lines) // 2 :]))
        with self.path.open("ab") as file:
            file.write(line)


def read_faults(state: Path) -> list[Fault]:
    """Read the faults that a state folder keeps, oldest first; torn lines are left."""
    path = state / FAULTS_FILE
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found.append(msgspec.json.decode(line, type=Fault))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
