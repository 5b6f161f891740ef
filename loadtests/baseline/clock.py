"""Add up the time that requests spend in each layer, in a file that others can read."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

# In the order in which a request passes them; the rest of its latency is the server's
# part: HTTP, parsing, waiting for a worker.
LAYERS = ("store", "features", "model", "policy")
_SUMS = struct.Struct(f"<{1 + len(LAYERS)}Q")  # requests, then ns per layer
_PREFIX = "layers-"


class LayerClock:
    """
    Adds up the time that the requests of this process spend in each layer.

    Args:
        folder: Folder of its file; one file per process.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / f"{_PREFIX}{os.getpid()}"
        path.write_bytes(bytes(_SUMS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SUMS.size)
        self._sums = [0] * (1 + len(LAYERS))
        self._lock = threading.Lock()

    def add(self, *marks_ns: int) -> None:
        """
        Add one request.

        Args:
            marks_ns: Times of time.perf_counter_ns: begin of the first layer, then end
                of each layer.
        """
        with self._lock:
            sums = self._sums
            sums[0] += 1
            for at in range(len(LAYERS)):
                sums[at + 1] += marks_ns[at + 1] - marks_ns[at]
            _SUMS.pack_into(self._map, 0, *sums)


def read_layers(folder: Path) -> tuple[int, ...]:
    """Add up all processes of a service: requests, then ns per layer."""
    files = folder.glob(f"{_PREFIX}*")
    read = [_SUMS.unpack(path.read_bytes()) for path in files]
    return tuple(map(sum, zip(*read, strict=True))) or (0,) * (1 + len(LAYERS))
