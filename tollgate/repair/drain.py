"""
Apply the purchases of a spool when the store is back.

The store's one function applies the events; it recognises those that it has. A segment
is deleted when all of its events are applied. If a drain dies before then, the next one
repeats the segment: nothing is lost, and nothing is counted twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from tollgate.errors import InputError, StoreError, trace_of
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repair.spool_segments import (
    Segment,
    SegmentHeader,
    clear_heads,
    locked,
    read_segment,
    segments,
    sync_folder,
)
from tollgate.store.dual_writes import load_spec_text
from tollgate.store.event_writer import EVENTS_PER_CALL, EventWriter
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import RedisStore
from tollgate.stream.events import EventCodec
from tollgate.worker import Worker

log = logging.getLogger(__name__)

DEAD_LETTERS = "dead-letters.jsonl"
LOCK = "drain.lock"
STORE_DEADLINE_S = 5.0


class DrainResult(msgspec.Struct):
    """
    Count the results of a drain.

    All numbers are events, except for `segments`, `unreadable` and `torn_bytes`.

    Attributes:
        segments: Segments that were deleted.
        applied: Events that changed a value.
        duplicates: Events that the store had already.
        dead: Events that cannot be applied; in the dead letters, with the reason.
        missing: Events that their writer took and could not write.
        unreadable: Segments that stay, because this version cannot read them.
        torn_bytes: Half-written ends of killed writers, left out.
    """

    segments: int = 0
    applied: int = 0
    duplicates: int = 0
    dead: int = 0
    missing: int = 0
    unreadable: int = 0
    torn_bytes: int = 0


class SpoolDrain:
    """
    Drain a folder into a store.

    Args:
        rate_per_s: Most events per second, so that decisions do not wait; 0: no limit.
        stopped: Called before each call of the store; True ends the drain early.
    """

    def __init__(
        self,
        folder: Path,
        store: RedisStore,
        *,
        rate_per_s: float = 0.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._store = store
        self._rate_per_s = rate_per_s
        self._stopped = stopped
        self._specs: dict[tuple[str, str], FeatureSpec] = {}

    def waiting(self) -> bool:
        """Return True if there is a segment, a living writer's included."""
        return bool(segments(self._folder))

    def run(self) -> DrainResult | None:
        """
        Apply and delete segments that no process writes; None if another drain runs.

        A segment with an unforeseen error stays, and the others are drained.

        Raises:
            StoreError: The store did not reply; the rest stays for the next drain.
            Exception: The first error of such a segment, after the others are drained.
        """
        if not self._folder.is_dir():
            return DrainResult()
        with locked(self._folder / LOCK, flags=os.O_RDWR | os.O_CREAT) as lock:
            if lock is None:
                return None
            done = DrainResult()
            unforeseen: Exception | None = None
            clear_heads(self._folder)
            for path in segments(self._folder):
                if self._stopped():
                    break
                with locked(path) as fd:
                    if fd is None:
                        continue
                    try:
                        self._take(path, fd, done)
                    except (StoreError, OSError):
                        raise
                    except Exception as error:  # noqa: BLE001 - raised below
                        log.error("%s is left for now: %s", path.name, trace_of(error))
                        unforeseen = unforeseen or error
            if unforeseen is not None:
                raise unforeseen
            return done

    def _take(self, path: Path, fd: int, done: DrainResult) -> None:
        """Apply one segment, then delete it."""
        with os.fdopen(os.dup(fd), "rb") as file:
            content = file.read()
        try:
            segment = read_segment(path, content)
            spec = self._spec(segment.header)
        except InputError as error:
            done.unreadable += 1
            log.error("a segment of the spool is left: %s", error)
            return
        if not self._apply(segment, spec, done):
            return
        done.missing += segment.missing
        done.torn_bytes += segment.torn_bytes
        path.unlink()
        done.segments += 1

    def _apply(self, segment: Segment, spec: FeatureSpec, done: DrainResult) -> bool:
        """Apply a segment's events; False if `stopped` ends it early."""
        codec, writer = EventCodec(spec), EventWriter(spec, self._store)
        refused: dict[int, str] = {}
        for start in range(0, len(segment.events), EVENTS_PER_CALL):
            if self._stopped():
                return False
            started_s = time.monotonic()
            part = segment.events[start : start + EVENTS_PER_CALL]
            decoded = codec.decode(part, now_us=time.time_ns() // 1000)
            found = dict(decoded.poison)
            for at, outcome in (
                (decoded.purchase_at, writer.purchases(decoded.purchases)),
                (decoded.label_at, writer.labels(decoded.labels)),
            ):
                done.applied += int(outcome.applied.sum())
                done.duplicates += int(outcome.duplicate.sum())
                found |= {at[row]: reason for row, reason in outcome.refused()}
            refused |= {start + place: reason for place, reason in found.items()}
            self._pace(started_s, len(part))
        self._write_dead_letters(segment, refused)
        done.dead += len(refused)
        return True

    def _write_dead_letters(self, segment: Segment, refused: dict[int, str]) -> None:
        """Write events that cannot be applied to a file next to the segments."""
        if not refused:
            return
        lines = [
            msgspec.json.encode(
                {
                    "reason": reason,
                    "state": segment.header.state,
                    "event": segment.events[at].decode("utf-8", "backslashreplace"),
                }
            )
            for at, reason in sorted(refused.items())
        ]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._folder / DEAD_LETTERS, flags, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(fd)
        sync_folder(self._folder)
        noun = self._spec(segment.header).rows_noun
        log.warning("%d %s of the spool are dead letters", len(refused), noun)

    def _pace(self, started_s: float, events: int) -> None:
        if self._rate_per_s:
            left_s = started_s + events / self._rate_per_s - time.monotonic()
            time.sleep(max(0.0, left_s))

    def _spec(self, header: SegmentHeader) -> FeatureSpec:
        """
        Read the features that a segment's events were scored with.

        Raises:
            SpecError: This version reads them differently, or not at all.
        """
        key = (header.state, header.spec)
        if key not in self._specs:
            self._specs[key] = load_spec_text(
                header.spec, hook=header.hook, state=header.state
            )
        return self._specs[key]


# Redis applies some 20,000 events per second; decisions keep most of that.
RATE_PER_S = 4_000.0
EVERY_S = 1.0


@contextmanager
def draining(folder: Path, store_url: str) -> Iterator[None]:
    """
    Drain a folder in the background, whenever it has segments, until the context ends.

    Args:
        store_url: redis://, rediss:// or unix:// address.
    """
    stopped = threading.Event()
    store = open_store(store_url, deadline_s=STORE_DEADLINE_S)
    drain = SpoolDrain(folder, store, rate_per_s=RATE_PER_S, stopped=stopped.is_set)
    worker = Worker(
        f"spool-drain-{folder.name}",
        partial(_drain, drain),
        pause_s=EVERY_S,
        stopped=stopped,
    )
    worker.start()
    try:
        yield
    finally:
        worker.stop()
        store.close()


def _drain(drain: SpoolDrain) -> None:
    if not drain.waiting():
        return
    try:
        done = drain.run()
    except (StoreError, OSError) as error:
        log.debug("the spool waits: %s", error)
        return
    if done is not None and done.segments:
        log.info("%s", drain_text(done))


def drain_text(done: DrainResult) -> str:
    """Describe the result of a drain in one line."""
    parts = [f"applied {done.applied:,}", f"had already {done.duplicates:,}"]
    for number, text in (
        (done.dead, "dead letters"),
        (done.missing, "lost before they were written"),
        (done.unreadable, "segments of another version left"),
        (done.torn_bytes, "bytes torn off by a kill"),
    ):
        if number:
            parts.append(f"{text} {number:,}")
    return "spool: " + ", ".join(parts)
