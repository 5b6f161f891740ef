"""
Move the records of devices from their object store to the journal's stream.

A segment is removed from the object store when the stream has acknowledged all of it.
One that is sent twice is harmless: readers of the stream drop records that they have,
by writer and number.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from pathlib import Path

from tollgate.edge.device_store import JOURNAL
from tollgate.edge.group import DEVICES, GROUP_FILE, open_objects
from tollgate.edge.sync import DIGEST_DIGITS
from tollgate.errors import InputError, StoreError
from tollgate.journal.journal_spool import MOST_CHUNKS
from tollgate.journal.journal_stream import JournalStream
from tollgate.repair.spool_segments import SUFFIX, read_segment
from tollgate.store.redis.pipelined_connection import open_pipeline

log = logging.getLogger(__name__)

_DEADLINE_S = 5.0  # no decision waits for it


class Collector:
    """
    Collect the segments of a group's devices.

    Args:
        url: Address of the object store.
        journal_url: Address of the Redis that holds the streams.

    Raises:
        InputError: An address is invalid.
        SetupError: The library of that kind of store is not installed.
    """

    def __init__(self, url: str, *, group: str, journal_url: str) -> None:
        self._objects = open_objects(url)
        self._group_file = f"{group}/{GROUP_FILE}"
        self._folder = f"{group}/{DEVICES}"
        self._journal_url = journal_url
        self._streams: dict[str, JournalStream] = {}
        self._damaged: dict[str, str] = {}  # stamps by name; reported, and left there
        open_pipeline(journal_url, deadline_s=_DEADLINE_S).close()

    def step(self) -> int:
        """
        Move every segment that is there; return their number.

        Raises:
            InputError: The object store has no such group.
            ObjectStoreError: The object store does not answer.
            StoreError: The stream is full, or does not take a chunk.
        """
        moved = 0
        if self._objects.stamp(self._group_file) is None:
            name = self._group_file.partition("/")[0]
            source = self._objects.name(self._group_file)
            raise InputError(source, f"there is no group {name}")
        found = self._objects.files(self._folder, deep=True)
        for name, stamp in sorted(found.items()):
            _, place, file = name.rsplit("/", 2)
            known = self._damaged.get(name) == stamp
            if place != JOURNAL or not file.endswith(SUFFIX) or known:
                continue
            try:
                product, chunks = self._fetch(name)
            except InputError as error:
                log.error("a segment is left in the store: %s", error)
                self._damaged[name] = stamp
                continue
            self._send(product, chunks)
            self._objects.remove(name)
            moved += 1
        return moved

    def _fetch(self, name: str) -> tuple[str, list[bytes]]:
        """Download a segment; return its product and its chunks."""
        source = self._objects.name(name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "segment"
            if self._objects.fetch(name, path) is None:
                return "", []  # another collector moved it
            content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]
        if not name.endswith(f"-{digest}{SUFFIX}"):
            raise InputError(source, "is damaged, or only a part of a segment")
        segment = read_segment(Path(source), content)
        if segment.torn_bytes:
            problem = f"its last {segment.torn_bytes:,} bytes are damaged: the device "
            raise InputError(source, problem + "pushed them so")
        return segment.header.product, segment.events

    def _send(self, product: str, chunks: list[bytes]) -> None:
        for begin in range(0, len(chunks), MOST_CHUNKS):
            part = chunks[begin : begin + MOST_CHUNKS]
            stream = self._stream(product)
            if stream.full or stream.add(part) < len(part):
                stream.close()
                del self._streams[product]
                raise StoreError(f"the journal's stream of {product} is full, or away")

    def _stream(self, product: str) -> JournalStream:
        if product not in self._streams:
            line = open_pipeline(self._journal_url, deadline_s=_DEADLINE_S)
            self._streams[product] = JournalStream(product, line)
        return self._streams[product]

    def close(self) -> None:
        """Close the connections."""
        for one in self._streams.values():
            one.close()
