"""
Cut the damaged tail off an append-only file of Redis.

Redis itself accepts a file that ends in the middle of a command. It does not start on a
tail of garbage, which a power loss also leaves behind. This module moves everything
after the last complete command to another file, so that the store starts.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
from pathlib import Path

from tollgate.server.store_engine import Engine

log = logging.getLogger(__name__)

# More than a second of writes at full load; earlier damage is not a tail, and an
# operator must repair it.
TAIL_BYTES = 64 << 20
_ANALYSIS = re.compile(rb"size=(\d+), ok_up_to=(\d+)")


def cut_damaged_tail(aof: Path, *, engine: Engine) -> bool:
    """
    Move the damaged tail of an append-only file to another file.

    Args:
        aof: The file; the tail is written next to it, as `….damaged-<seconds>`.
        engine: Its server; the same program checks such files if called by another
            name.

    Returns:
        True if a tail was cut, so that another start is worth trying.
    """
    if not aof.is_file():
        return False
    answer = subprocess.run(
        [f"{engine.writes.engine}-check-aof", str(aof)],
        executable=engine.program,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    found = _ANALYSIS.search(answer.stdout)
    if found is None:
        return False
    size, good = int(found[1]), int(found[2])
    if not 0 < size - good <= TAIL_BYTES:
        return False
    aside = aof.with_name(f"{aof.name}.damaged-{int(time.time())}")
    with aof.open("r+b") as file:
        file.seek(good)
        aside.write_bytes(file.read())
        file.truncate(good)
        os.fsync(file.fileno())
    log.warning(
        "%s: the last %d of %d bytes are damaged; they are now in %s",
        *(aof, size - good, size, aside),
    )
    return True
