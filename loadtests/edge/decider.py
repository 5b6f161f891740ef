"""
Decide rows on a device in a process of its own, until it is killed.

It prints the id of each row after its answer, so its parent knows which decisions were
acknowledged: `python -m loadtests.edge.decider BUNDLE KEY STATE NUMBER THREADS`. With
the word `unsynced` at the end it commits without waiting for the disk, so that a parent
can see that it notices losses.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tollgate.edge import device_store
from tollgate.edge.device import Device

_CUSTOMERS, _TERMINALS = 60, 15


def purchases(number: int, thread: int) -> Iterator[dict[str, list[object]]]:
    """Make purchases of a few customers; each id is new."""
    draw = random.Random(f"{number} {thread}")
    for count in itertools.count():
        yield {
            "transaction_id": [f"{number}-{thread}-{count}"],
            "customer_id": [f"c{draw.randrange(_CUSTOMERS)}"],
            "terminal_id": [f"t{draw.randrange(_TERMINALS)}"],
            "amount": [draw.randrange(100, 200_000) / 100],
            "event_time": [time.time_ns() // 1000 - draw.randrange(1_000_000)],
        }


def main() -> None:
    """Open the device, and decide in some threads for ever."""
    bundle, key, state, number, threads, *words = sys.argv[1:]
    device_store._WRITE_AFTER_S = 0.2  # so that kills come while values are written
    device = Device.open(
        Path(bundle), key=Path(key), state=Path(state), seal_after_s=2.0
    )
    if words == ["unsynced"]:
        database = device._store._database
        database.execute("PRAGMA synchronous = NORMAL")

    def decide(thread: int) -> None:
        for row in purchases(int(number), thread):
            answer = device.decide(row)
            if not answer["decision"][0]:
                os.write(2, f"not decided: {answer['error'][0]}\n".encode())
                os._exit(3)
            os.write(1, f"{row['transaction_id'][0]}\n".encode())

    for thread in range(int(threads)):
        threading.Thread(target=decide, args=(thread,)).start()


if __name__ == "__main__":
    main()
