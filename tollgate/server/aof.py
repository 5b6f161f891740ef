"""
The damaged end of an append-only file.

Redis by itself forgives a file that ends in the middle of a command. A tail of
garbage, which a power loss leaves behind too, stops it; what lies after the last
whole command is put aside here so that the store comes up.
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

# More than a second of writes at full load; damage before it is no tail and is left
# to a person.
TAIL_BYTES = 64 << 20
_ANALYSIS = re.compile(rb"size=(\d+), ok_up_to=(\d+)")


def cut_damaged_tail(aof: Path, *, engine: Engine) -> bool:
    """
    Put the damaged tail of an append-only file aside.

    Args:
        aof: The file; the tail goes beside it, named `….damaged-<seconds>`.
        engine: Its server, which checks such files when called by another name.

    Returns:
        Whether something was cut, so that another start is worth trying.
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
