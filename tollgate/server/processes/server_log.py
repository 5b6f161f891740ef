"""Pick the lines of a server's log that explain why the server failed."""

from __future__ import annotations

import re
from pathlib import Path

# Logged on every start, by Triton without a GPU and by Redis; unrelated to failures.
_HARMLESS = re.compile(
    r"CudaDriverHelper has not been initialized|Failed to initialize NVML|"
    r"unable to create stream|DCGM unable|pinned.memory|CUDA memory pool|"
    r"oO0OoO0OoO0Oo|Redis version=|Configuration loaded|WARNING .*(memory|backlog|THP)"
)
_PREFIX = re.compile(
    r'^[EWI]\d{4} [\d:.]+ \d+ [\w.]+:\d+\] +"?|^\d+:\w \d+ \w+ [\d :.]+[*#.-] |"$'
)
_ERROR = re.compile(r"^E\d{4} |\berror\b|\bfatal\b|Signal \(\d+\)|# ", re.IGNORECASE)
_TABLE = re.compile(r"^[+|]|^\s*$")
_TAIL_BYTES = 256 << 10


def useful_lines(log: Path, *, offset: int = 0, count: int = 4) -> str:
    """
    Pick the last lines of a log that explain why its server failed.

    Args:
        offset: Position in bytes where this server's part of it begins.

    Returns:
        Lines without severity and source prefix; empty if nothing was written.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(offset, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [
        line
        for line in text.splitlines()
        if not _HARMLESS.search(line) and not _TABLE.match(line)
    ]
    errors = [line for line in lines if _ERROR.search(line)]
    chosen = (errors or lines)[-count:]
    return "\n".join(_PREFIX.sub("", line) for line in chosen)
